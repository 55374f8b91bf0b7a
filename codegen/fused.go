// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// A group is emitted as its operators, and in front of them as kernels that leave the same buffers and contents behind.
// Package fusion has decided what the loops are; here they are bound to memory. Where the memory does not allow it, the
// group has no kernels.

// Unfused is a group that runs as its operators, at least for a part, and why.
type Unfused struct {
	Group int
	Why   string
	Part  bool // other parts have kernels
}

// group is a fused group on its way to kernels: its loops, and the memory that they read and write.
type group struct {
	p *planner
	*fusion.Group
	leaves map[ir.ValueID][]ir.ValueID // see fusion.Group.Leaves; without values whose content ends within the group
	next   map[inRow]int               // by value of the group's graph: the index of its next place in leaves
	temps  map[inRow]int               // by value of the group's graph that a later kernel reads: its buffer
	made   []int                       // all of temps
	row    *row                        // the row that is being bound, nil for one that the group's graph has
}

// fuse emits a group.
func (p *planner) fuse(f *fusion.Group) error {
	has, why, err := p.emitGroup(f)
	if why != "" {
		p.out.Unfused = append(p.out.Unfused, Unfused{int(p.g.Nodes[f.Nodes[0]].Group) - 1, string(why), has})
	}
	return err
}

// emitGroup emits a group or a part of one. has reports whether any part has kernels; why is the reason why a part has
// none.
func (p *planner) emitGroup(f *fusion.Group) (has bool, why refused, err error) {
	if f.Parts != nil {
		for _, part := range f.Parts {
			some, _, err := p.emitGroup(part)
			if err != nil {
				return false, "", err
			}
			has = has || some
		}
		return has, refused(f.Why), nil
	}
	if f.Loops == nil {
		return false, refused(f.Why), p.emitNodes(f.Nodes)
	}
	b := &group{
		p: p, Group: f, leaves: map[ir.ValueID][]ir.ValueID{},
		next: map[inRow]int{}, temps: map[inRow]int{},
	}
	p.reads.begin(len(p.g.Types))
	for _, v := range f.Reads {
		at, err := p.locate(v)
		if err != nil {
			return false, "", err
		}
		*p.reads.value(int(v)) = at
	}
	first, buffers := len(p.out.Program.Steps), len(p.buffers)
	if err := p.emitNodes(f.Nodes); err != nil {
		return false, "", err
	}
	if len(p.out.Program.Steps) == first { // copies of operands that end here, see donate
		return false, "", nil
	}
	why = b.kernels(first, buffers)
	return why == "", why, nil
}

func (p *planner) emitNodes(nodes []ir.NodeID) error {
	for _, id := range nodes {
		if err := p.emitNode(id); err != nil {
			return err
		}
	}
	return nil
}

// kernels puts the kernels of the group in front of its operators, which are the steps from first on. buffers is the
// number of buffers before them.
func (f *group) kernels(first, buffers int) refused {
	p := f.p
	plain := slices.Clone(p.out.Program.Steps[first:])
	made, freed, why := f.effect(plain, buffers)
	if why != "" {
		return why
	}
	if f.differ() {
		return differs
	}
	for v, left := range f.Leaves {
		for _, own := range left {
			if p.at[own].buffer >= 0 { // else the operators have overwritten or freed it
				f.leaves[v] = append(f.leaves[v], own)
			}
		}
	}
	steps, why := f.check()
	if why != "" {
		return why
	}
	masks, why := f.draw(made)
	if why != "" {
		return why
	}
	steps = append(steps, masks...)
	coded, why := f.code(made)
	if why != "" {
		return why
	}
	for _, is := range made {
		if !is {
			return "its operators make what its kernels don't"
		}
	}
	for _, op := range p.together(coded) {
		steps = append(steps, op)
	}
	for _, buffer := range f.made {
		steps = append(steps, &program.Free{Buffer: uint32(buffer)})
	}
	for _, b := range freed {
		steps = append(steps, &program.Free{Buffer: uint32(b)})
	}
	f.insert(first, steps, plain)
	return ""
}

// code lowers and binds each loop that stores anything.
func (f *group) code(made map[int]bool) ([]coded, refused) {
	stores := f.Stored(f.leaves)
	var out []coded
	f.p.used.begin(len(f.p.buffers))
	for i := range f.Loops {
		if len(stores[i]) == 0 {
			continue
		}
		low, why := lower(f.Group, i, stores[i])
		if why != "" {
			return nil, why
		}
		at, why := f.bind(low, made)
		if why != "" {
			return nil, why
		}
		text := low.kernel.String()
		out = append(out, coded{low.kernel, text, at})
		if c := f.Class(i); c != nil {
			out = slices.Grow(out, c.Rows())
			f.row = &row{class: c}
			for f.row.index = range c.Rows() {
				at, why := f.bind(low, made)
				if why != "" {
					return nil, why
				}
				out = append(out, coded{low.kernel, text, at})
			}
			f.row = nil
		}
	}
	return out, ""
}

// insert puts the steps of the kernels in front of the plain ones, which begin at step first.
func (f *group) insert(first int, steps, plain []program.Step) {
	p := f.p
	out := p.out.Program
	record := uint32(p.g.Nodes[f.Nodes[len(f.Nodes)-1]].Record + 1)
	fused := &program.Fused{Kernels: uint32(len(steps)), Plain: uint32(len(plain))}
	out.Steps = append(append(append(out.Steps[:first], fused), steps...), plain...)
	own := slices.Repeat([]uint32{record}, len(steps)+1)
	out.Records = slices.Insert(out.Records, first, own...)
}

// effect returns the buffers that the operators make and leave, none of which a kernel has made yet, and the older ones
// that they free.
func (f *group) effect(plain []program.Step, buffers int) (made map[int]bool, freed []int, why refused) {
	made = map[int]bool{}
	for _, s := range plain {
		switch k := s.(type) {
		case *program.Call:
			for _, r := range k.Results {
				if r != 0 {
					made[int(f.p.out.Program.Tensors[r-1].Buffer)] = false
				}
			}
		case *program.Alloc:
			made[int(k.Buffer)] = false
		case *program.Free:
			b := int(k.Buffer)
			if _, ok := made[b]; ok {
				delete(made, b)
			} else {
				freed = append(freed, b)
			}
		case *program.Copy:
			if b := int(f.p.out.Program.Tensors[k.Dst].Buffer); b >= buffers {
				made[b] = false
			}
		default: // a kernel may write only a part of what a clone holds
			return nil, nil, "its operators move memory"
		}
	}
	return made, freed, ""
}

// check emits the calls that check indices and divisors. If one fails, the group's operators run, and say what is
// wrong.
func (f *group) check() (out []program.Step, why refused) {
	p, g := f.p, f.Graph
	for _, id := range f.Checks {
		args := g.NodeArgs(id)
		call := &program.Call{Op: g.CallName(id)}
		if v := ir.ValueID(args[0].V); !g.Immediate(v) {
			w, t, why := f.source(v)
			if why != "" {
				return nil, why
			}
			call.Args, args = []program.Arg{program.Window(p.tensor(w, t))}, args[1:]
		}
		if why := f.give(call, args); why != "" {
			return nil, why
		}
		out = append(out, call)
	}
	return out, ""
}

// draw emits the calls that make masks.
func (f *group) draw(made map[int]bool) ([]program.Step, refused) {
	p, g := f.p, f.Graph
	var out []program.Step
	for _, id := range f.Draws {
		v := g.Nodes[id].First
		if len(f.leaves[v]) > 1 {
			return nil, "it leaves a mask in two locations"
		}
		w, t, why := f.target(v)
		if why != "" {
			return nil, why
		}
		if done, isNew := made[w.buffer]; isNew && !done {
			made[w.buffer] = true
		} else if b, ok := f.temps[f.of(v)]; !ok || b != w.buffer {
			return nil, "it leaves a mask in memory that is there already"
		}
		call := &program.Call{Op: g.CallName(id), Results: []uint32{p.tensor(w, t) + 1}, Flags: uint8(ir.FlagRNG)}
		if why := f.give(call, g.NodeArgs(id)); why != "" {
			return nil, why
		}
		out = append(out, call)
	}
	return out, ""
}

// give adds arguments to a call.
func (f *group) give(call *program.Call, args []ir.Arg) refused {
	for _, a := range args {
		arg, err := f.argument(a)
		if err != nil {
			return refused(err.Error())
		}
		call.Args = append(call.Args, arg)
	}
	return ""
}

// argument is a size, a number, or a list of those, of the group's graph.
func (f *group) argument(a ir.Arg) (program.Arg, error) {
	g := f.Graph
	switch a.Kind {
	case ir.ArgDim:
		a.V = int64(g.Find(ir.Dim(a.V)))
	case ir.ArgValue:
		switch n := &g.Nodes[g.Def[a.V]]; n.Op {
		case ir.OpParam, ir.OpScalar:
			return f.p.number(n.Op, n.Slot, g.Types[a.V].DType)
		case ir.OpConst:
			return f.argument(g.Args[n.ArgLo])
		}
		return program.Arg{}, fmt.Errorf("BUG: the probability of a mask is computed")
	case ir.ArgList:
		items := make([]program.Arg, len(g.List(a)))
		for i, item := range g.List(a) {
			var err error
			if items[i], err = f.argument(item); err != nil {
				return program.Arg{}, err
			}
		}
		return program.List(uint8(a.Sub), items...), nil
	}
	return f.p.arg(a, nil)
}
