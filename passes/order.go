// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// later computes a value shortly before it is needed, if nothing has to be kept for that: a node moves down to the
// first use of its results, but not past the last other use of an operand, nor past a write to one.
//
// Valid because values are pure and operands stay before uses. It never takes more memory, whatever the sizes are: at
// each step there is what was there before, less results that are now made later. Wrong for a node at which an operand
// ends: its result would be made later, but the operand kept longer, and which of the two is larger is for sizes to
// say. Wrong past a write of an operand, which would need a copy of the old content. Nodes with flags keep their
// places, those that write do, and none crosses an effect: what it sets may be what the node computes with. A node that
// goes to an output only goes to the end.
func later(g *ir.Graph) *ir.Graph {
	m := newMover(g)
	for i := range g.Nodes {
		id := ir.NodeID(i)
		if !m.done[i] && !isFree(g, id) && !m.moves(id) {
			m.before(id)
			m.emit(id)
		}
	}
	for i := range g.Nodes {
		m.emit(ir.NodeID(i))
	}
	if slices.IsSorted(m.order) {
		return g
	}
	return g.Rewrite(m.order, nil)
}

// mover puts nodes in a new order.
type mover struct {
	g     *ir.Graph
	root  []ir.ValueID  // by value: what it is content of; all inputs of one slot are one
	users [][]ir.NodeID // by root: who reads it or a view of it, views left out, in order
	end   []bool        // by root: it is an output
	done  []bool        // by node
	order []ir.NodeID

	effect ir.NodeID   // the last one; all before it is done
	seen   []bool      // by node: it is done, or in need
	need   []ir.NodeID // see before
}

func newMover(g *ir.Graph) *mover {
	values, nodes := len(g.Types), len(g.Nodes)
	m := &mover{
		g: g, root: make([]ir.ValueID, values), users: make([][]ir.NodeID, values), end: make([]bool, values),
		done: make([]bool, nodes), seen: make([]bool, nodes), order: make([]ir.NodeID, 0, nodes),
	}
	inputs := map[uint32]ir.ValueID{}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			m.root[v] = v
		}
		switch n.Op {
		case ir.OpView:
			m.root[n.First] = m.root[g.Args[n.ArgLo].V]
			continue
		case ir.OpInput:
			if first, ok := inputs[n.Slot]; ok {
				m.root[n.First] = first
			}
			inputs[n.Slot] = m.root[n.First]
		}
		for _, v := range g.Operands(ir.NodeID(i)) {
			r := m.root[v]
			if u := m.users[r]; len(u) == 0 || u[len(u)-1] != ir.NodeID(i) {
				m.users[r] = append(u, ir.NodeID(i))
			}
		}
	}
	for _, o := range g.Outputs {
		m.end[m.root[o.Value]] = true
	}
	return m
}

// isFree says whether a node takes neither time nor memory. It stands wherever its first use does.
func isFree(g *ir.Graph, id ir.NodeID) bool {
	kind := ir.Info(g.Nodes[id].Op).Kind
	return kind == ir.KindLeaf || g.Nodes[id].Op == ir.OpView
}

// moves says whether a node may go to a later place: none of its operands ends at it.
func (m *mover) moves(id ir.NodeID) bool {
	n := &m.g.Nodes[id]
	if n.Flags != 0 || n.Op == ir.OpUpdate || n.Op == ir.OpResize || len(m.g.Writes(id)) > 0 {
		return false
	}
	for _, v := range m.g.Operands(id) {
		r := m.root[v]
		u := m.users[r]
		// A storage doesn't end with its last reader, but may take the result, and its old content may be in a copy.
		if u[len(u)-1] == id && !m.end[r] && !m.g.Immediate(r) {
			return false
		}
	}
	return true
}

func (m *mover) emit(id ir.NodeID) {
	if !m.done[id] {
		m.done[id] = true
		m.order = append(m.order, id)
	}
}

// before emits what has to come before a node that stays: its operands, whoever reads what ends or is written here, and
// before an effect all that has been left behind. They keep their order.
func (m *mover) before(id ir.NodeID) {
	m.need = m.need[:0]
	m.seen[id] = true
	m.operands(id)
	if m.g.Nodes[id].Flags&ir.FlagEffect != 0 {
		for ; m.effect < id; m.effect++ {
			m.add(m.effect)
		}
	}
	m.g.EachArg(id, func(a ir.Arg) {
		if a.Kind != ir.ArgValue {
			return
		}
		r := m.root[a.V]
		u := m.users[r]
		if ends := u[len(u)-1] == id && !m.end[r]; !ends && !a.Write && m.g.Nodes[id].Op != ir.OpUpdate {
			return
		}
		for _, user := range u {
			if user < id {
				m.add(user)
			}
		}
	})
	slices.Sort(m.need)
	for _, id := range m.need {
		m.emit(id)
	}
}

func (m *mover) operands(id ir.NodeID) {
	m.g.EachArg(id, func(a ir.Arg) {
		if a.Kind == ir.ArgValue {
			m.add(m.g.Def[a.V])
		}
	})
}

// add notes that a node is needed, with all that it needs. What is needed once is emitted, so once is enough.
func (m *mover) add(id ir.NodeID) {
	if !m.seen[id] {
		m.seen[id] = true
		m.need = append(m.need, id)
		m.operands(id)
	}
}
