// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	pb "github.com/mycelya/mycelya/proto"
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
	reads  map[ir.ValueID]place        // by value of the graph that the group reads: where its operators find it
	leaves map[ir.ValueID][]ir.ValueID // see fusion.Group.Leaves; without values whose content ends within the group
	next   map[ir.ValueID]int          // by value of the group's graph: the index of its next place in leaves
	temps  map[ir.ValueID]int          // by value of the group's graph that a later kernel reads: its buffer
	made   []int                       // all of temps
}

// fuse emits a group.
func (p *planner) fuse(f *fusion.Group) error {
	coded, why, err := p.coded(f)
	if why != "" {
		p.out.Unfused = append(p.out.Unfused, Unfused{int(p.g.Nodes[f.Nodes[0]].Group) - 1, string(why), coded})
	}
	return err
}

// coded emits a group or a part of one. It reports whether something of it has kernels, and why something has none.
func (p *planner) coded(f *fusion.Group) (coded bool, why refused, err error) {
	if f.Parts != nil {
		for _, part := range f.Parts {
			some, _, err := p.coded(part)
			if err != nil {
				return false, "", err
			}
			coded = coded || some
		}
		return coded, refused(f.Why), nil
	}
	if f.Loops == nil {
		return false, refused(f.Why), p.emitNodes(f.Nodes)
	}
	b := &group{p: p, Group: f, reads: map[ir.ValueID]place{}, leaves: map[ir.ValueID][]ir.ValueID{}, next: map[ir.ValueID]int{},
		temps: map[ir.ValueID]int{}}
	for _, v := range f.Reads {
		at, err := p.locate(v)
		if err != nil {
			return false, "", err
		}
		b.reads[v] = at
	}
	first, buffers := len(p.out.Program.Steps), len(p.buffers)
	if err := p.emitNodes(f.Nodes); err != nil {
		return false, "", err
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

// kernels puts the kernels of the group in front of its operators, which are the steps from first on; buffers below a
// number were there before them.
func (f *group) kernels(first, buffers int) refused {
	p := f.p
	plain := slices.Clone(p.out.Program.Steps[first:])
	made, freed, why := f.effect(plain, buffers)
	if why != "" {
		return why
	}
	for v, left := range f.Leaves { // but for what the operators have overwritten or freed
		for _, own := range left {
			if p.at[own].buffer >= 0 {
				f.leaves[v] = append(f.leaves[v], own)
			}
		}
	}
	draws, why := f.draw(made)
	if why != "" {
		return why
	}
	stores := f.Stored(f.leaves)
	var launches []launch
	written := map[int]bool{} // buffers that the kernels so far have written
	for i := range f.Loops {
		if len(stores[i]) == 0 {
			continue
		}
		low, why := lower(f.Group, i, stores[i])
		if why != "" {
			return why
		}
		at, why := f.launch(low, made, written)
		if why != "" {
			return why
		}
		launches = append(launches, launch{low.kernel, []*pb.KernelOp_Instance{at}})
	}
	for _, is := range made {
		if !is {
			return "its operators make what its kernels don't"
		}
	}
	steps := draws
	for _, l := range p.together(launches) {
		steps = append(steps, &pb.Step{Kind: &pb.Step_Kernel{Kernel: &pb.KernelOp{Kernel: p.kernel(l.kernel), Instances: l.at}}})
	}
	for _, buffer := range f.made {
		steps = append(steps, free(buffer))
	}
	for _, b := range freed {
		steps = append(steps, free(b))
	}
	record := p.g.Nodes[f.Nodes[len(f.Nodes)-1]].Record
	fused := &pb.Step{Kind: &pb.Step_Fused{Fused: &pb.Fused{Kernels: uint32(len(steps)), Plain: uint32(len(plain))}}}
	records := slices.Clone(p.out.StepRecord[first:])
	p.out.Program.Steps = append(append(append(p.out.Program.Steps[:first], fused), steps...), plain...)
	p.out.StepRecord = p.out.StepRecord[:first]
	for range len(steps) + 1 {
		p.out.StepRecord = append(p.out.StepRecord, record)
	}
	p.out.StepRecord = append(p.out.StepRecord, records...)
	return ""
}

func free(buffer int) *pb.Step {
	return &pb.Step{Kind: &pb.Step_Free{Free: &pb.Free{Buffer: uint32(buffer)}}}
}

// effect says which buffers the operators make and leave, none of which a kernel has made yet, and which older ones
// they free.
func (f *group) effect(plain []*pb.Step, buffers int) (made map[int]bool, freed []int, why refused) {
	made = map[int]bool{}
	for _, s := range plain {
		switch k := s.Kind.(type) {
		case *pb.Step_Call:
			for _, r := range k.Call.Results {
				if r != 0 {
					made[int(f.p.out.Program.Tensors[r-1].Buffer)] = false
				}
			}
		case *pb.Step_Alloc:
			made[int(k.Alloc.Buffer)] = false
		case *pb.Step_Free:
			b := int(k.Free.Buffer)
			if _, ok := made[b]; ok {
				delete(made, b)
			} else {
				freed = append(freed, b)
			}
		case *pb.Step_Copy:
			if b := int(f.p.out.Program.Tensors[k.Copy.Dst].Buffer); b >= buffers {
				made[b] = false
			}
		default: // a clone is the old content, of which a kernel may write a part only
			return nil, nil, "its operators move memory"
		}
	}
	return made, freed, ""
}

// draw emits the calls that make masks.
func (f *group) draw(made map[int]bool) ([]*pb.Step, refused) {
	p, g := f.p, f.Graph
	var out []*pb.Step
	for _, id := range f.Draws {
		v := g.Nodes[id].First
		if len(f.leaves[v]) > 1 {
			return nil, "it leaves a mask in two places"
		}
		w, t, why := f.target(v)
		if why != "" {
			return nil, why
		}
		if done, isNew := made[w.buffer]; isNew && !done {
			made[w.buffer] = true
		} else if b, ok := f.temps[v]; !ok || b != w.buffer {
			return nil, "it leaves a mask in memory that is there already"
		}
		call := &pb.CallOp{Op: g.CallName(id), Results: []uint32{p.tensor(w, t) + 1}, Flags: uint32(ir.FlagRNG)}
		for _, a := range g.NodeArgs(id) {
			arg, err := f.argument(a)
			if err != nil {
				return nil, refused(err.Error())
			}
			call.Args = append(call.Args, arg)
		}
		out = append(out, &pb.Step{Kind: &pb.Step_Call{Call: call}})
	}
	return out, ""
}

// argument is a size, a number, or a list of those, of the expansion.
func (f *group) argument(a ir.Arg) (*pb.Arg, error) {
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
		return nil, fmt.Errorf("BUG: the probability of a mask is computed")
	case ir.ArgList:
		list := &pb.Arg_List{Kind: uint32(a.Sub)}
		for _, item := range g.List(a) {
			arg, err := f.argument(item)
			if err != nil {
				return nil, err
			}
			list.Items = append(list.Items, arg)
		}
		return &pb.Arg{Kind: &pb.Arg_List_{List: list}}, nil
	}
	return f.p.arg(a, nil)
}

// launch binds a kernel to windows.
func (f *group) launch(low *lowered, made, written map[int]bool) (*pb.KernelOp_Instance, refused) {
	p, g, k := f.p, f.Graph, low.kernel
	at := &pb.KernelOp_Instance{}
	for _, space := range low.spaces {
		for _, d := range space {
			at.Sizes = append(at.Sizes, p.params.dim(p.g, g.Find(d)))
		}
	}
	type use struct {
		tensor      uint32
		buffer      int
		write, made bool // made: it reads what a kernel of the group has left
	}
	var uses []use
	for i, v := range low.operands {
		read := k.Operands[i].Access == kernel.Read
		place := f.target
		if read {
			place = f.source
		}
		w, t, why := place(v)
		if why != "" {
			return nil, why
		}
		n := p.tensor(w, t)
		_, outside := f.Source[g.Root(v)]
		uses = append(uses, use{n, w.buffer, !read, !outside})
		tensor := 2 * n
		if read {
			at.Tensors = append(at.Tensors, tensor)
			continue
		}
		if done, isNew := made[w.buffer]; isNew && !done {
			made[w.buffer] = true
			tensor++
		} else if b, ok := f.temps[v]; ok && b == w.buffer {
			tensor++
		}
		at.Tensors = append(at.Tensors, tensor)
	}
	for i, u := range uses {
		if !u.write && !u.made && written[u.buffer] {
			return nil, "a kernel would read what another has overwritten"
		}
		for j, w := range uses {
			if i != j && w.write && w.buffer == u.buffer && (u.write || u.tensor != w.tensor || !sameRun(low.kernel, at, u.tensor)) {
				return nil, "it reads memory that it writes in another order"
			}
		}
	}
	for _, u := range uses {
		if u.write {
			written[u.buffer] = true
		}
	}
	for _, v := range low.numbers {
		n := &g.Nodes[g.Def[v]]
		if dims, counts := f.Count(v); counts {
			at.Numbers = append(at.Numbers, p.params.count(p.g, dims))
			continue
		}
		a, err := p.number(n.Op, n.Slot, g.Types[v].DType)
		if err != nil {
			return nil, refused(err.Error())
		}
		at.Numbers = append(at.Numbers, a)
	}
	return at, ""
}

// launch is a kernel and where it runs.
type launch struct {
	kernel *kernel.Kernel
	at     []*pb.KernelOp_Instance
}

// together makes launches of one kernel one, whose instances run at the same time, where nothing has to run in between:
// the tensors of a list, for one.
func (p *planner) together(list []launch) []launch {
	var out []launch
	last := map[string]int{}                            // by kernel: one more than its last launch
	read, written := map[uint32]int{}, map[uint32]int{} // by buffer, likewise
	for _, l := range list {
		text := l.kernel.String()
		after := 0
		each := func(f func(buffer uint32, write bool)) {
			for i, t := range l.at[0].Tensors {
				f(p.out.Program.Tensors[t/2].Buffer, l.kernel.Operands[i].Access&kernel.Write != 0)
			}
		}
		each(func(b uint32, write bool) {
			if after = max(after, written[b]); write {
				after = max(after, read[b])
			}
		})
		at := last[text]
		if at > after {
			out[at-1].at = append(out[at-1].at, l.at...)
		} else {
			out = append(out, l)
			at = len(out)
			last[text] = at
		}
		each(func(b uint32, write bool) {
			if read[b] = max(read[b], at); write {
				written[b] = max(written[b], at)
			}
		})
	}
	return out
}

// kernel is the number of a kernel in the program, which has equal ones once.
func (p *planner) kernel(k *kernel.Kernel) uint32 {
	text := k.String()
	i, ok := p.kernels[text]
	if !ok {
		i = len(p.out.Program.Kernels)
		p.kernels[text] = i
		p.out.Program.Kernels = append(p.out.Program.Kernels, pb.KernelMessage(k))
	}
	return uint32(i)
}

// sameRun says whether all operands on a window run along the same dims.
func sameRun(k *kernel.Kernel, at *pb.KernelOp_Instance, tensor uint32) bool {
	var first *kernel.Operand
	for i, t := range at.Tensors {
		if t/2 != tensor {
			continue
		}
		o := &k.Operands[i]
		if first == nil {
			first = o
		}
		if o.Frame != first.Frame || !slices.Equal(o.Along, first.Along) {
			return false
		}
	}
	return true
}

// source is where an operand of a kernel is, which is a value of the expansion.
func (f *group) source(v ir.ValueID) (place, ir.Type, refused) {
	g := f.Graph
	root := g.Root(v)
	t := g.Types[v]
	if own, ok := f.Source[root]; ok {
		at := f.reads[own]
		if v == root {
			return at, f.p.g.Types[own], ""
		}
		if g.Nodes[g.Def[v]].Offset != ir.Const(0) { // a row of ir/decomp makes views in other sizes of 1 only
			return nowhere, t, "it reads a view at an offset"
		}
		return at, t, ""
	}
	offset := g.Nodes[g.Def[v]].Offset
	if b, ok := f.temps[root]; ok {
		return place{buffer: b, offset: offset}, t, ""
	}
	if left := f.leaves[root]; len(left) > 0 {
		at, err := f.p.locate(left[0])
		if err != nil {
			return nowhere, t, refused(err.Error())
		}
		if at.offset != ir.Const(0) {
			return nowhere, t, "it reads a part of what it has written"
		}
		if v != root {
			at.offset = offset
		} else {
			t = f.p.g.Types[left[0]]
		}
		return at, t, ""
	}
	return nowhere, t, "it reads what no kernel before it has made"
}

// target is where a value of the expansion goes: to the one place where the operators leave it, or to a buffer of its
// own.
func (f *group) target(v ir.ValueID) (place, ir.Type, refused) {
	t := f.Graph.Types[v]
	left := f.leaves[v]
	if len(left) == 0 {
		f.temps[v] = len(f.p.buffers)
		f.made = append(f.made, f.temps[v])
		f.p.buffers = append(f.p.buffers, buffer{slot: -1, freed: true}) // the kernels make and free it
		return place{buffer: f.temps[v]}, t, ""
	}
	own := left[f.next[v]]
	f.next[v]++
	w, err := f.p.locate(own)
	if err != nil {
		return nowhere, t, refused(err.Error())
	}
	return w, f.p.g.Types[own], ""
}
