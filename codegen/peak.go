// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/proto"
)

// Peak is the most memory that a call of a program holds, in bytes. Memory that an operator allocates and frees within
// its step does not count.
type Peak struct {
	Bytes    uint64 // of buffers that the program makes: the most at one time
	Step     int    // the first step with so many; -1 if the program makes no buffer
	Storages uint64 // of the storages that it is given, up to the end of its windows
}

// Peak returns the peak of a call with these parameters, which are those of Params. It walks all steps, so it must not
// be called while a call is sent.
func (c *Compiled) Peak(params []uint64) (Peak, error) {
	w, err := c.walk(params, false)
	return w.peak, err
}

// lifetime is what a program does with one buffer.
type lifetime struct {
	bytes       uint64
	given, made bool     // it holds a storage at the start; the program allocates it
	first, last int      // steps that see it
	ops         []string // that make or write it, in order, if they are asked for
}

// walker walks a program with the sizes of its buffers.
type walker struct {
	p       *proto.Program
	params  []uint64
	ops     bool     // of buffers are asked for
	window  []uint64 // by tensor: the bytes up to its last element
	buffers []lifetime
	step    int
	sizes   []ir.Dim // room for those of one window
	kernels int      // the first step past those of the last fused
	live    uint64
	peak    Peak
}

func (c *Compiled) walk(params []uint64, ops bool) (*walker, error) {
	p := c.Program
	w := &walker{
		p: p, params: params, ops: ops, window: make([]uint64, len(p.Tensors)), buffers: make([]lifetime, p.Buffers),
		peak: Peak{Step: -1},
	}
	for i := range w.buffers {
		w.buffers[i].first = -1
	}
	for _, b := range p.Inputs {
		w.buffers[b].given = true
	}
	for i, t := range p.Tensors {
		n, err := w.windowEnd(t)
		if err != nil {
			return w, err
		}
		w.window[i] = n
		if b := &w.buffers[t.Buffer]; b.given {
			b.bytes = max(b.bytes, n)
		}
	}
	for _, b := range p.Inputs {
		w.peak.Storages += w.buffers[b].bytes
	}
	plain := 0 // steps that kernels before them replace
	for i, s := range p.Steps {
		if plain > 0 && i >= w.kernels {
			plain--
			continue
		}
		if f := s.GetFused(); f != nil {
			w.kernels, plain = i+1+int(f.Kernels), int(f.Plain)
			continue
		}
		w.step = i
		if err := w.take(s); err != nil {
			return w, fmt.Errorf("step %d: %w", i, err)
		}
	}
	for _, b := range p.Outputs {
		w.buffers[b].last = len(p.Steps)
	}
	return w, nil
}

// take walks one step. The results of a call exist together with its operands: frees are steps of their own.
func (w *walker) take(s *proto.Step) error {
	switch k := s.Kind.(type) {
	case *proto.Step_Call:
		w.call(k.Call)
	case *proto.Step_Copy:
		to := w.p.Tensors[k.Copy.Dst].Buffer
		if b := &w.buffers[to]; b.first < 0 && !b.given {
			w.birth(to, w.window[k.Copy.Dst])
		}
		w.see(to, "copy")
		w.see(w.p.Tensors[k.Copy.Src].Buffer, "")
	case *proto.Step_Alloc:
		n, err := dimBytes(k.Alloc.Bytes, w.params)
		if err != nil {
			return err
		}
		w.birth(k.Alloc.Buffer, n)
		w.see(k.Alloc.Buffer, "alloc")
	case *proto.Step_Clone:
		w.see(k.Clone.From, "")
		w.birth(k.Clone.To, w.buffers[k.Clone.From].bytes)
		w.see(k.Clone.To, "clone")
	case *proto.Step_Resize:
		n, err := dimBytes(k.Resize.Bytes, w.params)
		if err != nil {
			return err
		}
		b := &w.buffers[k.Resize.Buffer]
		w.grow(n) // the old memory exists too: it is copied from
		if b.made {
			w.live -= b.bytes
		}
		b.bytes, b.made = n, true
		w.see(k.Resize.Buffer, "resize")
	case *proto.Step_Kernel:
		for _, at := range k.Kernel.Instances {
			for i, t := range at.Tensors {
				b := w.p.Tensors[t/2].Buffer
				op := ""
				if w.p.Kernels[k.Kernel.Kernel].Operands[i].Access&uint32(kernel.Write) != 0 {
					op = "kernel"
				}
				if t&1 != 0 {
					w.birth(b, w.window[t/2])
				}
				w.see(b, op)
			}
		}
	case *proto.Step_Free:
		w.see(k.Free.Buffer, "")
		w.live -= w.buffers[k.Free.Buffer].bytes
	}
	return nil
}

func (w *walker) call(c *proto.CallOp) {
	name, written := strings.TrimPrefix(c.Op, "aten::"), writtenBy(c)
	for i, a := range c.Args {
		eachTensor(a, func(t uint32) {
			if i == written {
				w.see(w.p.Tensors[t].Buffer, name)
			} else {
				w.see(w.p.Tensors[t].Buffer, "")
			}
		})
	}
	for _, r := range c.Results {
		if r != 0 {
			w.birth(w.p.Tensors[r-1].Buffer, w.window[r-1])
			w.see(w.p.Tensors[r-1].Buffer, name)
		}
	}
}

func (w *walker) birth(b uint32, bytes uint64) {
	w.buffers[b] = lifetime{bytes: bytes, made: true, first: -1}
	w.grow(bytes)
}

func (w *walker) grow(bytes uint64) {
	if w.live += bytes; w.live > w.peak.Bytes {
		w.peak.Bytes, w.peak.Step = w.live, w.step
	}
}

// see notes that a step reads a buffer or, with its name, makes or writes it.
func (w *walker) see(b uint32, op string) {
	l := &w.buffers[b]
	if l.first < 0 {
		l.first = w.step
	}
	l.last = w.step
	if op != "" && w.ops {
		l.ops = append(l.ops, op)
	}
}

// writtenBy is the index of the argument that an operator overwrites by its name, or -1.
func writtenBy(c *proto.CallOp) int {
	base, _, _ := strings.Cut(c.Op, ".")
	switch _, out := ir.FormOver(c.Op); {
	case out:
		return len(c.Args) - 1
	case strings.HasSuffix(base, "_"):
		return 0
	}
	return -1
}

// eachTensor calls f with the tensors of an argument.
func eachTensor(a *proto.Arg, f func(uint32)) {
	switch k := a.Kind.(type) {
	case *proto.Arg_Tensor:
		f(k.Tensor)
	case *proto.Arg_List_:
		for _, item := range k.List.Items {
			eachTensor(item, f)
		}
	}
}

// windowEnd is the number of bytes up to the last element of a window.
func (w *walker) windowEnd(t *proto.Tensor) (uint64, error) {
	w.sizes = w.sizes[:0]
	for _, x := range t.Sizes {
		w.sizes = append(w.sizes, dimOf(x))
	}
	d := Derived{ItemSize: ir.DType(t.Dtype).Size(), Sizes: w.sizes}
	if !t.Contiguous {
		d.Strides = make([]ir.Dim, 0, len(t.Strides))
		for _, x := range t.Strides {
			d.Strides = append(d.Strides, dimOf(x))
		}
	}
	n, err := d.Bytes(w.params)
	if err != nil || n == 0 || t.Offset == nil {
		return n, err
	}
	before := Derived{ItemSize: d.ItemSize, Sizes: []ir.Dim{dimOf(t.Offset)}}
	skip, err := before.Bytes(w.params)
	if err != nil {
		return 0, err
	}
	n, over := bits.Add64(n, skip, 0)
	if over != 0 {
		return 0, fmt.Errorf("a window at offset %s ends past any memory", DimText(t.Offset))
	}
	return n, nil
}

// dimOf is a program's dim with its parameters as symbols.
func dimOf(d *proto.Dim) ir.Dim {
	if p, ok := d.GetKind().(*proto.Dim_Param); ok {
		return ir.SymDim(int(p.Param))
	}
	return ir.Const(int64(d.GetConst()))
}

func dimBytes(d *proto.Dim, params []uint64) (uint64, error) {
	n := Derived{ItemSize: 1, Sizes: []ir.Dim{dimOf(d)}}
	return n.Bytes(params)
}
