// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
)

// TestAlone: the reason why kernels do not compute a node is the same for Find and for a group that a text gives.
func TestAlone(t *testing.T) {
	wide := strings.Repeat("2,", 16) + "2"
	for _, c := range []struct{ dtype, node, why string }{
		{"f32[4]", "exp %0", ""},
		{"i64[4]", "mul %0 %0", ""},
		{"u16[4]", "copy %0", ""},
		{"u16[4]", "mul %0 %0", "no kernel computes mul of u16"},
		{"u64[4]", "copy %0", "no kernel computes copy of u64"},
		{"c64[4]", "mul %0 %0", "no kernel computes mul of c64"},
		{"i64[4]", "pow %0 %0", "no kernel computes pow of i64"},
		{"f32[4]", "pow %0 %1", "a power to a number that each call has anew"},
		{"f32[4]", "fill %0 %1", ""},
		{"f32[" + wide + "]", "exp %0", "a kernel has at most 16 dims"},
		{"f32[4]", "aten.bernoulli %0 none", "no kernel computes aten::bernoulli yet"},
		{"f32[4]", "aten.tril %0 0", "no kernel computes aten::tril: it has too few dims"},
		{"f32[4]", "aten.mm %0 %0", "no kernel computes aten::mm: it has no decomposition"},
	} {
		t.Run(c.dtype+" "+c.node, func(t *testing.T) {
			text := func(group string) string {
				node := fmt.Sprintf("%%2: %s = %s", c.dtype, c.node)
				if group != "" {
					node = fmt.Sprintf("fuse map {\n%s\n%%3: %s = copy %%2\n}", node, c.dtype)
				}
				return fmt.Sprintf("graph a sync {\n%%0: %s = input 0\n%%1: f64[] = param 0\n%s\noutput %%2 -> s1\n}\n",
					c.dtype, node)
			}
			g, err := ir.Parse(text(""))
			require.NoError(t, err)
			assert.Equal(t, c.why, fusion.Find(g).Alone(2))
			g, err = ir.Parse(text("group"))
			require.NoError(t, err)
			fused := fusion.Loops(g, fusion.Options{})
			require.Len(t, fused.Groups, 1)
			assert.Equal(t, c.why, fused.Groups[0].Why)
			assert.Equal(t, c.why == "", fused.Groups[0].Loops != nil)
		})
	}
}

// TestLoops: a softmax and the add before it are one loop over rows. Its reduced dim is the last one.
func TestLoops(t *testing.T) {
	g, err := ir.Parse(`graph a sync {
  dims n=64@0 m=8@1
  %0: f32[n,m] = input 0
  %1: f32[m] = input 1
  fuse rows {
    %2: f32[n,m] = add %0 %1
    %3: f32[n,m] = aten._softmax %2 0 false
  }
  output %3 -> s2
}
`)
	require.NoError(t, err)
	fused := fusion.Loops(g, fusion.Options{})
	require.Len(t, fused.Groups, 1)
	group := fused.Groups[0]
	assert.Empty(t, group.Why)
	assert.Equal(t, []ir.ValueID{0, 1}, group.Reads)
	require.Len(t, group.Loops, 1)
	loop := group.Loops[0]
	assert.Equal(t, 1, loop.Reduced)
	assert.Equal(t, [][]ir.Dim{{g.Types[0].Dims[1], g.Types[0].Dims[0]}}, loop.Spaces)
	stored := group.Stored(group.Leaves)
	require.Len(t, stored, 1)
	require.Len(t, stored[0], 1)
	space, along := group.Mapping(stored[0][0])
	assert.Equal(t, 0, space)
	assert.Equal(t, []int8{1, 0}, along)
}

// TestReshapes: a loop has no more spaces than a kernel may have.
func TestReshapes(t *testing.T) {
	var b strings.Builder
	b.WriteString("graph a sync {\n%0: f32[512] = input 0\n%1: f32[512] = exp %0\n")
	for i := 2; i < 22; i += 2 {
		d := 1 << (i / 2 % 8)
		dims := fmt.Sprintf("f32[%d,%d]", d*2, 256/d)
		fmt.Fprintf(&b, "%%%d: %s = view %%%d offset=0\n%%%d: %s = exp %%%d\n", i, dims, i-1, i+1, dims, i)
	}
	b.WriteString("output %21 -> s1\n}\n")
	g, err := ir.Parse(b.String())
	require.NoError(t, err)
	found := fusion.Find(g)
	whys := map[string]bool{}
	for _, r := range found.Refused {
		whys[r.Why] = true
	}
	assert.Equal(t, map[string]bool{"a kernel has at most 8 index spaces": true}, whys)
	assert.Len(t, found.Groups, 2)
}
