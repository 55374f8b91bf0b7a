// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compare_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime/compare"
)

// parse reads a graph. records are those of its nodes.
func parse(t *testing.T, text string, records ...int32) *ir.Graph {
	g, err := ir.Parse(text)
	require.NoError(t, err)
	require.Len(t, records, len(g.Nodes))
	for i, r := range records {
		g.Nodes[i].Record = r
	}
	return g
}

// TestGraph: a group is computed as recorded and in own ops, from recorded operands, and compared node by node. A node
// that draws random numbers runs once. A value that depends on uninitialised memory is not compared.
func TestGraph(t *testing.T) {
	before := parse(t, `graph model.py:1 sync {
  dims a=4@0
  %0: f32[a] = input 0
  %1: f32[a] = exp %0
  %2: f32[a] = aten.silu %1
  %3: f64[] = param 1
  %4: f32[a], %5: b8[a] = aten.native_dropout %2 %3 true !rng
  %6: f32[] = aten.dot %4 %4
  %7: f32[a] = empty
  %8: f32[a] = relu %7
  %9: f32[a] = neg %8
  output %4 -> s1
  output %6 -> s2
  output %9 -> s3
}
`, 0, 1, 2, 3, 4, 5, 6, 7, 8)
	after := parse(t, `graph model.py:1 sync {
  dims a=4@0
  %0: f32[a]             = input 0
  %1: f64[]              = param 1
  fuse map {
    %2: f32[a]             = exp %0
    %3: f32[a]             = aten.silu %2
    %4: f32[a], %5: b8[a]  = aten.native_dropout %3 %1 true !rng
  }
  %6: f32[a]             = empty
  fuse map {
    %7: f32[a]             = relu %6
    %8: f32[a]             = neg %7
  }
  %9: f32[]              = aten.dot %4 %4
  output %4 -> s1
  output %9 -> s2
  output %8 -> s3
}
`, 0, 3, 1, 2, 4, 6, 7, 8, 5)
	g := compare.Graph(before, after)
	require.NoError(t, ir.Verify(g))
	text := g.String()
	require.Equal(t, 1, strings.Count(text, "!rng"))
	require.Equal(t, 1, strings.Count(text, "aten.dot"))
	_, added, _ := strings.Cut(text, "aten.zero_ ")
	var lines []string
	for line := range strings.Lines(added) {
		if _, op, ok := strings.Cut(line, " = "); ok && !strings.HasPrefix(op, "input") {
			lines = append(lines, strings.TrimSpace(op))
		}
	}
	assert.Equal(t, []string{
		"param 1",
		"exp %12",
		"mycelya.expect_close %11! %14 %1 [%12] \"exp\" 0.0001",
		"neg %1", "exp %16", "const 1", "add %17 %18", "div %1 %19",
		"mycelya.expect_close %15! %20 %2 [%1] \"aten::silu\" 0.0001",
		"const 1", "cast %2", "fill %23 %13", "sub %22 %24", // of the mask that was recorded
		"mul %2 %5", "const 0", "eq %25 %27", "const 0", "const 1", "div %30 %25", "where %28 %29 %31", "cast %32",
		"mul %26 %33",
		"mycelya.expect_close %21! %34 %4 [%2] \"aten::native_dropout\" 0.0001",
		"empty", "relu %36", "neg %8",
		"mycelya.after %4! %35", "mycelya.after %6! %35", "mycelya.after %9! %35",
	}, lines)
	assert.Equal(t, before.Outputs[1].Slot, g.Outputs[1].Slot)
}
