// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// dce drops nodes that no output needs.
//
// Valid because values are pure: a call that writes an operand gives the new content as a result, and if nobody uses
// that result, nobody sees the write. Wrong for nodes with flags: a draw of random numbers moves the generator's state
// for the draws after it, and an effect is wanted for itself. Those stay, with what they need.
func dce(g *ir.Graph) *ir.Graph {
	live := make([]bool, len(g.Nodes))
	for _, o := range g.Outputs {
		live[g.Def[o.Value]] = true
	}
	kept := 0
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		if g.Nodes[i].Flags != 0 {
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
