// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// cse merges values that are computed twice: the users of the second take the first. The second node is left without
// users.
//
// It is valid because equal pure nodes have equal results. It leaves alone
//   - nodes with flags: two draws of random numbers differ, and two effects both happen;
//   - calls that write: two writes to equal contents have equal values, but each is done in place on its own buffer;
//   - storages that a call writes in place: two calls of zeros are two buffers as soon as one of them is written, and a
//     call that gets one value twice, to write and to read, would get one buffer twice;
//   - uninitialised contents, which are usually written in two different ways;
//   - equal operands with different parameters or symbols: the values may differ in the next call.
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
		results := written[n.First : n.First+ir.ValueID(n.N)]
		if !mergeable(g, id) || slices.Contains(results, true) {
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

// writtenRoots reports for each value whether a call writes it, or a window on it.
func writtenRoots(g *ir.Graph) []bool {
	written := make([]bool, len(g.Types))
	for id := range g.Nodes {
		g.Uses(ir.NodeID(id), func(v ir.ValueID, write bool) {
			if write {
				written[g.Root(v)] = true
			}
		})
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

// mergeable reports whether a node with equal operands has equal results.
func mergeable(g *ir.Graph, id ir.NodeID) bool {
	n := &g.Nodes[id]
	switch ir.Info(n.Op).Pure {
	case ir.Pure:
		return true
	case ir.ByFlags:
		return n.Flags == 0 && g.NumWrites(id) == 0 && !g.Row(id).Uninitialised
	}
	return false
}
