// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Loops are the loop nests of an expansion, in the order in which they can run.
type Loops struct {
	Loops []Loop
	nests *nests
	in    []int32 // by node of the expansion: its loop, -1 for none
}

// Loop is one of them.
type Loop struct {
	Frames  [][]ir.Dim  // its index space, without dims of size 1; more than one: the same points in another order
	Folds   []bool      // by dim of frame 0; nil: it folds none
	Members []ir.NodeID // the primitives, operands first
}

// Split finds the loop nests of an expansion of a graph.
func Split(e *decomp.Expansion, g *ir.Graph) *Loops {
	f := newNests(e, g)
	f.run()
	l := &Loops{nests: f, in: slices.Repeat([]int32{-1}, len(e.Graph.Nodes))}
	for _, at := range f.prims.order {
		if at < 0 || !f.fusable[at] || f.clusters[at] == nil {
			continue
		}
		c := f.clusters[at]
		members := slices.Clone(c.members)
		slices.Sort(members)
		for _, id := range members {
			l.in[id] = int32(len(l.Loops))
		}
		l.Loops = append(l.Loops, Loop{c.frames, c.folds, members})
	}
	return l
}

// Stated says whether a graph requires all that the loops take to be equal.
func (l *Loops) Stated(g *ir.Graph) bool {
	known := map[string]bool{}
	for _, r := range g.Requires {
		known[requireKey(g, r)] = true
	}
	for _, q := range l.nests.requires {
		if !known[requireKey(g, q.Require)] {
			return false
		}
	}
	return true
}

// In is the loop that computes a node of the expansion, -1 if none does.
func (l *Loops) In(id ir.NodeID) int { return int(l.in[id]) }

// Counts says whether a node only counts elements, which takes no loop: it is a sum of a fill, or what nothing but such sums is made of.
func (l *Loops) Counts(id ir.NodeID) bool { return l.nests.counts[id] }

// Place says where a value that a loop makes runs: in which of its frames, and along which dims of that; -1 for a dim of size 1.
func (l *Loops) Place(v ir.ValueID) (frame int, along []int8) {
	p := l.nests.places[v]
	return int(p.frame), p.along
}

// Sees says the same of argument index of a node, as its loop reads it.
func (l *Loops) Sees(user ir.NodeID, v ir.ValueID, index int) (frame int, along []int8, why string) {
	along, why = l.nests.sees(user, v, index)
	return int(l.nests.points[user].frame), along, why
}
