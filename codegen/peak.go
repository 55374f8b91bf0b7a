// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
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
	p       *program.Program
	params  []uint64
	ops     bool     // of buffers are asked for
	window  []uint64 // by tensor: the bytes up to its last element
	buffers []lifetime
	step    int
	sizes   []ir.Dim // room for those of one window
	strides []ir.Dim
	kernels int // the first step past those of the last fused
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
	for i := range p.Tensors {
		t := &p.Tensors[i]
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
		if f, ok := s.(*program.Fused); ok {
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
func (w *walker) take(s program.Step) error {
	switch k := s.(type) {
	case *program.Call:
		w.call(k)
	case *program.Copy:
		to := w.p.Tensors[k.Dst].Buffer
		if b := &w.buffers[to]; b.first < 0 && !b.given {
			w.birth(to, w.window[k.Dst])
		}
		w.see(to, "copy")
		w.see(w.p.Tensors[k.Src].Buffer, "")
	case *program.Alloc:
		n, err := dimBytes(k.Bytes, w.params)
		if err != nil {
			return err
		}
		w.birth(k.Buffer, n)
		w.see(k.Buffer, "alloc")
	case *program.Clone:
		w.see(k.From, "")
		w.birth(k.To, w.buffers[k.From].bytes)
		w.see(k.To, "clone")
	case *program.Resize:
		n, err := dimBytes(k.Bytes, w.params)
		if err != nil {
			return err
		}
		b := &w.buffers[k.Buffer]
		w.grow(n) // the old memory exists too: it is copied from
		if b.made {
			w.live -= b.bytes
		}
		b.bytes, b.made = n, true
		w.see(k.Buffer, "resize")
	case *program.Kernel:
		for _, at := range k.Instances {
			for i, u := range at.Uses {
				b := w.p.Tensors[u.Tensor].Buffer
				op := ""
				if w.p.Kernels[k.Kernel].Operands[i].Access&kernel.Write != 0 {
					op = "kernel"
				}
				if u.Made {
					w.birth(b, w.window[u.Tensor])
				}
				w.see(b, op)
			}
		}
	case *program.Free:
		w.see(k.Buffer, "")
		w.live -= w.buffers[k.Buffer].bytes
	}
	return nil
}

func (w *walker) call(c *program.Call) {
	name, written := strings.TrimPrefix(c.Op, "aten::"), writtenBy(c)
	for i := range c.Args {
		eachTensor(&c.Args[i], func(t uint32) {
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
func writtenBy(c *program.Call) int {
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
func eachTensor(a *program.Arg, f func(uint32)) {
	if a.Tag == catalogue.TagTensor {
		f(uint32(a.Value))
	}
	for i := range a.Items {
		eachTensor(&a.Items[i], f)
	}
}

// windowEnd is the number of bytes up to the last element of a window.
func (w *walker) windowEnd(t *program.Tensor) (uint64, error) {
	d := Derived{ItemSize: ir.DType(t.DType).Size(), Sizes: w.dims(&w.sizes, t.Sizes)}
	if t.Strides != nil {
		d.Strides = w.dims(&w.strides, t.Strides)
	}
	n, err := d.Bytes(w.params)
	if err != nil || n == 0 || t.Offset == 0 {
		return n, err
	}
	before := Derived{ItemSize: d.ItemSize, Sizes: []ir.Dim{dimOf(t.Offset)}}
	skip, err := before.Bytes(w.params)
	if err != nil {
		return 0, err
	}
	n, over := bits.Add64(n, skip, 0)
	if over != 0 {
		return 0, fmt.Errorf("a window at offset %s ends past any memory", t.Offset)
	}
	return n, nil
}

func (w *walker) dims(room *[]ir.Dim, list []program.Dim) []ir.Dim {
	out := (*room)[:0]
	for _, d := range list {
		out = append(out, dimOf(d))
	}
	if out == nil {
		out = []ir.Dim{} // of a Derived, nil strides are contiguous
	}
	*room = out
	return out
}

// dimOf is a program's dim with its parameters as symbols.
func dimOf(d program.Dim) ir.Dim {
	if i, ok := d.Param(); ok {
		return ir.SymDim(int(i))
	}
	return ir.Const(int64(d))
}

func dimBytes(d program.Dim, params []uint64) (uint64, error) {
	n := Derived{ItemSize: 1, Sizes: []ir.Dim{dimOf(d)}}
	return n.Bytes(params)
}
