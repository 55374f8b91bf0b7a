// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"slices"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

const (
	comm     = "mycelya::comm_"
	commWait = comm + "wait"
)

// overlap moves each wait for a collective down to the first use of what the collective reads or writes, so that
// workers exchange elements while they compute. DDP waits for a part of the gradients when the backward has just begun
// the exchange, and uses it after the backward.
//
// It is valid because a wait computes nothing: the elements are there after it, wherever it is. Collectives begin in
// their old order, which all workers share. A wait does not go past other effects and nodes that may fail. It does go
// past writes to storages from before: if the exchange fails, they have happened, as on other devices that compute
// while they exchange.
func overlap(g *ir.Graph) *ir.Graph {
	if !slices.Contains(g.Strings, commWait) {
		return g
	}
	m := newMover(g)
	end := ir.NodeID(len(g.Nodes))
	uses := make([]ir.NodeID, len(g.Types)) // by root: the first later node that uses it
	for r := range uses {
		uses[r] = end
	}
	before := make([][]ir.NodeID, end+1) // by node: waits
	stop := end
	for i := range end {
		id := end - 1 - i
		n := &g.Nodes[id]
		if isCall(g, id, commWait) {
			to := stop
			for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
				to = min(to, uses[v])
			}
			g.Uses(id, func(v ir.ValueID, _ bool) { to = min(to, uses[m.root[v]]) })
			before[to] = append(before[to], id)
		} else if g.MayFail(id) || n.Flags&ir.FlagEffect != 0 && !exchanges(g, id) {
			stop = id
		}
		g.Uses(id, func(v ir.ValueID, _ bool) { uses[m.root[v]] = id })
	}
	for id := range end + 1 {
		for _, wait := range slices.Backward(before[id]) {
			m.emit(wait)
		}
		if id < end && !isCall(g, id, commWait) {
			m.emit(id)
		}
	}
	if slices.IsSorted(m.order) {
		return g
	}
	return g.Rewrite(m.order, nil)
}

func isCall(g *ir.Graph, id ir.NodeID, name string) bool {
	return g.Nodes[id].Op == ir.OpCall && g.CallName(id) == name
}

// exchanges reports whether a node begins or ends an exchange in a group that stays.
func exchanges(g *ir.Graph, id ir.NodeID) bool {
	return g.Nodes[id].Op == ir.OpCall && strings.HasPrefix(g.CallName(id), comm) &&
		!isCall(g, id, comm+"join") && !isCall(g, id, comm+"leave")
}
