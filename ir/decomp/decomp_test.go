// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestGolden writes the graph of each case out. Its meaning is compared with PyTorch's in
// tests/e2e/decompositions.py.
func TestGolden(t *testing.T) {
	golden.Run(t, "testdata", func(t *testing.T, c *golden.Case) {
		g, err := ir.Parse(c.File("in.ir"))
		require.NoError(t, err)
		require.NoError(t, ir.Verify(g))
		before := g.String()
		e := decomp.Expand(g, nil)
		require.NoError(t, ir.Verify(e.Graph))
		assert.Equal(t, before, g.String(), "the graph given stays")
		require.Len(t, e.Of, len(e.Graph.Nodes))
		var whole strings.Builder
		for id, why := range e.Whole {
			if why != "" {
				fmt.Fprintf(&whole, "%s: %s\n", g.CallName(ir.NodeID(id)), why)
			}
		}
		c.Check("out.ir", e.Graph.String())
		c.Check("whole.txt", whole.String())
	})
}

// TestKeep: a call in keep stays whole, for the reason given.
func TestKeep(t *testing.T) {
	g, err := ir.Parse("graph a b {\n  %0: f32[2] = input 0\n  %1: f32[2] = aten.silu %0\n  output %1 -> s1\n}\n")
	require.NoError(t, err)
	e := decomp.Expand(g, map[ir.NodeID]string{1: "so be it"})
	assert.Equal(t, g.String(), e.Graph.String())
	assert.Equal(t, []string{"", "so be it"}, e.Whole)
}

// TestRowsAreTested: the end-to-end test has a case for each operator of the table.
func TestRowsAreTested(t *testing.T) {
	test, err := os.ReadFile("../../tests/e2e/decompositions.py")
	require.NoError(t, err)
	for _, r := range catalogue.ATenRows() {
		if len(r.Cases) > 0 {
			assert.True(t, strings.Contains(string(test), `"`+r.Name+`"`), r.Name)
		}
	}
}
