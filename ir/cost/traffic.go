// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cost

import (
	"math"

	"github.com/mycelya/mycelya/ir"
)

// Traffic is the number of bytes that a graph reads and writes, with the sizes first seen. A unit is a group, or a node
// outside groups. Each unit reads once what other units have made, and writes what others need. Views move nothing; a
// write to a part of a storage moves that part.
func Traffic(g *ir.Graph) int64 {
	var total int64
	eachMoved(g, func(t ir.Type, times int64) { total += times * bytesOf(g, t) })
	return total
}

// eachMoved calls f with each tensor that Traffic counts, and with 1 to add its bytes or -1 to subtract them.
func eachMoved(g *ir.Graph, f func(t ir.Type, times int64)) {
	unit := func(id ir.NodeID) int64 {
		if k := g.Nodes[id].Group; k != 0 {
			return -int64(k)
		}
		return int64(id)
	}
	used := make([]bool, len(g.Types)) // by another unit, or as an output
	for _, o := range g.Outputs {
		used[o.Value] = true
	}
	// The units that have read a value: the last one by value, and those before it.
	last, before := make([]int64, len(g.Types)), map[[2]int64]bool{}
	const none = math.MinInt64
	for v := range last {
		last[v] = none
	}
	for i := range g.Nodes {
		id := ir.NodeID(i)
		if g.Nodes[i].Op == ir.OpView {
			continue
		}
		reader := unit(id)
		g.Uses(id, func(v ir.ValueID, _ bool) {
			root := g.Root(v)
			if unit(g.Def[root]) == reader {
				return
			}
			used[root] = true
			if last[v] == reader || before[[2]int64{reader, int64(v)}] {
				return
			}
			if last[v] != none {
				before[[2]int64{last[v], int64(v)}] = true
			}
			last[v] = reader
			f(g.Types[v], 1)
		})
	}
	for v, is := range used {
		switch n := &g.Nodes[g.Def[v]]; n.Op {
		case ir.OpInput, ir.OpEmpty, ir.OpParam, ir.OpScalar, ir.OpConst:
		case ir.OpUpdate:
			f(g.Types[g.Args[n.ArgLo+1].V], 1)
			f(g.Types[v], -1) // the rest of the base stays in place
		default:
			if is {
				f(g.Types[v], 1)
			}
		}
	}
}

// bytesOf is the size of a tensor's elements, with the sizes first seen. Elements repeated by a stride of 0 count once.
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

// Kernels counts the launches of a graph: the kernels of its groups, and one for each other node that computes. Views,
// allocations and updates, which are done in place, launch nothing.
func Kernels(g *ir.Graph) int {
	n := 0
	for _, group := range g.Groups {
		n += len(group.Kernels)
	}
	for i := range g.Nodes {
		node := &g.Nodes[i]
		if node.Group == 0 && (node.Op == ir.OpCall && node.Flags&ir.FlagEffect == 0 || node.Op.Own()) {
			n++
		}
	}
	return n
}
