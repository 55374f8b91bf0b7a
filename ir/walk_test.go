// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

const walkText = `graph g r {
  dims n=4@0 m=4@1
  %0: f32[n,n] = input 0
  %1: f32[n] = view %0 offset=n
  %2: f32[n] = view %1 offset=0
  %3: f32[n], %4: f32[n,n] = my.op_ %2 [%0!, none] %2 "s" m
  %5: f32[n] = add %3 %1
  output %4 -> s0
  output %5 -> s1
  output %5 -> s2
}
`

func walkGraph(t *testing.T) *ir.Graph {
	g, err := ir.Parse(walkText)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(g))
	return g
}

func TestWalk(t *testing.T) {
	g := walkGraph(t)
	assert.Equal(t, []ir.ValueID{2, 0, 2}, g.Operands(3))
	assert.Equal(t, []ir.ValueID{0}, g.Writes(3))
	assert.Equal(t, 1, g.NumFresh(3))
	assert.Equal(t, []int32{2, 2, 2, 1, 1, 2}, g.UseCounts())
	assert.Equal(t, [][]ir.NodeID{{1, 3}, {2, 4}, {3}, {4}, nil, nil}, g.Users())
	assert.Equal(t, ir.ValueID(0), g.Root(2))
	assert.Equal(t, ir.ValueID(4), g.Root(4))
}

func TestReplace(t *testing.T) {
	g := walkGraph(t)
	g.Replace(2, 1)
	g.Replace(0, 0)
	g.Replace(5, 3)
	assert.Equal(t, []ir.ValueID{1, 0, 1}, g.Operands(3))
	assert.Equal(t, []ir.Output{{Value: 4, Slot: 0}, {Value: 3, Slot: 1}, {Value: 3, Slot: 2}}, g.Outputs)
	require.NoError(t, ir.Verify(g))
}

func TestRewrite(t *testing.T) {
	g := walkGraph(t)
	require.True(t, g.UnifyDims(ir.SymDim(0), ir.SymDim(1)))
	before := g.String()
	to := []ir.ValueID{0, 1, 1, 3, 4, 3}
	out := g.Rewrite([]ir.NodeID{0, 1, 3}, to)
	assert.Equal(t, before, g.String(), "the graph stays")
	require.NoError(t, ir.Verify(out))
	assert.Equal(t, `graph g r {
  dims n=4@0
  %0: f32[n,n]           = input 0
  %1: f32[n]             = view %0 offset=n
  %2: f32[n], %3: f32[n,n] = my.op_ %1 [%0!, none] %1 "s" n
  output %3 -> s0
  output %2 -> s1
  output %2 -> s2
}
`, out.String())
	assert.Len(t, out.ListArgs, 2)
	assert.Panics(t, func() { g.Rewrite([]ir.NodeID{0, 3}, nil) }, "an operand's node is missing")
	assert.Panics(t, func() { g.Rewrite([]ir.NodeID{1, 0, 2, 3, 4}, nil) }, "a use comes first")
}

// TestBare checks that neither of two graphs that share what a third knows about sizes changes it or the other.
func TestBare(t *testing.T) {
	given, err := ir.Parse(`
graph model.py:1 sync {
  dims a=6@0 b=6@1 c=6@2 d=12@3 e=12@4
  require a = c
  %0: f32[a,b,c,d,e] = input 0
  output %0 -> s1
}`)
	require.NoError(t, err)
	b, c, d, e := ir.SymDim(1), ir.SymDim(2), ir.SymDim(3), ir.SymDim(4)
	require.True(t, given.UnifyDims(d, e))
	given.Canonicalize()
	before := given.String()
	one, other := given.Bare(), given.Bare()
	require.True(t, one.Same(d, e))
	require.True(t, one.UnifyDims(b, c))
	one.Canonicalize()
	require.Equal(t, []ir.Dim{b}, one.Requires[0].Right)
	quotient := other.AddQuotient([]ir.Dim{d}, []ir.Dim{c})
	other.Canonicalize()
	require.Equal(t, ir.SymDim(5), quotient)
	require.Len(t, one.Syms, 5)
	require.False(t, other.Same(b, c))
	require.False(t, given.Same(b, c))
	require.Equal(t, before, given.String())
}
