// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// later computes a value shortly before it is needed, if no operand has to be kept for that. A node moves down to the
// first use of its results, but not past the last other use of an operand, nor past a write to an operand.
//
// It is valid because values are pure and operands stay before their uses. It never takes more memory, for any sizes:
// at each step the same values exist as before, less the results that are now made later. Some nodes stay:
//   - a node at which an operand ends: the operand would be kept longer, and it may be larger than the result for some
//     sizes;
//   - a reader of an operand that is written next: it would need a copy of the old content;
//   - nodes with flags, nodes that may fail, and nodes that write.
//
// No node goes past an effect, which may set what the node computes with. No node goes past a node that may fail, or
// past a write to a storage from before the program: after a failure, the storages must be as the records before the
// failing one have left them.
//
// A node that only an output uses goes to the end.
func later(g *ir.Graph) *ir.Graph {
	m := newMover(g)
	for i := range g.Nodes {
		id := ir.NodeID(i)
		if g.Nodes[id].Op != ir.OpView && !m.moves(id) { // a view moves with its first use
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
	root  []ir.ValueID  // by value: the root of its storage; all inputs of one slot have one root
	users [][]ir.NodeID // by root: the nodes that read it or a view of it, in order, without views
	end   []bool        // by root: it is an output
	input []bool        // by value: it is a storage from before, or the next content of one
	done  []bool        // by node: it is in order
	order []ir.NodeID

	last ir.NodeID   // all nodes before it are done, because it is a node that none goes past
	seen []bool      // by node: it is done, or in need
	need []ir.NodeID // the nodes that before emits
}

func newMover(g *ir.Graph) *mover {
	values, nodes := len(g.Types), len(g.Nodes)
	m := &mover{
		g: g, root: make([]ir.ValueID, values), users: make([][]ir.NodeID, values), end: make([]bool, values),
		input: make([]bool, values), done: make([]bool, nodes), seen: make([]bool, nodes),
		order: make([]ir.NodeID, 0, nodes),
	}
	inputs := ir.NewBySlot[ir.ValueID](g) // one more than the first input's value
	for i := range g.Nodes {
		n := &g.Nodes[i]
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			m.root[v] = v
		}
		switch n.Op {
		case ir.OpView:
			m.root[n.First] = m.root[g.Args[n.ArgLo].V]
		case ir.OpInput:
			if first := inputs.At(n.Slot); *first > 0 {
				m.root[n.First] = *first - 1
			} else {
				*first = n.First + 1
			}
			m.input[m.root[n.First]] = true
		}
	}
	m.findUsers()
	for _, o := range g.Outputs {
		m.end[m.root[o.Value]] = true
		if *inputs.At(o.Slot) > 0 {
			m.input[o.Value] = true
		}
	}
	return m
}

// findUsers fills in users. All its lists are parts of one array.
func (m *mover) findUsers() {
	each := func(use func(id ir.NodeID, root ir.ValueID)) {
		for i := range m.g.Nodes {
			if id := ir.NodeID(i); m.g.Nodes[i].Op != ir.OpView {
				m.g.Uses(id, func(v ir.ValueID, _ bool) { use(id, m.root[v]) })
			}
		}
	}
	counts, total := make([]int32, len(m.root)), 0
	each(func(_ ir.NodeID, r ir.ValueID) {
		counts[r]++
		total++
	})
	all := make([]ir.NodeID, total)
	for r, n := range counts {
		m.users[r], all = all[:0:n], all[n:]
	}
	each(func(id ir.NodeID, r ir.ValueID) {
		m.users[r] = append(m.users[r], id)
	})
}

// stops reports whether no earlier node may go past a node.
func (m *mover) stops(id ir.NodeID) bool {
	n := &m.g.Nodes[id]
	if n.Flags&ir.FlagEffect != 0 || m.g.MayFail(id) {
		return true
	}
	for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
		if m.input[v] {
			return true
		}
	}
	return slices.ContainsFunc(m.g.Writes(id), func(v ir.ValueID) bool { return m.input[m.root[v]] })
}

// moves reports whether a node may go to a later place: it is pure, and none of its operands ends at it.
func (m *mover) moves(id ir.NodeID) bool {
	n := &m.g.Nodes[id]
	if n.Flags != 0 || n.Op == ir.OpUpdate || n.Op == ir.OpResize || m.g.NumWrites(id) > 0 || m.g.MayFail(id) {
		return false
	}
	for _, v := range m.g.Operands(id) {
		r := m.root[v]
		u := m.users[r]
		// An output does not end with its last reader, so it may be read later.
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

// before emits the nodes that must come before a node that stays, in their order: its operands, the readers of an
// operand that ends or is written here, and all earlier nodes if none may go past this one.
func (m *mover) before(id ir.NodeID) {
	m.need = m.need[:0]
	m.seen[id] = true
	m.operands(id)
	if m.stops(id) {
		for ; m.last < id; m.last++ {
			m.add(m.last)
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

// add puts a node and the nodes that it needs into need, each once.
func (m *mover) add(id ir.NodeID) {
	if !m.seen[id] {
		m.seen[id] = true
		m.need = append(m.need, id)
		m.operands(id)
	}
}
