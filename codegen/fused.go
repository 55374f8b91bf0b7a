// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
	"github.com/mycelya/mycelya/kernel"
	pb "github.com/mycelya/mycelya/proto"
)

// A group is emitted as its operators, and in front of them as kernels that leave the same buffers and contents behind. Where that
// can't be said, it has no kernels, and the reason is kept; and if some of its nodes are no kernel's, the parts between them are such
// groups.

// group is a group on its way to kernels.
type group struct {
	p      *planner
	nodes  []ir.NodeID
	of     map[ir.NodeID]ir.NodeID // by node of sub: that of the graph
	sub    *ir.Graph               // its nodes, with what they read as inputs
	to     []ir.ValueID            // by value of the graph: that of sub, decomp.None for those that it doesn't have
	e      *decomp.Expansion
	loops  *fusion.Loops
	reads  map[ir.ValueID]place        // of the graph, as its operators find them
	from   map[ir.ValueID]ir.ValueID   // by input of the expansion: the value of the graph
	stored map[ir.ValueID][]ir.ValueID // by value of the expansion: the values of the graph that it leaves
	next   map[ir.ValueID]int          // by value of the expansion: which of stored is next
	draws  []ir.NodeID                 // of the expansion: calls that run before the kernels
	temps  map[ir.ValueID]int          // by value of the expansion that a later kernel reads: its buffer
	made   []int                       // all of temps
}

// split makes the graph of the group by itself, and its loops.
func (f *group) split() refused {
	g := f.p.g
	f.sub = g.Bare()
	f.sub.Strings = slices.Clone(g.Strings)
	f.to = slices.Repeat([]ir.ValueID{decomp.None}, len(g.Types))
	in := func(v ir.ValueID) bool { return g.Def[v] >= f.nodes[0] && g.Def[v] <= f.nodes[len(f.nodes)-1] }
	// What it reads from elsewhere, views of that among it.
	var reads []ir.ValueID
	read := func(v ir.ValueID) {
		if f.to[v] != decomp.None {
			return
		}
		n := g.Nodes[g.Def[v]]
		if g.Immediate(v) {
			f.to[v] = f.sub.Nodes[f.sub.Add(ir.Node{Op: n.Op, Slot: n.Slot}, g.NodeArgs(g.Def[v]), g.Types[v:v+1])].First
			return
		}
		f.to[v] = f.sub.Nodes[f.sub.Add(ir.Node{Op: ir.OpInput, Slot: uint32(v)}, nil, g.Types[v:v+1])].First
		reads = append(reads, v)
	}
	for _, id := range f.nodes {
		n := g.Nodes[id]
		if n.Op == ir.OpView && !in(g.Root(n.First)) {
			continue
		}
		for _, v := range g.Operands(id) {
			if !in(v) || g.Nodes[g.Def[v]].Op == ir.OpView && !in(g.Root(v)) {
				read(v)
			}
		}
		n.Group = 0
		new := f.sub.Add(n, f.mapped(id), g.Types[n.First:n.First+ir.ValueID(n.N)])
		f.of[new] = id
		for i := range ir.ValueID(n.N) {
			f.to[n.First+i] = f.sub.Nodes[new].First + i
		}
	}
	for _, v := range reads {
		at, err := f.p.locate(v)
		if err != nil {
			return refused(err.Error())
		}
		f.reads[v] = at
	}
	for _, v := range f.needed() {
		f.sub.Outputs = append(f.sub.Outputs, ir.Output{Value: f.to[v], Slot: uint32(v)})
	}
	f.e = decomp.Expand(f.sub, nil)
	g.Syms = append(g.Syms, f.e.Graph.Syms[len(g.Syms):]...) // each has one number in all graphs
	f.loops = fusion.Split(f.e, f.sub)
	if !f.loops.Stated(g) {
		return "its loops take sizes to be equal that the program doesn't require"
	}
	return ""
}

// mapped are the arguments of a node as those of sub.
func (f *group) mapped(id ir.NodeID) []ir.Arg {
	args := slices.Clone(f.p.g.NodeArgs(id))
	for i, a := range args {
		switch a.Kind {
		case ir.ArgValue:
			args[i].V = int64(f.to[a.V])
		case ir.ArgList:
			items := slices.Clone(f.p.g.List(a))
			for j := range items {
				if items[j].Kind == ir.ArgValue {
					items[j].V = int64(f.to[items[j].V])
				}
			}
			args[i] = f.sub.AddList(a.Sub, items)
		}
	}
	return args
}

// needed are the roots that the group makes and somebody after it may read: also what it writes in place, of which the uses say no more
// when a write through a view is part of the call.
func (f *group) needed() []ir.ValueID {
	g := f.p.g
	last := f.nodes[len(f.nodes)-1]
	var out []ir.ValueID
	for _, id := range f.nodes {
		n := &g.Nodes[id]
		if n.Op == ir.OpView {
			continue
		}
		fresh := n.First + ir.ValueID(n.N) - ir.ValueID(writes(g, id))
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			if v >= fresh || f.p.u.after(v, last) {
				out = append(out, v)
			}
		}
	}
	return out
}

// find says which values of the expansion are read and left.
func (f *group) find() refused {
	g := f.e.Graph
	for i := range g.Nodes {
		n := &g.Nodes[i]
		switch {
		case n.Op == ir.OpInput:
			f.from[n.First] = ir.ValueID(n.Slot)
		case n.Op == ir.OpCall && g.CallName(ir.NodeID(i)) == decomp.Draw:
			f.draws = append(f.draws, ir.NodeID(i))
		}
	}
	for _, o := range g.Outputs {
		v := ir.ValueID(o.Slot)
		if def := g.Def[o.Value]; f.loops.In(def) < 0 && !slices.Contains(f.draws, def) {
			return "it leaves what none of its kernels makes"
		}
		f.stored[o.Value] = append(f.stored[o.Value], v)
	}
	return ""
}

// kernels puts the kernels of the group in front of its operators, which are the steps from first on; buffers below a number were
// there before them.
func (f *group) kernels(first, buffers int) refused {
	p := f.p
	plain := slices.Clone(p.out.Program.Steps[first:])
	made, freed, why := f.effect(plain, buffers)
	if why != "" {
		return why
	}
	// What has been overwritten, or ended, within the group, nobody needs.
	for v, left := range f.stored {
		f.stored[v] = slices.DeleteFunc(left, func(own ir.ValueID) bool { return p.at[own].buffer < 0 })
	}
	draws, why := f.draw(made)
	if why != "" {
		return why
	}
	stores := f.flow()
	var launches []launch
	written := map[int]bool{} // buffers that the kernels so far have written
	for i := range f.loops.Loops {
		if len(stores[i]) == 0 {
			continue
		}
		low, why := lower(f.e, f.loops, i, stores[i])
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
	record := p.g.Nodes[f.nodes[len(f.nodes)-1]].Record
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

// effect says which buffers the operators make and leave, none of which a kernel has made yet, and which older ones they free.
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
	p, g := f.p, f.e.Graph
	var out []*pb.Step
	for _, id := range f.draws {
		v := g.Nodes[id].First
		if len(f.stored[v]) > 1 {
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
		call := &pb.CallOp{Op: g.CallName(id), Results: []uint32{p.tensor(w, t) + 1}, Flags: flagRNG}
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
	g := f.e.Graph
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
		return nil, fmt.Errorf("it draws with a probability that is computed")
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

// flow says by loop which values it stores: what is needed after the group, and what later loops of it read, if they store
// anything themselves.
func (f *group) flow() [][]ir.ValueID {
	g := f.e.Graph
	stores := make([][]ir.ValueID, len(f.loops.Loops))
	read := map[ir.ValueID]bool{} // by another loop
	for i := len(stores) - 1; i >= 0; i-- {
		for _, id := range f.loops.Loops[i].Members {
			n := &g.Nodes[id]
			for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
				times := len(f.stored[v])
				if read[v] {
					times = max(times, 1)
				}
				for range times {
					stores[i] = append(stores[i], v)
				}
			}
		}
		if len(stores[i]) == 0 {
			continue
		}
		for _, id := range f.loops.Loops[i].Members {
			for _, v := range g.Operands(id) {
				root := g.Root(v)
				if from := f.loops.In(g.Def[root]); from >= 0 && from != i {
					read[root] = true
				}
			}
		}
	}
	return stores
}

// launch binds a kernel to windows.
func (f *group) launch(low *lowered, made, written map[int]bool) (*pb.KernelOp_Instance, refused) {
	p, g, k := f.p, f.e.Graph, low.kernel
	at := &pb.KernelOp_Instance{}
	for _, frame := range low.frames {
		for _, d := range frame {
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
		_, outside := f.from[g.Root(v)]
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
		if f.loops.Counts(g.Def[v]) {
			dims, why := counted(g, n)
			if why != "" {
				return nil, why
			}
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

// counted are the dims that a sum of ones is the product of.
func counted(g *ir.Graph, n *ir.Node) ([]ir.Dim, refused) {
	args := g.Args[n.ArgLo:n.ArgHi]
	fill := &g.Nodes[g.Def[args[0].V]]
	by := g.Def[g.Args[fill.ArgLo+1].V]
	one := g.Nodes[by].Op == ir.OpConst && g.Args[g.Nodes[by].ArgLo] == ir.Arg{Kind: ir.ArgInt, V: 1}
	if n.Op != ir.OpSum || fill.Op != ir.OpFill || !one {
		return nil, "it counts in other units than one"
	}
	dims := g.Types[args[0].V].Dims
	list := g.List(args[1])
	if len(list) == 0 {
		return dims, ""
	}
	var out []ir.Dim
	for _, a := range list {
		out = append(out, dims[a.V])
	}
	return out, ""
}

// launch is a kernel and where it runs.
type launch struct {
	kernel *kernel.Kernel
	at     []*pb.KernelOp_Instance
}

// together makes launches of one kernel one, whose instances run at the same time, where nothing has to run in between: the tensors of a
// list, for one.
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
	g := f.e.Graph
	root := g.Root(v)
	t := g.Types[v]
	if own, ok := f.from[root]; ok {
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
	if left := f.stored[root]; len(left) > 0 {
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

// target is where a value of the expansion goes: to the one place where the operators leave it, or to a buffer of its own.
func (f *group) target(v ir.ValueID) (place, ir.Type, refused) {
	t := f.e.Graph.Types[v]
	left := f.stored[v]
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
