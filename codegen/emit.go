// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// node emits the steps of one node.
func (p *planner) node(id ir.NodeID) error {
	n := &p.g.Nodes[id]
	p.record = n.Record
	switch n.Op {
	case ir.OpInput:
		p.input(n)
		return nil
	case ir.OpParam, ir.OpScalar, ir.OpConst, ir.OpView:
		return nil
	case ir.OpEmpty:
		p.empty(n)
		return nil
	case ir.OpUpdate:
		return p.update(id)
	case ir.OpResize:
		return p.resize(id)
	case ir.OpCall:
		if done, err := p.donate(id); done || err != nil {
			return err
		}
		return p.call(id, p.g.CallName(id), p.g.NodeArgs(id))
	}
	if len(p.u.at[n.First]) == 0 {
		p.skip(id) // an own op is pure
		return nil
	}
	if done, err := p.donate(id); done || err != nil {
		return err
	}
	if name, args := ir.ToATen(p.g, id); name != "" {
		return p.call(id, name, args)
	}
	if n.Op != ir.OpCopy {
		return fmt.Errorf("no operator computes it")
	}
	return p.copyNode(id)
}

// skip passes over a node without users. Its operands may end here.
func (p *planner) skip(id ir.NodeID) {
	p.g.Uses(id, func(v ir.ValueID, _ bool) {
		if at := p.at[p.u.root[v]]; at.buffer >= 0 {
			p.touched = append(p.touched, at.buffer)
		}
	})
}

// input takes over the buffer of a storage, if the program needs it. All input nodes of a slot are the same content:
// the first node locates them all, because a later one may come after a write.
func (p *planner) input(n *ir.Node) {
	s := p.slots.At(n.Slot)
	if s.input == 0 {
		return // it is unused, or located already
	}
	v := s.input - 1
	s.input = 0
	b := p.newBuffer()
	p.buffers[b].slot, p.buffers[b].pinned = int32(n.Slot), p.pinned(n.Slot)
	p.out.Program.Inputs = append(p.out.Program.Inputs, uint32(b))
	p.out.Inputs = append(p.out.Inputs, n.Slot)
	for found := true; found; v, found = p.same[v] {
		p.put(v, location{buffer: b, full: true})
	}
}

// pinned reports whether the storage of a slot must keep its content: no output replaces it, and it may be read after
// the program.
func (p *planner) pinned(slot uint32) bool {
	return !p.slots.At(slot).replaced && (int(slot) >= len(p.o.Scratch) || !p.o.Scratch[slot])
}

func (p *planner) empty(n *ir.Node) {
	if len(p.u.at[n.First]) == 0 {
		return
	}
	b := p.newBuffer()
	bytes := p.params.bytes(p.g, p.g.Types[n.First])
	p.emit(&program.Alloc{Buffer: uint32(b), Bytes: bytes})
	p.put(n.First, location{buffer: b, full: true})
}

// update replaces a window of its base, in one of three ways. The window already holds the new content, because it was
// written in place. Or the content is copied into the base's buffer. Or, if the old base is still needed, it is copied
// into a clone of that buffer.
func (p *planner) update(id ir.NodeID) error {
	n := &p.g.Nodes[id]
	if p.u.noop[id] {
		return nil // the call that absorbed it has located it
	}
	if len(p.u.at[n.First]) == 0 {
		p.skip(id)
		return nil
	}
	base, with := ir.ValueID(p.g.Args[n.ArgLo].V), ir.ValueID(p.g.Args[n.ArgLo+1].V)
	if p.g.Immediate(base) {
		return fmt.Errorf("its base is a number")
	}
	if err := p.expressWindows(id); err != nil {
		return err
	}
	if p.u.root[base] != base {
		return fmt.Errorf("its base is a view")
	}
	at := p.at[base]
	offset, ok := p.shift(base, at, n.Offset, p.g.Types[with].DType)
	if !ok {
		at = p.materialise(base)
		offset, _ = p.shift(base, at, n.Offset, p.g.Types[with].DType)
	}
	if !p.g.Immediate(with) {
		src, err := p.locate(with)
		if err != nil {
			return err
		}
		if src.buffer == at.buffer && p.g.Same(src.offset, offset) {
			p.put(n.First, at)
			return nil
		}
	}
	at, err := p.own(base, id, p.u.root[with] == base)
	if err != nil {
		return err
	}
	if err := p.patch(location{buffer: at.buffer, offset: offset}, with); err != nil {
		return err
	}
	p.put(n.First, at)
	return nil
}

// patch writes a value into a window.
func (p *planner) patch(to location, with ir.ValueID) error {
	dst := p.tensor(to, p.g.Types[with])
	if !p.g.Immediate(with) {
		src, err := p.locate(with)
		if err != nil {
			return err
		}
		p.touched = append(p.touched, src.buffer)
		p.copy(dst, p.tensor(src, p.g.Types[with]))
		return nil
	}
	number, err := p.arg(ir.Value(with), nil)
	if err != nil {
		return err
	}
	args := []program.Arg{program.Window(dst), number, {Tag: catalogue.TagBool}}
	p.emit(&program.Call{Op: "aten::copy_", Args: args, Results: nil})
	return nil
}

// copyNode copies into a layout that no memory format names.
func (p *planner) copyNode(id ir.NodeID) error {
	n := &p.g.Nodes[id]
	src, err := p.locate(ir.ValueID(p.g.Args[n.ArgLo].V))
	if err != nil {
		return err
	}
	p.touched = append(p.touched, src.buffer)
	from := p.tensor(src, p.g.Types[p.g.Args[n.ArgLo].V])
	to := location{buffer: p.newBuffer(), full: true}
	p.copy(p.tensor(to, p.g.Types[n.First]), from)
	p.put(n.First, to)
	return nil
}

func (p *planner) resize(id ir.NodeID) error {
	n := &p.g.Nodes[id]
	if len(p.u.at[n.First]) == 0 {
		p.skip(id)
		return nil
	}
	old := ir.ValueID(p.g.Args[n.ArgLo].V)
	root := p.u.root[old]
	if err := p.expressWindows(id); err != nil {
		return err
	}
	window, err := p.locate(old)
	if err != nil {
		return err
	}
	bytes := p.params.dim(p.g, p.g.Types[n.First].Dims[0])
	var to int
	if at := p.at[root]; at.full && p.g.Same(window.offset, ir.Const(0)) && p.g.Types[old].Strides == nil {
		// The window begins at the storage's first byte: its buffer changes size. Bytes past the operand's end are
		// undefined.
		at, err := p.own(root, id, false)
		if err != nil {
			return err
		}
		to = at.buffer
	} else {
		to = p.newBuffer()
		p.touched = append(p.touched, window.buffer)
		bytes := ir.Type{DType: ir.U8, Dims: p.g.Types[old].Dims}
		p.copy(p.tensor(location{buffer: to}, bytes), p.tensor(window, p.g.Types[old]))
	}
	p.emit(&program.Resize{Buffer: uint32(to), Bytes: bytes})
	p.put(n.First, location{buffer: to, full: true})
	return nil
}

// call emits an operator. Written operands are written where their root lies. Reads of the same root in the same call
// see the same memory, as they do in PyTorch.
func (p *planner) call(id ir.NodeID, name string, args []ir.Arg) error {
	g, n := p.g, &p.g.Nodes[id]
	if err := p.expressWindows(id); err != nil {
		return err
	}
	targets := p.targets[:0] // the locations of the roots that the call writes; empty: it writes none
	var order []ir.ValueID
	var err error
	g.Uses(id, func(v ir.ValueID, write bool) {
		root := p.u.root[v]
		if !write || err != nil || len(targets) > 0 && targets[root] != unwritten {
			return
		}
		if p.g.Immediate(v) {
			err = fmt.Errorf("it writes a number")
			return
		}
		if order = append(order, root); len(targets) == 0 {
			targets = p.noTargets()
		}
		targets[root] = nowhere
	})
	for _, root := range order {
		if err == nil {
			targets[root], err = p.own(root, id, false)
		}
	}
	if err != nil {
		return err
	}
	c := &program.Call{Op: name, Args: make([]program.Arg, len(args)), Flags: uint8(n.Flags)}
	for i, a := range args {
		if c.Args[i], err = p.arg(a, targets); err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
	}
	p.results(id, c)
	p.emit(c)
	p.afterWrites(id, targets)
	for _, root := range order {
		targets[root] = unwritten
	}
	return nil
}

// unwritten is the location of a root that the current call does not write.
var unwritten = location{buffer: -2}

// noTargets returns locations by value, all of them unwritten.
func (p *planner) noTargets() []location {
	if p.targets == nil {
		p.targets = make([]location, len(p.g.Types))
		for v := range p.targets {
			p.targets[v] = unwritten
		}
	}
	return p.targets
}

// results gives buffers to the fresh results of a call that have users.
func (p *planner) results(id ir.NodeID, c *program.Call) {
	n := &p.g.Nodes[id]
	fresh := n.First + ir.ValueID(p.g.NumFresh(id))
	for v := n.First; v < fresh; v++ {
		if len(p.u.at[v]) == 0 || !p.g.Types[v].DType.Valid() {
			c.Results = append(c.Results, 0)
			continue
		}
		at := location{buffer: p.newBuffer(), full: true}
		p.put(v, at)
		c.Results = append(c.Results, p.tensor(at, p.g.Types[v])+1)
	}
}

// afterWrites locates the new content of each operand that a call has written, and the values of the updates that the
// call absorbed.
func (p *planner) afterWrites(id ir.NodeID, targets []location) {
	if len(targets) == 0 {
		return
	}
	n := &p.g.Nodes[id]
	after := n.First + ir.ValueID(p.g.NumFresh(id))
	done := map[ir.ValueID]bool{} // the roots that have updates
	p.g.Uses(id, func(v ir.ValueID, write bool) {
		if !write {
			return
		}
		root := p.u.root[v]
		at := targets[root]
		if v != root && !done[root] {
			done[root] = true
			for _, end := range p.u.final[written{id, root}] {
				p.put(end, at)
			}
		}
		if v != root {
			at.offset, _ = p.shift(root, at, p.g.Nodes[p.g.Def[v]].Offset, p.g.Types[v].DType)
			at.full = at.full && p.covers(v)
		}
		p.put(after, at)
		after++
	})
}

// arg returns an argument in the form of a program. targets has the locations of the roots that the call writes.
func (p *planner) arg(a ir.Arg, targets []location) (program.Arg, error) {
	switch a.Kind {
	case ir.ArgValue:
		return p.valueArg(ir.ValueID(a.V), targets)
	case ir.ArgDim:
		d := p.g.Find(ir.Dim(a.V))
		if s, ok := d.Sym(); ok {
			if p.g.Syms[s].Quotient != nil {
				return program.Arg{}, fmt.Errorf("an operator is given a size that no parameter holds")
			}
			return program.Arg{Tag: catalogue.TagSize, Value: uint64(p.params.word(p.g.Syms[s].Slot))}, nil
		}
		return program.Int(int64(d)), nil
	case ir.ArgStr:
		return program.Arg{Tag: catalogue.TagStr, Text: p.g.Strings[a.V]}, nil
	case ir.ArgGen:
		return program.Arg{Tag: catalogue.TagGen, Value: uint64(p.params.word(uint32(a.V)))}, nil
	case ir.ArgList:
		items := make([]program.Arg, len(p.g.List(a)))
		for i, item := range p.g.List(a) {
			var err error
			if items[i], err = p.arg(item, targets); err != nil {
				return program.Arg{}, fmt.Errorf("item %d: %w", i, err)
			}
		}
		return program.List(uint8(a.Sub), items...), nil
	}
	return program.Arg{Tag: uint8(a.Kind), Value: uint64(a.V)}, nil // a literal
}

// number is a Python number, or the element of a 0-dim tensor, that a parameter slot holds.
func (p *planner) number(op ir.Op, slot uint32, d ir.DType) (program.Arg, error) {
	word := p.params.words(slot, d == ir.C128)
	if op == ir.OpScalar {
		return program.Scalar(uint8(d), word), nil
	}
	kind, ok := numbers[d]
	if !ok {
		return program.Arg{}, fmt.Errorf("a Python number of dtype %s", d)
	}
	return program.Number(kind, word), nil
}

// numbers has the kinds of Python numbers by their dtype.
var numbers = func() map[ir.DType]uint8 {
	kinds := map[ir.DType]uint8{}
	for _, n := range catalogue.NumberKinds {
		d, _ := ir.ParseDType(n.DType)
		kinds[d] = uint8(n.Number)
	}
	return kinds
}()

func (p *planner) valueArg(v ir.ValueID, targets []location) (program.Arg, error) {
	n, t := &p.g.Nodes[p.g.Def[v]], p.g.Types[v]
	switch n.Op {
	case ir.OpConst:
		return p.arg(p.g.Args[n.ArgLo], nil)
	case ir.OpParam, ir.OpScalar:
		return p.number(n.Op, n.Slot, t.DType)
	}
	root := p.u.root[v]
	at := unwritten
	if len(targets) > 0 {
		at = targets[root]
	}
	if at == unwritten {
		var err error
		if at, err = p.locate(v); err != nil {
			return program.Arg{}, err
		}
	} else if v != root {
		at.offset, _ = p.shift(root, at, n.Offset, t.DType)
	}
	p.touched = append(p.touched, at.buffer)
	return program.Window(p.tensor(at, t)), nil
}
