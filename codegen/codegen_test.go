// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen_test

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestPlan compiles the graph of each case; "scratch: 0 2" names scratch slots. A case with a file "memory" also checks
// MemoryText.
func TestPlan(t *testing.T) {
	golden.Run(t, "testdata/plan", func(t *testing.T, c *golden.Case) {
		g, err := ir.Parse(c.File("ir"))
		require.NoError(t, err)
		require.NoError(t, ir.Verify(g))
		o := codegen.Options{Scratch: make([]bool, 16)}
		for _, s := range c.Words("scratch") {
			n, err := strconv.Atoi(s)
			require.NoError(t, err)
			o.Scratch[n] = true
		}
		got, err := codegen.Compile(g, o)
		require.NoError(t, err)
		require.NoError(t, got.Program.Validate())
		c.Check("plan", got.Text())
		params, err := got.FirstSeen(g)
		require.NoError(t, err)
		if c.Has("memory") { // some cases are about it
			c.Check("memory", got.MemoryText(params))
		}
	})
}

func TestDerived(t *testing.T) {
	s := func(i int) ir.Dim { return ir.SymDim(i) }
	for _, c := range []struct {
		d    codegen.Derived
		want uint64
		err  string
		text string
	}{
		{codegen.Derived{ItemSize: 4, Sizes: []ir.Dim{s(0), 3}}, 4 * 5 * 3, "", "4 * s0 * 3"},
		{codegen.Derived{ItemSize: 4}, 4, "", "4"},
		{codegen.Derived{ItemSize: 2, Sizes: []ir.Dim{s(0), 0}}, 0, "", "2 * s0 * 0"},
		{codegen.Derived{ItemSize: 2, Sizes: []ir.Dim{s(0), s(1)}, Strides: []ir.Dim{1, s(0)}},
			2 * (1 + 4*1 + 6*5), "", "2 * span(s0:1 s1:s0)"},
		{codegen.Derived{ItemSize: 1, Sizes: []ir.Dim{s(9)}}, 0, "a size needs parameter 9 of 4", "1 * s9"},
		{codegen.Derived{ItemSize: 1, Sizes: []ir.Dim{s(2)}}, 0, "parameter 2 is a size of -1", "1 * s2"},
		{codegen.Derived{ItemSize: 8, Sizes: []ir.Dim{s(3), s(3)}}, 0,
			"a buffer of 8 * s3 * s3 would not fit in any memory", "8 * s3 * s3"},
		{codegen.Derived{ItemSize: 8, Sizes: []ir.Dim{s(3)}, Strides: []ir.Dim{s(3)}}, 0,
			"a buffer of 8 * span(s3:s3) would not fit in any memory", "8 * span(s3:s3)"},
		{codegen.Derived{ItemSize: 4, Sizes: []ir.Dim{s(0), 6}, Over: []ir.Dim{3, s(0)}}, 8, "", "4 * s0 * 6 / 3 / s0"},
		{codegen.Derived{ItemSize: 4, Sizes: []ir.Dim{s(0)}, Over: []ir.Dim{2}}, 0,
			"4 * s0 / 2 is no whole number", "4 * s0 / 2"},
		{codegen.Derived{ItemSize: 1, Sizes: []ir.Dim{s(0)}, Over: []ir.Dim{0}}, 0,
			"1 * s0 / 0 is no whole number", "1 * s0 / 0"},
		{codegen.Derived{ItemSize: 1, Sizes: []ir.Dim{s(0)}, Over: []ir.Dim{s(9)}}, 0,
			"a size needs parameter 9 of 4", "1 * s0 / s9"},
	} {
		got, err := c.d.Bytes([]uint64{5, 7, math.MaxUint64, 1 << 40})
		require.Equal(t, c.text, c.d.String())
		if c.err != "" {
			require.EqualError(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got, c.text)
	}
}

func TestParams(t *testing.T) {
	c := &codegen.Compiled{
		Slots: []uint32{3, codegen.Computed, 0}, Derived: []codegen.Derived{{ItemSize: 4, Sizes: []ir.Dim{ir.SymDim(1)}}},
	}
	got, err := c.Params([]uint64{10, 11, 12, 13})
	require.NoError(t, err)
	require.Equal(t, []uint64{13, 44, 10}, got)
	_, err = c.Params([]uint64{1, 2, 3})
	require.EqualError(t, err, "the program needs parameter 3 of 3")
}

// TestPeak checks that the peak depends on the sizes of a call, although the program does not.
func TestPeak(t *testing.T) {
	g, err := ir.Parse(`graph b.py:3 none {
  dims a=4@0 b=5@1
  %0: f32[a,b]           = input 0
  %1: f32[a,b]           = exp %0
  %2: f64[a,b]           = cast %1
  %3: f32[]              = sum %1 ints[] false
  output %2 -> s1
  output %3 -> s2
}`)
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{})
	require.NoError(t, err)
	for _, test := range []struct {
		params []uint64
		want   codegen.Peak
	}{
		{[]uint64{4, 5}, codegen.Peak{Bytes: 20*4 + 20*8 + 4, Step: 2, Storages: 20 * 4}},
		{[]uint64{0, 5}, codegen.Peak{Bytes: 4, Step: 2}},
		{[]uint64{1 << 20, 1 << 10}, codegen.Peak{Bytes: 12<<30 + 4, Step: 2, Storages: 4 << 30}},
	} {
		got, err := c.Peak(test.params)
		require.NoError(t, err)
		require.Equal(t, test.want, got, c.Text())
	}
	const text = "at most 244 bytes of its own at once, at step 2, beside storages of 80"
	require.Equal(t, text, codegen.Peak{Bytes: 244, Step: 2, Storages: 80}.String())
	require.Equal(t, "nothing of its own, beside storages of 80 bytes", codegen.Peak{Step: -1, Storages: 80}.String())
	_, err = c.Peak([]uint64{1 << 40, 1 << 40})
	require.ErrorContains(t, err, "would not fit in any memory")
	_, err = c.Peak([]uint64{1})
	require.EqualError(t, err, "a size needs parameter 1 of 1")
}

func TestErrorsNameTheRecord(t *testing.T) {
	g := ir.NewGraph("x", "none")
	f32 := ir.Type{DType: ir.F32, Dims: []ir.Dim{4}}
	x := g.Nodes[g.Add(ir.Node{Op: ir.OpInput}, nil, []ir.Type{f32})].First
	v := g.Nodes[g.Add(ir.Node{Op: ir.OpView}, []ir.Arg{ir.Value(x)}, []ir.Type{f32})].First
	update := ir.Node{Op: ir.OpUpdate, Origin: ir.Origin{File: "a/train.py", Line: 3}}
	u := g.Nodes[g.Add(update, []ir.Arg{ir.Value(v), ir.Value(x)}, []ir.Type{f32})].First
	g.Outputs = append(g.Outputs, ir.Output{Value: u})
	_, err := codegen.Compile(g, codegen.Options{})
	require.EqualError(t, err, "codegen: node 2 (update, recorded at train.py:3): its base is a view")
}

// TestWindowsOfOneBuffer reads each of many windows on one storage twice: equal windows have one number.
func TestWindowsOfOneBuffer(t *testing.T) {
	text := strings.Builder{}
	text.WriteString("graph a.py:1 sync {\n  %0: f32[64] = input 0\n")
	const windows = 20
	for i := range 2 * windows {
		fmt.Fprintf(&text, "  %%%d: f32[4] = view %%0 offset=%d\n  %%%d: f32[4] = tanh %%%d\n",
			2*i+1, i%windows, 2*i+2, 2*i+1)
	}
	for i := range 2 * windows {
		fmt.Fprintf(&text, "  output %%%d -> s%d\n", 2*i+2, i+1)
	}
	text.WriteString("}\n")
	g, err := ir.Parse(text.String())
	require.NoError(t, err)
	require.NoError(t, ir.Verify(g))
	c, err := codegen.Compile(g, codegen.Options{})
	require.NoError(t, err)
	offsets := map[program.Dim]int{}
	for _, w := range c.Program.Tensors {
		if w.Buffer == c.Program.Inputs[0] {
			offsets[w.Offset]++
		}
	}
	require.Len(t, offsets, windows)
	for offset, n := range offsets {
		require.Equal(t, 1, n, "windows at offset %d", offset)
	}
}
