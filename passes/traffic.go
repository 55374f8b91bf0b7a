// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// Traffic is how many bytes a graph reads and writes, with the sizes first seen: each node, or each group as one, reads what others have
// made once and writes what others need. Views move nothing; a write to a part of a storage, that part.
func Traffic(g *ir.Graph) int64 {
	var total int64
	eachMoved(g, func(t ir.Type, times int64) { total += times * bytesOf(g, t) })
	return total
}

// eachMoved calls f with each tensor that Traffic counts, and 1, or -1 if it is to be taken off.
func eachMoved(g *ir.Graph, f func(t ir.Type, times int64)) {
	unit := func(id ir.NodeID) int64 { // a group, or a node by itself
		if k := g.Nodes[id].Group; k != 0 {
			return -int64(k)
		}
		return int64(id)
	}
	used := make([]bool, len(g.Types)) // by another unit, or afterwards
	for _, o := range g.Outputs {
		used[o.Value] = true
	}
	seen := map[[2]int64]bool{}
	for i := range g.Nodes {
		id := ir.NodeID(i)
		if g.Nodes[i].Op == ir.OpView {
			continue
		}
		for _, v := range g.Operands(id) {
			root := g.Root(v)
			if unit(g.Def[root]) == unit(id) {
				continue
			}
			used[root] = true
			if key := [2]int64{unit(id), int64(v)}; !seen[key] {
				seen[key] = true
				f(g.Types[v], 1)
			}
		}
	}
	for v, is := range used {
		switch n := &g.Nodes[g.Def[v]]; n.Op {
		case ir.OpInput, ir.OpEmpty, ir.OpParam, ir.OpScalar, ir.OpConst:
		case ir.OpUpdate:
			f(g.Types[g.Args[n.ArgLo+1].V], 1)
			f(g.Types[v], -1) // its base stays where it is
		default:
			if is {
				f(g.Types[v], 1)
			}
		}
	}
}

// bytesOf is the size of a tensor's elements, with the sizes first seen; those that a stride of 0 repeats count once.
func bytesOf(g *ir.Graph, t ir.Type) int64 {
	if !t.DType.Valid() {
		return 0
	}
	n := int64(t.DType.Size())
	for i, d := range t.Dims {
		if t.Strides == nil || !g.Same(t.Strides[i], ir.Const(0)) {
			n *= g.First(d)
		}
	}
	return n
}

// Ungrouped is a graph without its groups.
func Ungrouped(g *ir.Graph) *ir.Graph {
	out := g.Clone()
	for i := range out.Nodes {
		out.Nodes[i].Group = 0
	}
	out.Groups = nil
	return out
}
