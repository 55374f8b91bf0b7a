// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// split makes loops of the clusters.
func (l *Group) split() {
	f := l.finder
	l.in = slices.Repeat([]int32{-1}, len(l.Graph.Nodes))
	for _, at := range f.prims.order {
		if at < 0 || !f.fusable[at] || f.clusters[at] == nil {
			continue
		}
		members := slices.Clone(f.clusters[at].members)
		slices.Sort(members)
		for _, id := range members {
			l.in[id] = int32(len(l.Loops))
		}
		l.Loops = append(l.Loops, Loop{Members: members})
	}
}

// stated reports whether the graph requires every equality of sizes on which the loops rely.
func (s *splitter) stated(f *finder) bool {
	if s.requires == nil {
		s.requires = map[string]bool{}
		for _, r := range s.g.Requires {
			s.requires[requireKey(s.g, r)] = true
		}
	}
	for _, q := range f.requires {
		if !s.requires[requireKey(s.g, q.Require)] {
			return false
		}
	}
	return true
}

// complete finds what a group reads, leaves and draws, and the spaces of its loops, or why it has no kernels.
func (l *Group) complete() (why string) {
	g := l.Graph
	l.Source, l.Leaves = map[ir.ValueID]ir.ValueID{}, map[ir.ValueID][]ir.ValueID{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		switch {
		case n.Op == ir.OpInput:
			l.Source[n.First] = ir.ValueID(n.Slot)
			l.Reads = append(l.Reads, ir.ValueID(n.Slot))
		case l.finder.obstacles[i] == drawn:
			l.Draws = append(l.Draws, ir.NodeID(i))
		case l.finder.obstacles[i] == checked:
			v := ir.ValueID(g.Args[n.ArgLo].V)
			if g.Nodes[g.Def[g.Root(v)]].Op != ir.OpInput && !g.Immediate(v) {
				return "one of its loops makes the indices, or the divisor, of another"
			}
			args := g.NodeArgs(ir.NodeID(i))
			same := func(id ir.NodeID) bool { return slices.Equal(g.NodeArgs(id), args) }
			if !slices.ContainsFunc(l.Checks, same) { // a loss and its gradient check the same targets
				l.Checks = append(l.Checks, ir.NodeID(i))
			}
		}
	}
	for _, o := range g.Outputs {
		v := o.Value
		if root := g.Root(v); l.Reshaped(root) {
			v = root
		}
		if def := g.Def[v]; l.in[def] < 0 && !slices.Contains(l.Draws, def) {
			return "it leaves what none of its kernels makes"
		}
		l.Leaves[v] = append(l.Leaves[v], ir.ValueID(o.Slot))
	}
	l.seen = make([][]int8, len(g.Args))
	l.counts = map[ir.ValueID][]ir.Dim{}
	for i := range l.Loops {
		if why = l.operands(i); why != "" {
			return why
		}
		if l.finder.cluster(l.Loops[i].Members[0]).twoOrders {
			return twoOrders
		}
		l.spaces(i)
	}
	return ""
}

// operands finds how the members of a loop read their operands.
func (l *Group) operands(loop int) string {
	g, f := l.Graph, l.finder
	for _, id := range l.Loops[loop].Members {
		n := &g.Nodes[id]
		for index, a := range g.NodeArgs(id) {
			v := ir.ValueID(a.V)
			if a.Kind != ir.ArgValue || g.Immediate(v) {
				continue
			}
			root := g.Root(v)
			switch {
			case f.counts[g.Def[v]]:
				if _, done := l.counts[v]; !done {
					dims, ok := counted(g, v)
					if !ok {
						return "it counts in other units than one"
					}
					l.counts[v] = dims
				}
				continue
			case l.In(g.Def[root]) == loop && root == v:
				continue // in a register
			}
			along, why := f.sees(id, v)
			if why != "" {
				return fmt.Sprintf("an operand of %s: %s", n.Op, why)
			}
			l.seen[int(n.ArgLo)+index] = along
		}
	}
	return ""
}

// counted are the dims that a sum of ones is the product of.
func counted(g *ir.Graph, v ir.ValueID) ([]ir.Dim, bool) {
	n := &g.Nodes[g.Def[v]]
	args := g.Args[n.ArgLo:n.ArgHi]
	fill := &g.Nodes[g.Def[args[0].V]]
	if n.Op != ir.OpSum || fill.Op != ir.OpFill {
		return nil, false
	}
	by := g.Def[g.Args[fill.ArgLo+1].V]
	if g.Nodes[by].Op != ir.OpConst || g.Args[g.Nodes[by].ArgLo] != (ir.Arg{Kind: ir.ArgInt, V: 1}) {
		return nil, false
	}
	dims := g.Types[args[0].V].Dims
	list := g.List(args[1])
	if len(list) == 0 {
		return dims, true
	}
	var out []ir.Dim
	for _, a := range list {
		out = append(out, dims[a.V])
	}
	return out, true
}

// spaces sets the index spaces of a loop. Of a loop that reduces, the dims that are kept come first.
func (l *Group) spaces(loop int) {
	at := &l.Loops[loop]
	c := l.finder.cluster(at.Members[0])
	at.order = make([][]int8, len(c.spaces))
	for s, space := range c.spaces {
		if at.order[s] = c.order(int8(s)); at.order[s] == nil {
			at.order[s] = make([]int8, len(space))
			next := int8(0)
			for _, reduced := range []bool{false, true} {
				for i := range space {
					if (s == 0 && c.reduced != nil && c.reduced[i]) == reduced {
						at.order[s][i] = next
						next++
					}
				}
			}
		}
		dims := make([]ir.Dim, len(space))
		for i, to := range at.order[s] {
			dims[to] = space[i]
		}
		at.Spaces = append(at.Spaces, dims)
	}
	for _, is := range c.reduced {
		if is {
			at.Reduced++
		}
	}
}

// Reshaped reports whether a value of Graph has other sizes than the values of the given graph that Leaves names. Both
// are row-major.
func (l *Group) Reshaped(v ir.ValueID) bool { return l.finder.reshaped[v] }

// In is the loop that computes a node of Graph, -1 if none does.
func (l *Group) In(id ir.NodeID) int { return int(l.in[id]) }

// Count returns the dims whose product a value of Graph is, if it only counts elements. That takes no loop.
func (l *Group) Count(v ir.ValueID) (dims []ir.Dim, is bool) {
	dims, is = l.counts[v]
	return dims, is
}

// Reduces reports whether a reduction has a dim to reduce that is not of size 1.
func (l *Group) Reduces(id ir.NodeID) bool {
	g := l.Graph
	n := &g.Nodes[id]
	dims := g.Types[g.Args[n.ArgLo].V].Dims
	for i, is := range reducedDims(g, n, len(dims)) {
		if is && !g.Same(dims[i], ir.Const(1)) {
			return true
		}
	}
	return false
}

// Mapping returns the space of its loop in which a value runs, and by dim of the value the dim of the space, or -1 for
// size 1.
func (l *Group) Mapping(v ir.ValueID) (space int, along []int8) {
	p := l.finder.mappings[v]
	return int(p.space), l.ordered(l.In(l.Graph.Def[v]), p.space, p.along)
}

// Sees returns the same for argument index of a member of a loop, if the loop does not have the argument in a register.
func (l *Group) Sees(user ir.NodeID, index int) (space int, along []int8) {
	s := l.finder.points[user].space
	return int(s), l.ordered(l.In(user), s, l.seen[int(l.Graph.Nodes[user].ArgLo)+index])
}

// ordered maps dims of a cluster's space to dims of its loop. What is no dim stays.
func (l *Group) ordered(loop int, space int8, along []int8) []int8 {
	order := l.Loops[loop].order[space]
	out := make([]int8, len(along))
	for i, d := range along {
		if out[i] = d; d >= 0 {
			out[i] = order[d]
		}
	}
	return out
}

// Stored lists by loop the values that it stores: those that others read after the group, each as often as leaves says,
// and those that later loops read. A loop that would store nothing need not run, and reads nothing.
func (l *Group) Stored(leaves map[ir.ValueID][]ir.ValueID) [][]ir.ValueID {
	g := l.Graph
	out := make([][]ir.ValueID, len(l.Loops))
	read := map[ir.ValueID]bool{} // by another loop
	for i := len(out) - 1; i >= 0; i-- {
		for _, id := range l.Loops[i].Members {
			n := &g.Nodes[id]
			for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
				times := len(leaves[v])
				if read[v] {
					times = max(times, 1)
				}
				for range times {
					out[i] = append(out[i], v)
				}
			}
		}
		if len(out[i]) == 0 {
			continue
		}
		for _, id := range l.Loops[i].Members {
			for _, v := range g.Operands(id) {
				root := g.Root(v)
				if from := l.In(g.Def[root]); from >= 0 && from != i {
					read[root] = true
				}
			}
		}
	}
	return out
}
