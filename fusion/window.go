// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// window is how the elements of a view lie among those of the viewed value.
type window struct {
	// By dim of the view: the dim of the value along which it runs, -1 for one of size 1 and for one that repeats.
	along []int8
	// The view has each element once, under other sizes.
	flat bool
	// Sizes that must be equal for that, beyond what is known.
	requires []ir.Require
	found    bool
}

// windowOf finds how a view runs over its root. It is not found if the view has only a part of it, or has elements
// twice along a dim of its own.
//
// Sizes that only happen to be equal become requirements, as far as the sizes first seen were equal: the strides of a
// transposed view are products of sizes that no symbol of its own names.
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
		// Both are dense: each element of memory once.
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

// facts collects the sizes that must be equal.
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

// equal notes that two products must be equal, and reports false if they were not.
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

// steps lists the dims of a geometry by stride, the largest first. Dims of size 1 are left out and, if repeats is true,
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

// dense reports whether steps fill their memory without gaps, and notes the sizes that must be equal for that.
func (f *facts) dense(steps []step) bool {
	for i, s := range steps {
		if !f.equal(s.stride, sizes(steps[i+1:])) {
			return false
		}
	}
	return true
}
