// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// cse gives the users of a value that is computed twice the first of the two. The second node is left without users.
//
// Valid because equal pure nodes have equal results. Wrong, and not done, for
//   - nodes with flags: two draws of random numbers differ, two effects are two;
//   - calls that write: two writes to equal contents are equal values too, but each is done in place on a buffer of its own;
//   - storages that a call writes in place: two calls of zeros are two buffers as soon as one is written, and a call that is given
//     one value twice, to write and to read, is given one buffer twice;
//   - uninitialised content, which is bound to be written in two different ways;
//   - equal operands through different parameters or symbols: that two had the same value once says nothing about the next call.
func cse(g *ir.Graph) *ir.Graph {
	to := make([]ir.ValueID, len(g.Types))
	for v := range to {
		to[v] = ir.ValueID(v)
	}
	written := writtenRoots(g)
	changed := false
	var key []byte
	first := make(map[string]ir.ValueID, len(g.Nodes))
	for i := range g.Nodes {
		id := ir.NodeID(i)
		n := &g.Nodes[i]
		if n.N == 0 || !mergeable(g, id) || slices.Contains(written[n.First:n.First+ir.ValueID(n.N)], true) {
			continue
		}
		key = g.AppendKey(key[:0], id, to)
		if v, ok := first[string(key)]; ok {
			changed = true
			for r := range n.N {
				to[n.First+ir.ValueID(r)] = v + ir.ValueID(r)
			}
			continue
		}
		first[string(key)] = n.First
	}
	if !changed {
		return g
	}
	return g.Rewrite(allNodes(g), to)
}

// writtenRoots says by value whether a call writes it or a window on it.
func writtenRoots(g *ir.Graph) []bool {
	written := make([]bool, len(g.Types))
	for id := range g.Nodes {
		for _, v := range g.Writes(ir.NodeID(id)) {
			written[g.Root(v)] = true
		}
	}
	return written
}

func allNodes(g *ir.Graph) []ir.NodeID {
	order := make([]ir.NodeID, len(g.Nodes))
	for i := range order {
		order[i] = ir.NodeID(i)
	}
	return order
}

// mergeable says whether a node with equal operands has equal results.
func mergeable(g *ir.Graph, id ir.NodeID) bool {
	n := &g.Nodes[id]
	switch ir.Info(n.Op).Pure {
	case ir.Pure:
		return true
	case ir.ByFlags:
		return n.Flags == 0 && len(g.Writes(id)) == 0 && !g.Row(id).Uninitialised
	}
	return false
}
