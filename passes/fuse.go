// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
)

// fuse makes groups: it makes the nodes adjacent that kernels compute together. Package fusion chooses them. A group
// means the same as its nodes, one by one.
//
// It would be wrong, and is not done, across loops of different sizes, for a reduction of a reduction's result, for a
// value that two users read in two dim orders, around a node that must run between, and across an effect.
func fuse(g *ir.Graph, r *rules) *ir.Graph {
	if len(g.Groups) > 0 { // groups of an earlier run
		g = g.Ungrouped()
	}
	found := fusion.Find(g)
	if r.explain {
		explain(g, r, found)
	}
	if len(found.Groups) == 0 {
		return g
	}
	out := g.Rewrite(found.Order, nil)
	for i, id := range found.Order {
		out.Nodes[i].Group = found.Of[id]
	}
	news := len(found.Requires) > len(out.Requires)
	out.Groups, out.Requires = found.Groups, found.Requires
	for i, d := range found.Equal { // the kernels of a group see only its own operators
		if s := ir.SymDim(i); !out.Same(s, d) {
			news = true
			out.UnifyDims(s, d)
		}
	}
	if news {
		out.Canonicalize()
	}
	return out
}

// Refusal is why two nodes, one an operand of the other, are in no loop together, or why kernels do not compute a node.
type Refusal struct {
	From, To string // the nodes as text; From is "" if it is about one node
	Origin   ir.Origin
	Why      string
}

// String is the refusal as lines.
func (r Refusal) String() string {
	if r.From == "" {
		return fmt.Sprintf("%s\n    %s", r.To, r.Why)
	}
	return fmt.Sprintf("%s\n%s\n    %s", r.From, r.To, r.Why)
}

// explain notes why nodes are not in one group.
func explain(g *ir.Graph, r *rules, found *fusion.Groups) {
	group := found.Of
	text := g.NodeStrings()
	for i := range g.Nodes {
		id := ir.NodeID(i)
		if group[id] != 0 {
			continue
		}
		if why := found.Alone(id); why != "" {
			r.refused = append(r.refused, Refusal{To: text(id), Origin: g.Nodes[id].Origin, Why: why})
		}
	}
	seen := map[[2]ir.NodeID]bool{}
	for _, one := range found.Refused {
		from, to := one.From, one.To
		if from == to || seen[[2]ir.NodeID{from, to}] || group[from] != 0 && group[from] == group[to] {
			continue
		}
		seen[[2]ir.NodeID{from, to}] = true
		r.refused = append(r.refused, Refusal{text(from), text(to), g.Nodes[to].Origin, one.Why})
	}
}
