// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// cluster is a set of primitive nodes, own ops and a few calls, that one loop computes.
//
// Its points are those of its index space: sizes, without those of 1. A value runs along some or all dims of the space;
// along the others it is one number for many points. A cluster that reduces always reduces the same dims of its space,
// and the result of a reduction runs along the others. A cluster that does not reduce may have several spaces. Each has
// all points, in the same order under other sizes: a reshape is an index computed from another.
type cluster struct {
	spaces    [][]ir.Dim
	reduced   []bool // by dim of the space; nil: it does not reduce
	members   []ir.NodeID
	draws     bool // random numbers
	positions bool // positions along dims of the space
	list      bool // it is of one tensor of a list

	// Reshapes read one of its spaces in two dim orders. A kernel has one order for each, so the cluster has no kernel.
	// It is not split: its group runs as its operators.
	twoOrders bool
	// By space: the dim order of memory, as the members reshape it. Few clusters have one.
	orders map[int8][]int8
}

// mapping is the space of its cluster in which a value runs. By dim of the value, it has the dim of the space along
// which that dim runs, or -1 for size 1.
type mapping struct {
	space int8
	along []int8
}

const (
	// Primitives of a kernel. The time to compile a kernel and the registers it needs grow with them.
	maxPrims = 256
	// Cheap ops that are computed again for each element to which a smaller value broadcasts, rather than stored and
	// read.
	maxAgain = 6
	// Users of a value that are joined in pairs. A value with more users stays in a cache.
	maxSiblings = 8
)

// finder makes clusters of the primitives of an expansion.
type finder struct {
	expansion *decomp.Expansion
	g         *ir.Graph            // of primitives
	of        []ir.NodeID          // by node of g: the node of the given graph
	obstacles []obstacle           // by node of g
	fusable   []bool               // by node of g: a loop can hold it, and it does more than count elements
	counts    []bool               // by node of g: it only counts elements
	prims     *dag                 // by node of g
	whole     *dag                 // by node of the given graph
	segment   []int32              // by node of g: the number of effects before it
	clusters  []*cluster           // by node of g that stands for its vertex of prims
	mappings  []mapping            // by value of g
	points    []mapping            // by node of g: where its loop runs, by the dims of its result (reductions: operand)
	users     [][]ir.NodeID        // by value of g
	output    []bool               // by value of g
	windows   map[ir.NodeID]window // of views
	reshaped  map[ir.ValueID]bool  // results that others use in other sizes, see reshapes
	reads     []catalogue.Point    // by node of g: how a call reads its operands
	requires  []required
	refused   []refusal
	unguarded string // a reason that does not count, set by tests only
	room      room
}

// required is an equality of sizes on which a merge relies, for a node of the given graph.
type required struct {
	of ir.NodeID
	ir.Require
}

// refusal is two primitives, one an operand of the other, that stay in two clusters.
type refusal struct {
	from, to ir.NodeID
	why      string
}

// single makes the cluster of one primitive, and maps its results.
func (f *finder) single(id ir.NodeID) {
	g, n := f.g, &f.g.Nodes[id]
	over := g.Types[n.First].Dims
	reduce := ir.Info(n.Op).Kind == ir.KindReduce
	if reduce {
		over = g.Types[g.Args[n.ArgLo].V].Dims
	}
	c := &f.room.clusters.take(1)[0]
	*c = cluster{members: f.room.members.take(1), draws: n.Flags&ir.FlagRNG != 0, list: f.expansion.List[f.of[id]]}
	c.members[0] = id
	c.positions = n.Op == ir.OpCall && g.CallName(id) == decomp.Iota
	space := f.room.dims.take(len(over))[:0]
	along := f.room.along.take(len(over))
	for i, d := range over {
		along[i] = -1
		if !g.Same(d, ir.Const(1)) {
			along[i] = int8(len(space))
			space = append(space, g.Find(d))
		}
	}
	c.spaces = f.room.spaces.take(1)
	c.spaces[0] = space
	f.points[id] = mapping{along: along}
	if reduce {
		c.reduced = make([]bool, len(space))
		reduced, keep := reducedDims(g, n, len(over)), g.Args[n.ArgLo+2].V != 0
		var kept []int8
		for i, a := range along {
			switch {
			case reduced[i] && a >= 0:
				c.reduced[a] = true
			case !reduced[i]:
				kept = append(kept, a)
				continue
			}
			if keep {
				kept = append(kept, -1)
			}
		}
		along = kept
		if !slices.Contains(c.reduced, true) {
			c.reduced = nil
		}
	}
	for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
		f.mappings[v] = mapping{along: along}
	}
	f.clusters[id] = c
}

// room holds the many small slices of clusters.
type room struct {
	clusters slab[cluster]
	members  slab[ir.NodeID]
	spaces   slab[[]ir.Dim]
	dims     slab[ir.Dim]
	along    slab[int8]
}

// slab gives out slices of one array, and makes another array when the first is used up.
type slab[T any] struct{ free []T }

func (s *slab[T]) take(n int) []T {
	if len(s.free) < n {
		s.free = make([]T, max(n, 1024))
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// reducedDims reports by dim of its operand whether a reduction reduces it.
func reducedDims(g *ir.Graph, n *ir.Node, rank int) []bool {
	reduced := make([]bool, rank)
	list := g.List(g.Args[n.ArgLo+1])
	for i := range reduced {
		reduced[i] = len(list) == 0
	}
	for _, a := range list {
		reduced[a.V] = true
	}
	return reduced
}

// onlyCounts reports whether a node only counts elements: a sum of a fill, which is known without a loop, or a fill or
// cast that only such sums use.
func (f *finder) onlyCounts(id ir.NodeID) bool {
	n := &f.g.Nodes[id]
	switch n.Op {
	case ir.OpSum:
		return f.g.Nodes[f.g.Def[f.g.Args[n.ArgLo].V]].Op == ir.OpFill
	case ir.OpFill, ir.OpCast:
		if f.output[n.First] || len(f.users[n.First]) == 0 {
			return false
		}
		for _, user := range f.users[n.First] {
			if op := f.g.Nodes[user].Op; f.fusable[user] || op != ir.OpSum && op != ir.OpFill {
				return false
			}
		}
		return true
	}
	return false
}

// total reports whether a cluster reduces all of its points.
func (c *cluster) total() bool {
	return c.reduced != nil && len(c.spaces) == 1 && !slices.Contains(c.reduced, false)
}

func (f *finder) cluster(id ir.NodeID) *cluster { return f.clusters[f.prims.find(int(id))] }

func (f *finder) window(view ir.NodeID) window {
	w, ok := f.windows[view]
	if !ok {
		w, _ = windowOf(f.g, view)
		f.windows[view] = w
	}
	return w
}
