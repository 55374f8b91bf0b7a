// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
)

// use is an operand of a kernel in memory.
type use struct {
	program.Use
	buffer       int
	write, inner bool // inner: it reads a buffer that a kernel of the group has written
}

// ofGroup has a value by number of a graph's value, or of a buffer. A new group begins with none.
type ofGroup[T any] struct {
	group  int32
	of     []int32 // by number: the group that has asked for it
	values []T
}

// begin begins a group and makes room for the numbers below n. value makes room for larger numbers.
func (s *ofGroup[T]) begin(n int) {
	s.group++
	s.room(n)
}

func (s *ofGroup[T]) room(n int) {
	if more := n - len(s.of); more > 0 {
		s.of, s.values = append(s.of, make([]int32, more)...), append(s.values, make([]T, more)...)
	}
}

func (s *ofGroup[T]) has(i int) bool { return i < len(s.of) && s.of[i] == s.group }

// value returns the value of a number, which is zero until the group sets it.
func (s *ofGroup[T]) value(i int) *T {
	s.room(i + 1)
	if s.of[i] != s.group {
		var zero T
		s.of[i], s.values[i] = s.group, zero
	}
	return &s.values[i]
}

// usedBy is what the kernels of a group have done with a buffer so far.
type usedBy struct {
	written             bool
	readStep, writeStep int // see together
}

// bind binds a loop's kernel to windows. made has the buffers that the group makes, and whether a kernel has made them.
func (f *group) bind(low *lowered, made map[int]bool) (at program.Instance, why refused) {
	p, g := f.p, f.Graph
	sizes := 0
	for _, space := range low.spaces {
		sizes += len(space)
	}
	at = program.Instance{
		Sizes: make([]program.Dim, 0, sizes), Uses: make([]program.Use, len(low.operands)),
		Numbers: make([]program.Arg, len(low.numbers)),
	}
	for _, space := range low.spaces {
		for _, d := range space {
			at.Sizes = append(at.Sizes, p.params.dim(p.g, f.dim(g.Find(d))))
		}
	}
	uses := low.uses[:0]
	for i, v := range low.operands {
		u, why := f.operand(v, low.kernel.Operands[i].Access == kernel.Read, made)
		if why != "" {
			return at, why
		}
		at.Uses[i] = u.Use
		uses = append(uses, u)
	}
	low.uses = uses
	if why := p.conflicts(low.kernel, uses); why != "" {
		return at, why
	}
	for _, u := range uses {
		if u.write {
			p.used.value(u.buffer).written = true
		}
	}
	for i, v := range low.numbers {
		if dims, counts := f.Count(v); counts {
			at.Numbers[i] = p.params.count(p.g, f.dims(dims))
			continue
		}
		n := f.number(v)
		var err error
		if at.Numbers[i], err = p.number(n.Op, n.Slot, g.Types[v].DType); err != nil {
			return at, refused(err.Error())
		}
	}
	return at, ""
}

// operand binds one operand.
func (f *group) operand(v ir.ValueID, read bool, made map[int]bool) (u use, why refused) {
	where := f.target
	if read {
		where = f.source
	}
	w, t, why := where(v)
	if why != "" {
		return u, why
	}
	_, outside := f.Source[f.Graph.Root(v)]
	u = use{program.Use{Tensor: f.p.tensor(w, t)}, w.buffer, !read, !outside}
	if read {
		return u, ""
	}
	if done, isNew := made[w.buffer]; isNew && !done {
		made[w.buffer] = true
		u.Made = true
	} else if b, ok := f.temps[f.of(v)]; ok && b == w.buffer {
		u.Made = true
	}
	return u, ""
}

// conflicts returns why a kernel cannot use this memory, "" if it can.
func (p *planner) conflicts(k *kernel.Kernel, uses []use) refused {
	for i, u := range uses {
		if !u.write && !u.inner && p.used.value(u.buffer).written {
			return "a kernel would read what another has overwritten"
		}
		for j, w := range uses {
			if i == j || !w.write || w.buffer != u.buffer {
				continue
			}
			if u.write || u.Tensor != w.Tensor || !sameRun(k, uses, u.Tensor) {
				return "it reads memory that it writes in another order"
			}
		}
	}
	return ""
}

// coded is a kernel with an instance.
type coded struct {
	kernel   *kernel.Kernel
	text     string // of kernel
	instance program.Instance
}

// together makes the steps of kernels. Equal kernels are one with several instances, where no other kernel has to run
// in between. The tensors of a list are such instances. A buffer's readStep and writeStep are one more than the last
// step that does so.
func (p *planner) together(list []coded) []*program.Kernel {
	var out []*program.Kernel
	last := map[string]int{} // by kernel: one more than the index of its last step
	for _, l := range list {
		after := 0
		for i, u := range l.instance.Uses {
			b := p.used.value(int(p.out.Program.Tensors[u.Tensor].Buffer))
			after = max(after, b.writeStep)
			if l.kernel.Operands[i].Access&kernel.Write != 0 {
				after = max(after, b.readStep)
			}
		}
		at := last[l.text]
		if at > after {
			out[at-1].Instances = append(out[at-1].Instances, l.instance)
		} else {
			out = append(out, &program.Kernel{
				Kernel: p.kernel(l.kernel, l.text), Instances: []program.Instance{l.instance},
			})
			at = len(out)
			last[l.text] = at
		}
		for i, u := range l.instance.Uses {
			b := p.used.value(int(p.out.Program.Tensors[u.Tensor].Buffer))
			b.readStep = max(b.readStep, at)
			if l.kernel.Operands[i].Access&kernel.Write != 0 {
				b.writeStep = max(b.writeStep, at)
			}
		}
	}
	return out
}

// kernel returns the number of a kernel in the program. Equal kernels have one number.
func (p *planner) kernel(k *kernel.Kernel, text string) uint32 {
	i, ok := p.kernels[text]
	if !ok {
		i = len(p.out.Program.Kernels)
		p.kernels[text] = i
		p.out.Program.Kernels = append(p.out.Program.Kernels, k)
	}
	return uint32(i)
}

// sameRun reports whether all operands on a window run along the same dims.
func sameRun(k *kernel.Kernel, uses []use, tensor uint32) bool {
	var first *kernel.Operand
	for i, u := range uses {
		if u.Tensor != tensor {
			continue
		}
		o := &k.Operands[i]
		if first == nil {
			first = o
		}
		if o.Space != first.Space || !slices.Equal(o.Along, first.Along) {
			return false
		}
	}
	return true
}

// source is where a kernel finds an operand, a value of the group's graph.
func (f *group) source(v ir.ValueID) (location, ir.Type, refused) {
	g := f.Graph
	root := g.Root(v)
	t := g.Types[v]
	if own, ok := f.Source[root]; ok {
		own, why := f.own(own)
		if why != "" {
			return nowhere, t, why
		}
		if !f.p.reads.has(int(own)) {
			return nowhere, t, differs
		}
		at := *f.p.reads.value(int(own))
		if v == root {
			return at, f.p.g.Types[own], ""
		}
		if g.Nodes[g.Def[v]].Offset != ir.Const(0) { // a row of ir/decomp changes only sizes of 1
			return nowhere, t, "it reads a view at an offset"
		}
		return at, f.typ(t), ""
	}
	t = f.typ(t)
	offset := f.dim(g.Find(g.Nodes[g.Def[v]].Offset))
	if b, ok := f.temps[f.of(root)]; ok {
		return location{buffer: b, offset: offset}, t, ""
	}
	if left := f.leaves[root]; len(left) > 0 {
		own, why := f.own(left[0])
		if why != "" {
			return nowhere, t, why
		}
		at, err := f.p.locate(own)
		if err != nil {
			return nowhere, t, refused(err.Error())
		}
		if at.offset != ir.Const(0) {
			return nowhere, t, "it reads a part of what it has written"
		}
		if v != root {
			at.offset = offset
		} else if !f.Reshaped(v) {
			t = f.p.g.Types[own]
		}
		return at, t, ""
	}
	return nowhere, t, "it reads what no kernel before it has made"
}

// target is where a kernel leaves a value of the group's graph: the one location where the operators leave it, or a
// buffer of its own.
func (f *group) target(v ir.ValueID) (location, ir.Type, refused) {
	t := f.typ(f.Graph.Types[v])
	left := f.leaves[v]
	if len(left) == 0 {
		b := len(f.p.buffers)
		f.temps[f.of(v)] = b
		f.made = append(f.made, b)
		f.p.buffers = append(f.p.buffers, buffer{slot: -1, freed: true}) // the kernels' steps make and free it
		return location{buffer: b}, t, ""
	}
	own := left[0]
	if len(left) > 1 {
		own = left[f.next[f.of(v)]]
		f.next[f.of(v)]++
	}
	own, why := f.own(own)
	if why != "" {
		return nowhere, t, why
	}
	w, err := f.p.locate(own)
	if err != nil {
		return nowhere, t, refused(err.Error())
	}
	if !f.Reshaped(v) {
		t = f.p.g.Types[own]
	}
	return w, t, ""
}
