// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture_test

import (
	"encoding/binary"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/tests/golden"
	"github.com/mycelya/mycelya/trace"
)

// wanted selects the storages that a first compile needs: all that a tensor still holds.
func wanted(t *trace.Trace) []bool {
	out := make([]bool, len(t.Alive))
	for i, a := range t.Alive {
		out[i] = a != 0
	}
	return out
}

// TestBuild reads traces and compares their graphs.
func TestBuild(t *testing.T) {
	golden.Run(t, "testdata/build", func(t *testing.T, c *golden.Case) {
		names := capture.NewTable()
		tr, err := asm.Parse(c.File("trace"), names)
		require.NoError(t, err)
		got, err := names.Build(tr, wanted(tr), tr.Params, true)
		require.NoError(t, err)
		require.NoError(t, ir.Verify(got.Graph))
		text := got.Graph.String()
		again, err := ir.Parse(text)
		require.NoError(t, err)
		require.Equal(t, text, again.String())
		c.Check("ir", text)
	})
}

func TestLiveness(t *testing.T) {
	names := capture.NewTable()
	tr, err := asm.Parse(`
dead %2
aten::mul.Tensor %0:f32[4] %1:f32[4] -> %2:f32[4]
aten::add_.Tensor %0! %2 1
aten::exp %0 -> %3:f32[4]
`, names)
	require.NoError(t, err)
	c, err := names.Build(tr, wanted(tr), tr.Params, true)
	require.NoError(t, err)
	require.Equal(t, []bool{true, true, false, false}, c.Inputs)
	require.Equal(t, []bool{true, false, true, true}, c.Changed)
	require.Equal(t, []string{"aten::mul.Tensor", "aten::add_.Tensor", "aten::exp"}, c.Ops)
	var slots []uint32
	for _, o := range c.Graph.Outputs {
		slots = append(slots, o.Slot)
	}
	require.Equal(t, []uint32{0, 3}, slots)
}

func TestErrorsSayWhere(t *testing.T) {
	names := capture.NewTable()
	tr, err := asm.Parse("aten::relu %0:f32[4] -> %1:f32[4]", names)
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		harm func(t *trace.Trace)
		want string
	}{
		{"short", func(t *trace.Trace) { t.Skeleton = t.Skeleton[:3] },
			"decoding a trace: record 0: word 3: the skeleton ends in the middle of a record"},
		{"head", func(t *trace.Trace) { t.Skeleton[0] = 99 },
			"decoding a trace: record 0: word 0: 0x63 is not the head of a record"},
		{"dtype", func(t *trace.Trace) { t.Skeleton[2] |= 0xff << 8 },
			"decoding a trace: record 0: word 2: unknown dtype 255"},
		{"local", func(t *trace.Trace) { t.Skeleton[2] |= 7 << 32 },
			"decoding a trace: record 0: word 2: storage 7 is new where 0 is the next number"},
		{"class", func(t *trace.Trace) { t.Skeleton[3] = 3 },
			"decoding a trace: record 0: word 3: 0x3 has a dim of unknown class"},
		{"params", func(t *trace.Trace) { t.Params = t.Params[:1] },
			"decoding a trace: record 0: word 4: needs parameter 1 of 1"},
		{"many params", func(t *trace.Trace) { t.Params = append(t.Params, 1) },
			"decoding a trace: the skeleton has 2 parameters, the trace 3"},
		{"bindings", func(t *trace.Trace) { t.Bindings = nil },
			"decoding a trace: the skeleton has 2 storages, the trace binds 0"},
		{"op", func(t *trace.Trace) { t.Skeleton[1] = 5 }, "building a graph: record 0, word 0: op 0x5 has no name"},
		{"size", func(t *trace.Trace) { t.Params[0] = 1 << 63 },
			"building a graph: record 0, word 0: parameter 0 is a size of -9223372036854775808"},
	} {
		t.Run(c.name, func(t *testing.T) {
			bad := *tr
			bad.Skeleton = append([]uint64(nil), tr.Skeleton...)
			bad.Params = append([]uint64(nil), tr.Params...)
			c.harm(&bad)
			_, err := names.Build(&bad, make([]bool, 2), nil, false)
			require.EqualError(t, err, c.want)
		})
	}
}

// words makes the streams of a trace from fuzzed bytes: skeleton, parameters, bindings and liveness in thirds.
func words(data []byte) []uint64 {
	out := make([]uint64, len(data)/8)
	for i := range out {
		out[i] = binary.LittleEndian.Uint64(data[8*i:])
	}
	return out
}

// FuzzBuild checks that no words make Build panic, and that the verifier accepts each graph that it builds.
func FuzzBuild(f *testing.F) {
	files, err := filepath.Glob("testdata/build/*.txtar")
	require.NoError(f, err)
	names := capture.NewTable()
	for _, file := range files {
		ar, err := txtar.ParseFile(file)
		require.NoError(f, err)
		tr, err := asm.Parse(string(ar.Files[0].Data), names)
		require.NoError(f, err)
		var skeleton, params []byte
		for _, w := range tr.Skeleton {
			skeleton = binary.LittleEndian.AppendUint64(skeleton, w)
		}
		for _, w := range tr.Params {
			params = binary.LittleEndian.AppendUint64(params, w)
		}
		f.Add(skeleton, params, uint16(len(tr.Bindings)), uint16(len(tr.Origins)/2))
	}
	f.Fuzz(func(t *testing.T, skeleton, params []byte, storages, records uint16) {
		tr := &trace.Trace{Skeleton: words(skeleton), Params: words(params), Bindings: make([]uint64, storages),
			Alive: make([]uint8, storages), Origins: make([]uint32, 2*int(records))}
		for i := range tr.Alive {
			tr.Alive[i] = 1
		}
		c, err := names.Build(tr, wanted(tr), tr.Params, true)
		if err != nil {
			require.Nil(t, c)
			return
		}
		_ = c.Graph.String()
	})
}

func TestCallersOfALibrary(t *testing.T) {
	names := capture.NewTable()
	names.DefineCode(1, "lib.py", []int32{7, 8})
	names.DefineCode(2, "main.py", []int32{3})
	names.DefineCall(3, trace.Place{1, 2}, trace.Place{2, 0})
	require.Equal(t, ir.Origin{File: "lib.py", Line: 8}, names.Origin(3, 0))
	require.Equal(t, ir.Origin{File: "main.py", Line: 3}, names.Caller(3))
	require.Equal(t, ir.Origin{}, names.Caller(1))
}
