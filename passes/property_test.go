// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"bytes"
	"testing"

	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/graphs"
)

// TestPassesKeepMeaning runs random graphs of own ops before and after the passes, one by one and all together. Their
// inputs and numbers are the special values of all dtypes. It compares every byte of the outputs, except the bits of
// NaNs.
func TestPassesKeepMeaning(t *testing.T) {
	ran, changed := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Special(t)
		want, err := eval.Run(p.Graph, p.Params, p.Inputs)
		if err != nil {
			return // an integer division by zero, for example, which a pass may drop
		}
		ran++
		try := [][]string{nil}
		for _, pass := range passes.Pipeline() {
			try = append(try, []string{pass.Name})
		}
		for _, only := range try {
			out, err := passes.Run(p.Graph, passes.Options{Check: 3, Only: only})
			if err != nil {
				t.Fatalf("%v: %v\n%s", only, err, p.Graph)
			}
			if len(out.Nodes) < len(p.Graph.Nodes) {
				changed++
			}
			got, err := eval.Run(out, p.Params, p.Inputs)
			if err != nil {
				t.Fatalf("%v: %v\n%s\nbecomes\n%s", only, err, p.Graph, out)
			}
			if len(got) != len(want) {
				t.Fatalf("%v: %d outputs, not %d", only, len(got), len(want))
			}
			for _, o := range p.Graph.Outputs {
				slot, data := o.Slot, want[o.Slot]
				if !graphs.Same(p.Graph.Types[o.Value].DType, got[slot], data) {
					t.Fatalf("%v: slot %d is %v, not %v\n%s\nbecomes\n%s", only, slot, got[slot], data, p.Graph, out)
				}
			}
		}
	})
	if ran < 50 || changed < 50 {
		t.Errorf("only %d graphs ran, and passes changed %d", ran, changed)
	}
}

// TestPassesOnCalls: graphs with calls stay valid, and nodes with flags stay in order.
func TestPassesOnCalls(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := graphs.Any(t)
		out, err := passes.Run(g, passes.Options{Check: 3})
		if err != nil {
			t.Fatalf("%v\n%s", err, g)
		}
		if a, b := flagged(g), flagged(out); a != b {
			t.Fatalf("flagged nodes\n%s\nbecome\n%s", a, b)
		}
	})
}

// flagged lists the names and flags of nodes with flags.
func flagged(g *ir.Graph) string {
	var b bytes.Buffer
	for id := range g.Nodes {
		if n := &g.Nodes[id]; n.Flags != 0 {
			b.WriteString(g.CallName(ir.NodeID(id)))
			b.WriteByte('0' + byte(n.Flags))
			b.WriteByte('\n')
		}
	}
	return b.String()
}
