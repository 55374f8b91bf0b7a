// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// compiled compiles a graph whose nodes have these records.
func compiled(t *testing.T, text string, records []int32, versions []ir.Version, scratch ...bool) *codegen.Compiled {
	g, err := ir.Parse(text)
	require.NoError(t, err)
	require.Len(t, records, len(g.Nodes))
	for i, r := range records {
		g.Nodes[i].Record = r
	}
	g.Versions = versions
	c, err := codegen.Compile(g, codegen.Options{Scratch: append(scratch, make([]bool, 16)...)})
	require.NoError(t, err)
	return c
}

// TestContentsAreOverwrittenInOrder: storage 0 is overwritten in place, unless a step of an earlier record follows.
func TestContentsAreOverwrittenInOrder(t *testing.T) {
	const text = `graph g none {
  dims n=64@0
  %0: f32[n] = input 0
  %1: f32[n] = input 1
  %2: f32[n] = relu %0
  %3: f32[n] = aten.flip %1 ints[0]
  output %2 -> s0
  output %3 -> s2
}
`
	versions := func(of0, of2 int32) []ir.Version {
		return []ir.Version{{Slot: 0, Record: of0, Value: 2}, {Slot: 2, Record: of2, Value: 3}}
	}
	c := compiled(t, text, []int32{0, 0, 0, 1}, versions(0, 1), true)
	require.Contains(t, c.Text(), "aten::relu_(b0")
	require.Equal(t, []uint32{1, 2}, c.Program.Records)
	require.Equal(t, []program.Version{
		{Output: 0, Record: 1, Buffer: 1, Writer: 1}, {Output: 1, Record: 2, Buffer: 3, Writer: 2},
	}, c.Program.Versions)

	c = compiled(t, text, []int32{0, 0, 1, 0}, versions(1, 0), true)
	require.NotContains(t, c.Text(), "aten::relu_(b0", "the step of record 0 could fail after it")
}

// TestVersionsStayUntilAFailure: the content between two writes has a buffer when the op between them fails.
func TestVersionsStayUntilAFailure(t *testing.T) {
	const text = `graph g none {
  dims n=64@0
  %0: f32[n] = input 0
  %1: i64[n] = input 1
  %2: f32[n] = relu %0
  %3: f32[n] = aten.take %0 %1
  %4: f32[n] = exp %0
  output %4 -> s0
  output %3 -> s3
}
`
	c := compiled(t, text, []int32{0, 0, 0, 1, 2},
		[]ir.Version{{Slot: 0, Record: 0, Value: 2}, {Slot: 0, Record: 2, Value: 4}, {Slot: 3, Record: 1, Value: 3}}, true)
	steps := c.Text()
	require.Regexp(t, `(?s)b\d+:f32\[p0\] = aten::relu.*aten::take.*free b`, steps, "%2 is freed after the failing op")
	require.NotZero(t, c.Program.Versions[2], "and the program says where it is")
}
