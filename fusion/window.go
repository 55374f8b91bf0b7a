// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// window says where the elements of a view lie among those of the value that it is a view of.
type window struct {
	// By dim of the view: the dim of the value that it runs along, -1 for one of size 1 and for one that repeats.
	along []int8
	// The view has each element once, but its dims are not those of the value.
	flat bool
	// What has to be equal for that, beyond what is known.
	requires []ir.Require
	found    bool
}

// windowOf finds how a view runs over its root. Not found: it has a part of it, or has elements twice in no dim of its
// own.
//
// What it takes to be equal it requires, and takes only what is equal in the sizes first seen: a transposed view has
// strides that are products of sizes, which no symbol of its own says.
func windowOf(g *ir.Graph, id ir.NodeID) (window, bool) {
	n := &g.Nodes[id]
	view, root := g.Types[n.First], g.Types[g.Root(n.First)]
	if view.DType != root.DType || !g.Same(n.Offset, ir.Const(0)) {
		return window{}, false
	}
	w := window{along: make([]int8, len(view.Dims)), found: true}
	f := &facts{g: g}
	from, to := f.steps(root, false), f.steps(view, true)
	for i := range w.along {
		w.along[i] = -1
	}
	same := len(from) == len(to)
	for i := range from {
		if same {
			same = f.g.First(from[i].size) == f.g.First(to[i].size) && f.product(from[i].stride) == f.product(to[i].stride)
		}
	}
	if !same {
		// Dense both: each place of memory once.
		f.requires = nil
		w.flat = len(f.steps(view, false)) == len(to) && f.dense(from) && f.dense(to) && f.equal(sizes(from), sizes(to))
		w.requires = f.requires
		w.found = w.flat
		return w, w.found
	}
	for i := range from {
		if !f.equal([]ir.Dim{from[i].size}, []ir.Dim{to[i].size}) || !f.equal(from[i].stride, to[i].stride) {
			return window{}, false
		}
		w.along[to[i].dim] = from[i].dim
	}
	w.requires = f.requires
	return w, true
}

// step is one dim of a geometry.
type step struct {
	dim    int8
	size   ir.Dim
	stride []ir.Dim // a product
}

func sizes(steps []step) []ir.Dim {
	out := make([]ir.Dim, len(steps))
	for i, s := range steps {
		out[i] = s.size
	}
	return out
}

// facts collects what has to be equal.
type facts struct {
	g        *ir.Graph
	requires []ir.Require
}

func (f *facts) product(dims []ir.Dim) int64 {
	n := int64(1)
	for _, d := range dims {
		n *= f.g.First(d)
	}
	return n
}

// equal notes that two products are equal, if they were.
func (f *facts) equal(a, b []ir.Dim) bool {
	if f.product(a) != f.product(b) {
		return false
	}
	a, b = f.g.Reduce(a, b)
	if len(a)+len(b) > 0 {
		f.requires = append(f.requires, ir.Require{Left: a, Right: b})
	}
	return true
}

// steps lists the dims of a geometry by stride, the largest first; without those of size 1 and, if repeats may be,
// those of stride 0.
func (f *facts) steps(t ir.Type, repeats bool) []step {
	var out []step
	for i, d := range t.Dims {
		if f.g.Same(d, ir.Const(1)) || repeats && t.Strides != nil && f.g.Same(t.Strides[i], ir.Const(0)) {
			continue
		}
		s := step{dim: int8(i), size: d}
		if t.Strides != nil {
			s.stride = t.Strides[i : i+1]
		} else {
			s.stride = t.Dims[i+1:]
		}
		out = append(out, s)
	}
	if t.Strides != nil {
		slices.SortStableFunc(out, func(a, b step) int { return int(f.product(b.stride) - f.product(a.stride)) })
	}
	return out
}

// dense says whether steps fill their memory without gaps, and notes what has to be equal for that.
func (f *facts) dense(steps []step) bool {
	for i, s := range steps {
		if !f.equal(s.stride, sizes(steps[i+1:])) {
			return false
		}
	}
	return true
}
