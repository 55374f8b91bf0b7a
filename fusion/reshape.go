// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// reshapes changes reductions of reshaped values, such as the gradient of a bias: sum (view x [f*g,e]) [0], where a
// loop makes x of sizes [f,g,e]. The reduction then reads x itself, and its result is reshaped instead: view (sum x
// [0,1]) [1,e]. So it can be in the loop that makes x. A reduction computes the same in both forms, since it combines
// the same elements, which lie in the same order.
func (f *finder) reshapes(given *ir.Graph) {
	for i := range f.fusable {
		if f.g.Nodes[i].Op == ir.OpView {
			f.lift(given, ir.NodeID(i))
		}
	}
	for i := 1; i < len(f.fusable); i++ {
		sum, view := ir.NodeID(i), ir.NodeID(i-1)
		n, from := &f.g.Nodes[i], &f.g.Nodes[i-1]
		if !f.fusable[i] || ir.Info(n.Op).Kind != ir.KindReduce || given.Nodes[f.of[i]].Op != n.Op ||
			from.Op != ir.OpView || f.of[i] != f.of[i-1] { // decomp gives each reduction of a view a view of its own
			continue
		}
		if root := f.g.Root(from.First); f.fusable[f.g.Def[root]] && f.g.Types[n.First].Strides == nil {
			f.reshape(given, sum, view, root)
		}
	}
}

// lift exchanges an op on one tensor x and a reshaping view of its result that is the only reader: view (neg x) becomes
// neg (view x). So the op is in the sizes of the view's readers, which may reduce some of its dims.
func (f *finder) lift(given *ir.Graph, view ir.NodeID) {
	g := f.g
	to := &g.Nodes[view]
	v := ir.ValueID(g.Args[to.ArgLo].V)
	def := g.Def[v]
	n := &g.Nodes[def]
	if !f.fusable[def] || ir.Info(n.Op).Kind != ir.KindElementwise || given.Nodes[f.of[def]].Op != n.Op ||
		f.output[v] || len(f.users[v]) != 1 || !f.window(view).flat {
		return
	}
	tensor := -1 // the argument that is x
	for i, a := range g.Args[n.ArgLo:n.ArgHi] {
		if a.Kind != ir.ArgValue || g.Immediate(ir.ValueID(a.V)) {
			continue
		}
		x := ir.ValueID(a.V)
		start := g.Root(x) == x || g.Same(g.Nodes[g.Def[x]].Offset, ir.Const(0))
		if tensor >= 0 || !start || f.fusable[g.Def[g.Root(x)]] || !g.SameType(g.Types[x], g.Types[v]) {
			return
		}
		tensor = i
	}
	if tensor < 0 || g.Types[v].Strides != nil || f.whole.check(int(f.of[def]), int(f.of[view]), far) != "" {
		return
	}
	f.whole.merge(int(f.of[def]), int(f.of[view]))
	at := uint32(len(g.Args))
	g.Args = append(g.Args, g.Args[n.ArgLo:n.ArgHi]...)
	x := g.Args[at+uint32(tensor)]
	g.Args[at+uint32(tensor)] = ir.Value(v)
	g.Args = append(g.Args, x)
	end := uint32(len(g.Args))
	to.Op, to.ArgLo, to.ArgHi, to.Offset, n.Offset = n.Op, at, end-1, n.Offset, to.Offset
	n.Op, n.ArgLo, n.ArgHi = ir.OpView, end-1, end
	g.Types[v] = g.Types[to.First]
	delete(f.windows, view)
	f.fusable[def], f.fusable[view] = false, true
	f.obstacles[def], f.obstacles[view] = idle, computed
}

// reshape exchanges a view of x and its reduction, which follows it, if the view only merges dims of x.
func (f *finder) reshape(given *ir.Graph, sum, view ir.NodeID, x ir.ValueID) {
	g := f.g
	n, from := &g.Nodes[sum], &g.Nodes[view]
	facts := &facts{g: g}
	merged, ok := facts.merged(g.Types[x], g.Types[from.First], from.Offset)
	if !ok {
		return
	}
	reduced := reducedDims(g, n, len(g.Types[from.First].Dims))
	var list []ir.Arg
	kept := []ir.Dim{}
	for i, to := range merged {
		if reduced[to] {
			list = append(list, ir.Arg{Kind: ir.ArgInt, V: int64(i)})
		} else {
			kept = append(kept, g.Types[x].Dims[i])
		}
	}
	if len(list) == 0 { // an empty list would be all dims
		return
	}
	of := int(f.of[sum])
	whole := int(given.Def[given.Operands(f.of[sum])[0]]) // the view of the given graph, which goes with the reduction
	if f.whole.check(whole, of, far) != "" {
		return
	}
	f.whole.merge(whole, of)
	dtype := g.Types[n.First].DType
	args := []ir.Arg{ir.Value(x), g.AddList(g.Args[n.ArgLo+1].Sub, list), {Kind: ir.ArgBool}, ir.Value(from.First)}
	at := uint32(len(g.Args))
	g.Args = append(g.Args, args...)
	from.Op, from.ArgLo, from.ArgHi = n.Op, at, at+3
	n.Op, n.Offset, n.ArgLo, n.ArgHi = ir.OpView, ir.Const(0), at+3, at+4
	g.Types[from.First] = ir.Type{DType: dtype, Dims: kept}
	for _, q := range facts.requires {
		f.requires = append(f.requires, required{f.of[sum], q})
	}
	f.fusable[view], f.fusable[sum] = true, false
	f.obstacles[view], f.obstacles[sum] = computed, idle
	f.reshaped[from.First] = true
}

// merged returns by dim of x the dim of a view of x into which it goes, if the view is all of x, both are row-major,
// and several dims of x become one. It notes the sizes that must be equal for that.
func (f *facts) merged(x, view ir.Type, offset ir.Dim) ([]int8, bool) {
	if x.Strides != nil || view.Strides != nil || x.DType != view.DType || !f.g.Same(offset, ir.Const(0)) {
		return nil, false
	}
	to := make([]int8, 0, len(x.Dims))
	for i, d := range view.Dims {
		if f.g.Same(d, ir.Const(1)) {
			continue
		}
		first := len(to)
		for product := int64(1); len(to) < len(x.Dims) && (len(to) == first || product < f.g.First(d)); {
			product *= f.g.First(x.Dims[len(to)])
			to = append(to, int8(i))
		}
		if !f.equal(x.Dims[first:len(to)], []ir.Dim{d}) {
			return nil, false
		}
	}
	return to, len(to) == len(x.Dims) && len(to) > len(slices.Compact(slices.Clone(to)))
}
