// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestGuards takes away each reason against merging, one at a time, and requires that a case of the pass fuse fails
// then: its groups differ, or the merge is impossible.
func TestGuards(t *testing.T) {
	var cases []*ir.Graph
	golden.Run(t, "../passes/testdata/fuse", func(t *testing.T, c *golden.Case) {
		c.Skip("out.ir", "why.txt")
		for _, key := range []string{"pass", "kernels", "expect", "expect-not"} {
			c.Words(key)
		}
		g, err := ir.Parse(c.File("in.ir"))
		require.NoError(t, err)
		if len(g.Groups) == 0 {
			cases = append(cases, g)
		}
	})
	caught := map[string]bool{}
	for _, g := range cases {
		want := fusion.Find(g)
		for _, r := range want.Refused {
			if r.Why == noIndex {
				continue
			}
			caught[r.Why] = caught[r.Why] || differs(g, r.Why, want)
		}
	}
	assert.GreaterOrEqual(t, len(caught), 8, "reasons that the cases have: %v", caught)
	for why, is := range caught {
		assert.True(t, is, "every case of fuse passes without the guard %q", why)
	}
}

// noIndex is no guard: without a relation between the indices of two loops there is no merge to make.
const noIndex = "it reads a part of it, or in an order that no index of it has"

// differs reports whether a graph has other groups, or none at all, without a guard.
func differs(g *ir.Graph, why string, want *fusion.Groups) (is bool) {
	defer func() { is = recover() != nil || is }()
	got := fusion.Unguarded(g, why)
	return !slices.Equal(got.Order, want.Order) || !slices.Equal(got.Of, want.Of) ||
		!assert.ObjectsAreEqual(got.Groups, want.Groups)
}
