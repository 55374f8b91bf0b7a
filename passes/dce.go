// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// dce drops nodes that no output needs.
//
// It is valid because values are pure: a call that writes an operand returns the new content, and a write without a
// user of the new content has no effect. Nodes with flags stay, with the nodes that they need: a draw of random numbers
// moves the generator for later draws, and an effect is needed for itself. So do nodes that may fail, for their errors,
// and the contents of storages that such an error leaves behind.
func dce(g *ir.Graph) *ir.Graph {
	live := make([]bool, len(g.Nodes))
	for _, o := range g.Outputs {
		live[g.Def[o.Value]] = true
	}
	for _, k := range g.Kept() {
		live[g.Def[k.Value]] = true
	}
	kept := 0
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		if g.Nodes[i].Flags != 0 || g.MayFail(ir.NodeID(i)) {
			live[i] = true
		}
		if !live[i] {
			continue
		}
		kept++
		for _, v := range g.Operands(ir.NodeID(i)) {
			live[g.Def[v]] = true
		}
	}
	if kept == len(g.Nodes) {
		return g
	}
	order := make([]ir.NodeID, 0, kept)
	for i, l := range live {
		if l {
			order = append(order, ir.NodeID(i))
		}
	}
	return g.Rewrite(order, nil)
}
