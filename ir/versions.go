// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// MayFail reports whether a node may raise an error because of the values of its operands. So may each operator that
// PyTorch does not have: it belongs to the user.
func (g *Graph) MayFail(id NodeID) bool {
	n := &g.Nodes[id]
	if n.Op != OpCall {
		return g.DividesByZero(n.Op, g.NodeArgs(id), g.Types[n.First].DType)
	}
	name := g.Strings[n.Name]
	switch catalogue.FailureOf(name) {
	case catalogue.MayFail:
		return true
	case catalogue.FailsOnInts:
		return n.N > 0 && g.Types[n.First].DType.Is(catalogue.Ints)
	}
	return !strings.HasPrefix(name, "aten::") && !strings.HasPrefix(name, "mycelya::")
}

// DividesByZero reports whether an op with these arguments and a result of this dtype may divide integers by 0. The
// divisor is converted to that dtype first.
func (g *Graph) DividesByZero(op Op, args []Arg, d DType) bool {
	if !Info(op).Divides || !d.Is(catalogue.Ints) {
		return false
	}
	by := &g.Nodes[g.Def[args[1].V]]
	if by.Op != OpConst {
		return true
	}
	a := g.Args[by.ArgLo]
	return a.Kind != ArgInt || a.V == 0 || !d.Holds(a.V)
}

// Kept is a version of a storage that a failing node may leave behind. No output holds it, because a later record
// writes the storage.
type Kept struct {
	Value ValueID
	Until NodeID // the last node that may fail while the storage has this version
}

// Kept lists the versions that must exist when a node fails.
func (g *Graph) Kept() []Kept {
	if len(g.Versions) == 0 {
		return nil
	}
	var failing []NodeID
	for id := range g.Nodes {
		if g.MayFail(NodeID(id)) {
			failing = append(failing, NodeID(id))
		}
	}
	if len(failing) == 0 {
		return nil
	}
	var out []Kept
	for i := 1; i < len(g.Versions); i++ {
		v, next := g.Versions[i-1], g.Versions[i]
		if v.Slot != next.Slot || v.Value == NoValue {
			continue
		}
		last, found := NodeID(0), false
		for _, id := range failing {
			if r := g.Nodes[id].Record; r > v.Record && r <= next.Record {
				last, found = max(last, id), true
			}
		}
		if found {
			out = append(out, Kept{v.Value, last})
		}
	}
	return out
}
