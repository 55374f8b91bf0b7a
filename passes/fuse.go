// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
)

// fuse puts the nodes that kernels had better compute together in a row, as groups. The nodes stay what they are: a
// group means the same as its nodes, one by one. Which they are, fusion says.
//
// Wrong, and not done: loops of other sizes, a fold of what a fold has made, a value that two users need in two orders,
// anything with another node that has to run in between, across an effect.
func fuse(g *ir.Graph, r *rules) *ir.Graph {
	if len(g.Groups) > 0 { // those of another run
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
	out.Groups, out.Requires = found.Groups, found.Requires
	for i, d := range found.Equal { // the kernels of a group see no operators but its own
		out.UnifyDims(ir.SymDim(i), d)
	}
	out.Canonicalize()
	return out
}

// Refusal is two nodes, of which the one makes an operand of the other, that kernels could compute together and don't,
// or one that no kernel computes.
type Refusal struct {
	From, To string // the nodes as they are printed; From is "" if it is about one
	Origin   ir.Origin
	Why      string
}

// String is the refusal in lines of its own.
func (r Refusal) String() string {
	if r.From == "" {
		return fmt.Sprintf("%s\n    %s", r.To, r.Why)
	}
	return fmt.Sprintf("%s\n%s\n    %s", r.From, r.To, r.Why)
}

// explain notes why what is not in one group isn't.
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
