// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

// chain is a graph of n adds with a row of symbols of its own for each result, as capture makes them.
func chain(n int) *ir.Graph {
	g := ir.NewGraph("train.py:1", "step")
	slot := uint32(0)
	typ := func() ir.Type {
		slot += 2
		return ir.Type{DType: ir.F32, Dims: []ir.Dim{g.AddSymbol(slot, 8), g.AddSymbol(slot+1, 9)}}
	}
	x := g.Nodes[g.Add(ir.Node{Op: ir.OpInput, Record: -1}, nil, []ir.Type{typ()})].First
	for range n {
		id := g.Add(ir.Node{Op: ir.OpAdd, Record: -1}, []ir.Arg{ir.Value(x), ir.Value(x)}, []ir.Type{typ()})
		g.InferCall(id)
		x = g.Nodes[id].First
	}
	g.Outputs = []ir.Output{{Value: x, Slot: 1}}
	return g
}

func BenchmarkBuild(b *testing.B) {
	for b.Loop() {
		chain(2000)
	}
}

func BenchmarkVerify(b *testing.B) {
	g := chain(2000)
	for b.Loop() {
		require.NoError(b, ir.Verify(g))
	}
}

func BenchmarkClone(b *testing.B) {
	g := chain(2000)
	for b.Loop() {
		g.Clone()
	}
}

func BenchmarkPrint(b *testing.B) {
	g := chain(2000)
	for b.Loop() {
		_ = g.String()
	}
}

func BenchmarkParse(b *testing.B) {
	text := chain(2000).String()
	for b.Loop() {
		_, err := ir.Parse(text)
		require.NoError(b, err)
	}
}
