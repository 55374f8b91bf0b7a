// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// cluster is primitive nodes, own ops and a few calls, that one loop nest computes.
//
// Its points are the index space of its frame: sizes, without those of 1. A value runs along some or all dims of the frame; along
// the others it is one number for many points. A cluster that folds, folds some dims of its frame, always the same ones: what
// a fold has made runs along the rest. A cluster that doesn't fold may have several frames, each with all of its elements in another
// order, for a reshape is an index computed from another.
type cluster struct {
	frames  [][]ir.Dim
	folds   []bool // by dim of the frame, nil: it doesn't fold
	members []ir.NodeID
	draws   bool // random numbers
	parts   bool // has values that are a part of the frame, as the operands of cat are
	list    bool // of one tensor of a list
}

// place says where a value runs: in which frame of its cluster, and along which of its dims each dim of the value; -1 for one of size 1.
type place struct {
	frame int8
	along []int8
}

const (
	// How many primitives a kernel has: what it takes to compile it grows with them, and so does what it keeps in registers.
	maxPrims = 256
	// How many cheap ops are computed again for each element that a smaller value broadcasts to, rather than stored and read.
	maxAgain = 6
	// How many users of a value are looked at in pairs: what more of them read stays in a cache anyhow.
	maxSiblings = 8
)

// nests makes clusters of the primitives of an expansion.
type nests struct {
	expansion *decomp.Expansion
	g         *ir.Graph // of primitives
	of        []ir.NodeID
	fusable   []bool // by node of g: a primitive, else a leaf, about memory, or an operator that no kernel computes
	counts    []bool // by node of g: it only counts elements
	prims     *dag   // by node of g
	whole     *dag   // by node of the graph that was expanded
	segment   []int32
	clusters  []*cluster // by node of g: of the vertex that it is
	places    []place    // by value of g
	points    []place    // by node of g: where its loop runs, in the dims of its result or, of a reduction, of its operand
	users     [][]ir.NodeID
	output    []bool               // by value of g
	windows   map[ir.NodeID]window // of views
	reads     []catalogue.Point    // by node of g: how a call reads its operands
	requires  []required
	refused   []refusal
	room      room
}

// required is what a merge takes to be equal, for a node of the graph that was expanded.
type required struct {
	of ir.NodeID
	ir.Require
}

// refusal is two primitives, the one an operand of the other, that are in two clusters.
type refusal struct {
	from, to ir.NodeID
	why      string
}

// kernelDType says whether kernels compute in a dtype.
func kernelDType(d ir.DType) bool {
	return d.Is(ir.Bools | ir.Ints | ir.Floats)
}

// primitive reports whether kernels compute a node. For a call, reads is how it reads its operands.
func primitive(g *ir.Graph, id ir.NodeID, reads catalogue.Point) bool {
	n := &g.Nodes[id]
	switch {
	case n.Op == ir.OpCall:
		if reads == catalogue.NoPoint || n.Flags&^ir.FlagRNG != 0 {
			return false
		}
	case !n.Op.Own():
		return false
	}
	for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
		if !kernelDType(g.Types[v].DType) {
			return false
		}
	}
	for _, v := range g.Operands(id) {
		if !kernelDType(g.Types[v].DType) {
			return false
		}
	}
	return true
}

// single makes the cluster of one primitive, and places its results.
func (f *nests) single(id ir.NodeID) {
	g, n := f.g, &f.g.Nodes[id]
	over := g.Types[n.First].Dims
	reduce := ir.Info(n.Op).Kind == ir.KindReduce
	if reduce {
		over = g.Types[g.Args[n.ArgLo].V].Dims
	}
	c := &f.room.clusters.take(1)[0]
	*c = cluster{members: f.room.members.take(1), draws: n.Flags&ir.FlagRNG != 0, list: f.expansion.List[f.of[id]]}
	c.members[0] = id
	frame := f.room.dims.take(len(over))[:0]
	along := f.room.along.take(len(over))
	for i, d := range over {
		along[i] = -1
		if !g.Same(d, ir.Const(1)) {
			along[i] = int8(len(frame))
			frame = append(frame, g.Find(d))
		}
	}
	c.frames = f.room.frames.take(1)
	c.frames[0] = frame
	f.points[id] = place{along: along}
	if reduce {
		c.folds = make([]bool, len(frame))
		fold, keep := folded(g, n, len(over)), g.Args[n.ArgLo+2].V != 0
		var kept []int8
		for i, a := range along {
			switch {
			case fold[i] && a >= 0:
				c.folds[a] = true
			case !fold[i]:
				kept = append(kept, a)
				continue
			}
			if keep {
				kept = append(kept, -1)
			}
		}
		along = kept
		if !slices.Contains(c.folds, true) {
			c.folds = nil
		}
	}
	for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
		f.places[v] = place{along: along}
	}
	f.clusters[id] = c
}

// room is where the many small slices of clusters lie.
type room struct {
	clusters slab[cluster]
	members  slab[ir.NodeID]
	frames   slab[[]ir.Dim]
	dims     slab[ir.Dim]
	along    slab[int8]
}

// slab gives out slices of one array, and makes another when it is full.
type slab[T any] struct{ free []T }

func (s *slab[T]) take(n int) []T {
	if len(s.free) < n {
		s.free = make([]T, max(n, 1024))
	}
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// folded says by dim of its operand whether a reduction folds it.
func folded(g *ir.Graph, n *ir.Node, rank int) []bool {
	fold := make([]bool, rank)
	list := g.List(g.Args[n.ArgLo+1])
	for i := range fold {
		fold[i] = len(list) == 0
	}
	for _, a := range list {
		fold[a.V] = true
	}
	return fold
}

// onlyCounts says whether a node only counts elements: a sum of a fill, which is known without a loop, or what nothing but such sums is
// made of.
func (f *nests) onlyCounts(id ir.NodeID) bool {
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

func (f *nests) cluster(id ir.NodeID) *cluster { return f.clusters[f.prims.find(int(id))] }

func (f *nests) window(view ir.NodeID) window {
	w, ok := f.windows[view]
	if !ok {
		w, _ = windowOf(f.g, view)
		f.windows[view] = w
	}
	return w
}
