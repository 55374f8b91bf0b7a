// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compile

import (
	"os"
	"path/filepath"
	goruntime "runtime"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/trace"
)

func live() int64 {
	var m goruntime.MemStats
	goruntime.GC()
	goruntime.GC()
	goruntime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// optimised is the graph of a file after the passes.
func optimised(t *testing.T, path string) *ir.Graph {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	g, err := ir.Parse(string(text))
	require.NoError(t, err)
	g, err = passes.Run(g, passes.Options{})
	require.NoError(t, err)
	return g
}

// variantOf is a measured variant with the program of a graph.
func variantOf(t *testing.T, g *ir.Graph) *Variant {
	c, err := codegen.Compile(g, codegen.Options{Kernels: true})
	require.NoError(t, err)
	packed, err := pack(c.Program)
	require.NoError(t, err)
	v := &Variant{Compiled: c, Packed: packed, Account: &Account{}}
	v.bytes = v.measure()
	return v
}

// TestSizeOfPrograms compares the measured memory of programs with the growth of the heap.
func TestSizeOfPrograms(t *testing.T) {
	paths, err := filepath.Glob("../../tests/replay/*/*.ir")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		g := optimised(t, path)
		entries := make([]*Entry, 20)
		before := live()
		total := int64(0)
		for i := range entries {
			v := variantOf(t, g)
			c := v.Compiled
			v.bytes -= 8*int64(c.Program.Params) + 8*int64(len(c.Inputs)+len(c.Outputs)) // without a call
			entries[i] = &Entry{variants: []*Variant{v}}
			total += entries[i].bytes()
		}
		grown := live() - before
		goruntime.KeepAlive(entries)
		ratio := float64(total) / float64(grown)
		t.Logf("%s: %d bytes are measured as %d, %.2f", filepath.Base(path), grown/20, total/20, ratio)
		if grown > 20*(20<<10) { // smaller ones are lost in the noise
			require.InDelta(t, 1, ratio, 0.2, path)
		}
	}
}

// TestProgramsStayWithinTheirBound fills a cache with ten times as many programs as fit.
func TestProgramsStayWithinTheirBound(t *testing.T) {
	g := optimised(t, "../../tests/replay/corpus/mlp.ir")
	const bound, count = 4 << 20, 600
	before := live()
	p := newPrograms(bound)
	total := int64(0)
	for i := range count {
		v := variantOf(t, g)
		e := &Entry{skeleton: []uint64{uint64(i)}, variants: []*Variant{v}}
		p.store(&trace.Trace{Key: [2]uint64{uint64(i), 1}, Skeleton: e.skeleton}, e)
		total += e.bytes()
	}
	require.Greater(t, total, int64(8*bound))
	grown := live() - before
	goruntime.KeepAlive(p)
	require.Greater(t, grown, int64(bound/2))
	require.Less(t, grown, int64(bound+bound/16))
}
