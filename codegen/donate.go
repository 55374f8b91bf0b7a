// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// donate computes an elementwise node over an operand that ends here, if there is one: the operand's buffer becomes the
// result's. The first such operand is taken; it may have an in-place operator of PyTorch, and the others need an out=
// form. A copy of an operand that ends here takes the buffer itself and emits no step.
//
// This is valid because the operator is the same kernel over the same operands (ir.ToATenOver), each element is read
// before it is written, and no node reads the old content afterwards. It would be wrong where the buffer holds more
// than the operand, or where an operand is a different window on it: an element would be written before it is read. It
// would be wrong for a result of another dtype, which needs a conversion, and for a storage that a user can still see.
// It would be wrong for complex numbers: C++ compilers vectorise their loops where memory does not overlap, and then
// round quotients differently.
func (p *planner) donate(id ir.NodeID) (bool, error) {
	n := &p.g.Nodes[id]
	if n.Op != ir.OpCopy && !p.g.Elementwise(id) || len(p.u.at[n.First]) == 0 {
		return false, nil
	}
	if err := p.expressWindows(id); err != nil {
		return false, err
	}
	args := p.g.NodeArgs(id)
	for i := range args {
		v := ir.ValueID(args[i].V)
		if args[i].Kind != ir.ArgValue || !p.gives(v, id) {
			continue
		}
		if n.Op == ir.OpCopy {
			// A copy of a b8 is kept: it normalises bytes other than 0 and 1.
			if p.g.Types[v].DType == ir.Bool {
				continue
			}
			p.take(v, n.First)
			return true, nil
		}
		if p.g.Types[v].DType.Is(ir.Complexes) && n.Op != ir.OpFill {
			continue
		}
		name, over := ir.ToATenOver(p.g, id, i)
		if name == "" {
			continue
		}
		c := &program.Call{Op: name, Args: make([]program.Arg, len(over))}
		for j, a := range over {
			var err error
			if c.Args[j], err = p.arg(a, nil); err != nil {
				return false, err
			}
		}
		p.emit(c)
		p.take(v, n.First)
		return true, nil
	}
	return false, nil
}

// gives reports whether the result of a node can lie in an operand's buffer.
func (p *planner) gives(v ir.ValueID, node ir.NodeID) bool {
	if p.g.Immediate(v) || !p.covers(v) {
		return false
	}
	result := p.g.Nodes[node].First
	root := p.u.root[v]
	at := p.at[root]
	b := &p.buffers[at.buffer]
	if !at.full || b.pinned || !p.mayOverwrite(at.buffer, node) ||
		!p.g.SameType(p.g.Types[v], p.g.Types[result]) || p.g.Repeats(p.g.Types[v]) {
		return false
	}
	for _, w := range b.residents {
		if p.u.after(w, node) {
			return false
		}
	}
	// An input's buffer belongs to its storage. A result for another storage would have to be cloned at the end.
	if b.slot >= 0 && p.leaves(result, uint32(b.slot)) {
		return false
	}
	same := true
	p.g.Uses(node, func(w ir.ValueID, _ bool) {
		if w == v || p.g.Immediate(w) || p.at[p.u.root[w]].buffer != at.buffer {
			return
		}
		window, err := p.locate(w)
		same = same && err == nil && p.g.Same(window.offset, ir.Const(0)) && p.g.SameType(p.g.Types[w], p.g.Types[v])
	})
	return same
}

// covers reports whether a value is all of its root: the root itself, or its elements in the same order under other
// sizes. It compares symbols, and relies on what the graph requires.
func (p *planner) covers(v ir.ValueID) bool {
	root := p.u.root[v]
	if v == root {
		return true
	}
	have, want := p.g.Types[root], p.g.Types[v]
	if !p.g.Same(p.g.Nodes[p.g.Def[v]].Offset, ir.Const(0)) || have.Strides != nil || want.Strides != nil {
		return false
	}
	left, right := p.g.Reduce(have.Bytes(), want.Bytes())
	return len(left)+len(right) == 0 || slices.ContainsFunc(p.g.Requires, func(r ir.Require) bool {
		x, y := p.g.Reduce(r.Left, r.Right)
		return p.g.SameDims(left, x) && p.g.SameDims(right, y)
	})
}

// leaves reports whether the content that begins as a value becomes, through writes in place, the output for another
// storage than that of a slot.
func (p *planner) leaves(v ir.ValueID, slot uint32) bool {
	for _, o := range p.g.Outputs {
		if o.Value == v && o.Slot != slot {
			return true
		}
	}
	for _, user := range p.u.at[v] {
		if int(user) == len(p.g.Nodes) {
			continue
		}
		n := &p.g.Nodes[user]
		if n.Op == ir.OpUpdate && ir.ValueID(p.g.Args[n.ArgLo].V) == v && p.leaves(n.First, slot) {
			return true
		}
		found := false
		after := n.First + ir.ValueID(p.g.NumFresh(user))
		p.g.Uses(user, func(w ir.ValueID, write bool) {
			if write {
				found = found || w == v && p.leaves(after, slot)
				after++
			}
		})
		for _, end := range p.u.final[written{user, v}] {
			found = found || p.leaves(end, slot)
		}
		if found {
			return true
		}
	}
	return false
}

// take gives the buffer of a value whose content ends to another value of the same geometry.
func (p *planner) take(from, to ir.ValueID) {
	at := p.at[p.u.root[from]]
	for _, v := range append([]ir.ValueID(nil), p.buffers[at.buffer].residents...) {
		p.evict(v)
	}
	p.put(to, location{buffer: at.buffer, full: true})
}
