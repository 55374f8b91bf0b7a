// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
)

// step is a graph like a training step's: n nodes, of which some views repeat and some results are unused.
func step(n int) *ir.Graph {
	g := ir.NewGraph("train.py:41", "step")
	size := g.AddSymbol(0, 64)
	matrix := ir.Type{DType: ir.F32, Dims: []ir.Dim{size, size}}
	columns := ir.Type{DType: ir.F32, Dims: matrix.Dims, Strides: []ir.Dim{ir.Const(1), size}}
	add := func(n ir.Node, t ir.Type, operands ...ir.ValueID) ir.ValueID {
		args := make([]ir.Arg, len(operands))
		for i, v := range operands {
			args[i] = ir.Value(v)
		}
		return g.Nodes[g.Add(n, args, []ir.Type{t})].First
	}
	mm := ir.Node{Op: ir.OpCall, Name: g.Intern("aten::mm")}
	x, w := add(ir.Node{Op: ir.OpInput, Slot: 0}, matrix), add(ir.Node{Op: ir.OpInput, Slot: 1}, matrix)
	for len(g.Nodes) < n {
		t := add(ir.Node{Op: ir.OpView}, columns, w)
		y := add(mm, matrix, x, t)
		z := add(ir.Node{Op: ir.OpRelu}, matrix, y)
		add(ir.Node{Op: ir.OpTanh}, matrix, z)
		x = add(ir.Node{Op: ir.OpAdd}, matrix, z, x)
	}
	g.Outputs = []ir.Output{{Value: x, Slot: 2}}
	return g
}

func BenchmarkPipeline(b *testing.B) {
	g := step(2000)
	require.NoError(b, ir.Verify(g))
	b.ReportAllocs()
	for b.Loop() {
		_, err := passes.Run(g, passes.Options{})
		require.NoError(b, err)
	}
}
