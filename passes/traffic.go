// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"math"
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// Traffic is how many bytes a graph reads and writes, with the sizes first seen: each node, or each group as one, reads what others have
// made once and writes what others need. Views move nothing; a write to a part of a storage, that part.
func Traffic(g *ir.Graph) int64 {
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
	var total int64
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
				total += bytesOf(g, g.Types[v])
			}
		}
	}
	for v, is := range used {
		switch n := &g.Nodes[g.Def[v]]; n.Op {
		case ir.OpInput, ir.OpEmpty, ir.OpParam, ir.OpScalar, ir.OpConst:
		case ir.OpUpdate:
			total += bytesOf(g, g.Types[g.Args[n.ArgLo+1].V]) - bytesOf(g, g.Types[v]) // its base stays where it is
		default:
			if is {
				total += bytesOf(g, g.Types[v])
			}
		}
	}
	return total
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

// Products estimates how many products of elements the whole operators of a graph sum, with the sizes first seen. For matrices of m x k,
// k x n and m x n it is m k n, the root of the product of their sizes, and so it is reckoned from the three largest tensors of each
// operator: exactly for mm, up to a small factor for batches and convolutions, too much for what multiplies nothing.
func Products(g *ir.Graph) int64 {
	var total float64
	var sizes []float64
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Op != ir.OpCall || n.Group != 0 {
			continue
		}
		sizes = sizes[:0]
		for _, v := range g.Operands(ir.NodeID(i)) {
			sizes = append(sizes, elements(g, v))
		}
		for k := range n.N {
			sizes = append(sizes, elements(g, n.First+ir.ValueID(k)))
		}
		slices.Sort(sizes)
		if top := sizes[max(0, len(sizes)-3):]; len(top) == 3 {
			total += math.Sqrt(top[0] * top[1] * top[2])
		}
	}
	return int64(min(total, math.MaxInt64/2))
}

func elements(g *ir.Graph, v ir.ValueID) float64 {
	n := 1.0
	for _, d := range g.Types[v].Dims {
		n *= float64(g.First(d))
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
