// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// written parses a graph in which record 1 makes %2 of storage 0, record 2 picks rows, and record 3 makes %4 of storage
// 0.
func written(t *testing.T, pick string) *Graph {
	g, err := Parse(`graph g none {
  dims n=64@0 m=8@1
  %0: f32[m,n] = input 0
  %1: i64[n]   = input 1
  %2: f32[m,n] = relu %0
  %3: f32[n,n] = ` + pick + `
  %4: f32[m,n] = exp %2
  output %4 -> s0
  output %3 -> s2
}
`)
	require.NoError(t, err)
	for i, record := range []int32{0, 0, 1, 2, 3} {
		g.Nodes[i].Record = record
	}
	g.Versions = []Version{{0, 1, 2}, {0, 3, 4}, {2, 2, 3}}
	return g
}

func TestKept(t *testing.T) {
	g := written(t, "aten.index_select %0 0 %1")
	require.Equal(t, []Kept{{Value: 2, Until: 3}}, g.Kept(), "the rows may be out of range while %2 is the content")
	require.Equal(t, g.Kept(), g.Clone().Kept(), "a copy has the versions, too")
	require.Empty(t, written(t, "aten.mm %0 %0").Kept(), "a product checks no values")

	g = written(t, "mylib.pick %0 %1")
	require.Len(t, g.Kept(), 1, "an operator of the user may check values")
	g.Versions[0].Record = 2
	require.Empty(t, g.Kept(), "the failing op comes before both versions")

	g = written(t, "aten.index_select %0 0 %1")
	dropped := g.Rewrite([]NodeID{0, 1, 3, 4}, []ValueID{0, 1, 0, 3, 4})
	require.Equal(t, []Version{{0, 1, 0}, {0, 3, 3}, {2, 2, 2}}, dropped.Versions, "%0 has replaced %2")
	g.Outputs = g.Outputs[1:]
	require.Equal(t, NoValue, g.Rewrite([]NodeID{0, 1, 3}, nil).Versions[0].Value, "nothing makes %2")
}

func TestMayFail(t *testing.T) {
	for op, want := range map[string]bool{
		"aten.remainder.Tensor %0 %0": false, "aten.gather %0 1 %1 false": true, "aten.relu6 %0": false,
	} {
		g := written(t, op)
		require.Equal(t, want, g.MayFail(3), op)
	}
	g, err := Parse(`graph g none {
  %0: i64[] = input 0
  %1: i64[] = aten.remainder.Tensor %0 %0
  output %1 -> s1
}
`)
	require.NoError(t, err)
	require.True(t, g.MayFail(1), "of integers")
}
