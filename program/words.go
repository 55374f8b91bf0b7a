// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// Pack is words as bytes of the wire: each is a varint, with the sign in the lowest bit.
func Pack(words []uint64) []byte {
	b := make([]byte, 0, 2*len(words))
	for _, w := range words {
		b = binary.AppendVarint(b, int64(w))
	}
	return b
}

// Unpack is the inverse of Pack.
func Unpack(b []byte) ([]uint64, error) {
	if len(b) > MaxBytes {
		return nil, fmt.Errorf("program: %d bytes, at most %d are allowed", len(b), MaxBytes)
	}
	words := make([]uint64, 0, len(b))
	for len(b) > 0 {
		w, n := binary.Varint(b)
		if n <= 0 {
			return nil, fmt.Errorf("program: its bytes end within word %d, or that word has more than 64 bits", len(words))
		}
		words, b = append(words, uint64(w)), b[n:]
	}
	return slices.Clip(words), nil
}

// Words encodes a program that Validate accepts.
func (p *Program) Words() []uint64 {
	w := writer{words: make([]uint64, 0, 16*(1+len(p.Tensors)+len(p.Steps)))}
	w.put(uint64(p.Params), uint64(p.Buffers))
	indices(&w, p.Inputs)
	indices(&w, p.Outputs)
	w.names(p.Steps)
	w.put(uint64(len(p.Tensors)))
	for i := range p.Tensors {
		t := &p.Tensors[i]
		w.put(uint64(t.Buffer), uint64(t.DType), uint64(len(t.Sizes)))
		w.dims(t.Sizes)
		w.flag(t.Strides == nil)
		w.dims(t.Strides)
		w.dims([]Dim{t.Offset})
	}
	w.put(uint64(len(p.Kernels)))
	for _, k := range p.Kernels {
		w.kernel(k)
	}
	w.put(uint64(len(p.Steps)))
	for i, s := range p.Steps {
		w.put(s.kind(), uint64(p.Records[i]))
		w.step(s)
	}
	w.put(uint64(len(p.Versions)))
	for _, v := range p.Versions {
		w.put(uint64(v.Output), uint64(v.Record), uint64(v.Buffer), uint64(v.Writer))
	}
	return w.words
}

type writer struct {
	words []uint64
	name  map[string]uint64 // by operator: its index among the names
}

func (w *writer) put(v ...uint64) { w.words = append(w.words, v...) }

func (w *writer) flag(is bool) {
	if is {
		w.put(1)
	} else {
		w.put(0)
	}
}

func indices(w *writer, list []uint32) {
	w.put(uint64(len(list)))
	for _, i := range list {
		w.put(uint64(i))
	}
}

func (w *writer) dims(list []Dim) {
	for _, d := range list {
		w.put(uint64(d))
	}
}

// text writes the length in bytes and the bytes, zero padded to words.
func (w *writer) text(s string) {
	w.put(uint64(len(s)))
	for len(s) > 0 {
		var word [8]byte
		s = s[copy(word[:], s):]
		w.put(binary.LittleEndian.Uint64(word[:]))
	}
}

// names writes the names of the operators, each once, in the order of their first calls.
func (w *writer) names(steps []Step) {
	w.name = map[string]uint64{}
	at := len(w.words)
	w.put(0)
	for _, s := range steps {
		if c, ok := s.(*Call); ok {
			if _, known := w.name[c.Op]; !known {
				w.name[c.Op] = uint64(len(w.name))
				w.text(c.Op)
			}
		}
	}
	w.words[at] = uint64(len(w.name))
}

func (w *writer) kernel(k *kernel.Kernel) {
	w.put(uint64(len(k.Spaces)))
	for _, rank := range k.Spaces {
		w.put(uint64(rank))
	}
	w.put(uint64(k.Reduced), uint64(len(k.Operands)))
	for i := range k.Operands {
		o := &k.Operands[i]
		w.put(uint64(o.DType), uint64(o.Access), uint64(o.Space), uint64(len(o.Along)))
		for _, d := range o.Along {
			if d == kernel.Taken {
				d = kernel.MaxRank
			}
			w.put(uint64(d + 1))
		}
	}
	w.put(uint64(k.Numbers), uint64(len(k.Code)))
	for _, n := range k.Code {
		w.put(uint64(n.Op)|uint64(n.Class)<<8, n.A, n.B, n.C)
	}
}

func (w *writer) step(s Step) {
	switch s := s.(type) {
	case *Call:
		w.put(w.name[s.Op])
		w.args(s.Args)
		indices(w, s.Results)
		w.put(uint64(s.Flags))
	case *Copy:
		w.put(uint64(s.Dst), uint64(s.Src))
	case *Alloc:
		w.put(uint64(s.Buffer), uint64(s.Bytes))
	case *Clone:
		w.put(uint64(s.To), uint64(s.From))
	case *Free:
		w.put(uint64(s.Buffer))
	case *Resize:
		w.put(uint64(s.Buffer), uint64(s.Bytes))
	case *Fused:
		w.put(uint64(s.Kernels), uint64(s.Plain))
	case *Kernel:
		w.put(uint64(s.Kernel), uint64(len(s.Instances)))
		for i := range s.Instances {
			at := &s.Instances[i]
			w.dims(at.Sizes)
			for _, u := range at.Uses {
				w.put(uint64(u.Tensor))
				w.flag(u.Made)
			}
			for j := range at.Numbers {
				w.arg(&at.Numbers[j])
			}
		}
	}
}

func (w *writer) args(list []Arg) {
	w.put(uint64(len(list)))
	for i := range list {
		w.arg(&list[i])
	}
}

// arg writes the tag, the head if it is not the value itself, and the payload.
func (w *writer) arg(a *Arg) {
	row := catalogue.ArgKindOf(uint64(a.Tag))
	w.put(uint64(a.Tag))
	if row.HasHead() {
		w.put(uint64(a.Head))
	}
	switch row.Payload {
	case catalogue.PayloadText:
		w.text(a.Text)
	case catalogue.PayloadItems:
		w.args(a.Items)
	case catalogue.PayloadTensor, catalogue.PayloadParam, catalogue.PayloadWord, catalogue.PayloadHead:
		w.put(a.Value)
	}
}

// Parse makes the program of words. An error means that they break a rule.
func Parse(words []uint64) (*Program, error) {
	p, err := Decode(words)
	if err != nil {
		return nil, err
	}
	return p, p.Validate()
}

// Decode is Parse, but it checks only that the words follow the grammar.
func Decode(words []uint64) (*Program, error) {
	r := reader{left: words, all: len(words)}
	p := r.program()
	if r.err == nil && len(r.left) > 0 {
		r.fail("it has %d words too many", len(r.left))
	}
	if r.err != nil {
		return nil, fmt.Errorf("program: %w", r.err)
	}
	return p, nil
}

// reader reads words. After an error, it reads zeros.
type reader struct {
	left    []uint64
	all     int
	err     error
	ops     []string
	kernels []*kernel.Kernel
}

func (r *reader) fail(format string, args ...any) {
	if r.err == nil {
		r.err = fmt.Errorf("word %d: "+format, append([]any{r.all - len(r.left)}, args...)...)
	}
	r.left = nil
}

func (r *reader) word() uint64 {
	if len(r.left) == 0 {
		r.fail("it ends too early")
		return 0
	}
	w := r.left[0]
	r.left = r.left[1:]
	return w
}

// below reads a number of at most `most`. A larger number must not wrap around to one that fits a narrower field.
func (r *reader) below(what string, most uint64) uint64 {
	w := r.word()
	if w > most {
		r.fail("%s of %d, at most %d are allowed", what, int64(w), most)
		return 0
	}
	return w
}

func (r *reader) index(what string) uint32 { return uint32(r.below(what, math.MaxUint32)) }
func (r *reader) byte(what string) uint8   { return uint8(r.below(what, math.MaxUint8)) }

// count reads the number of items that follow. Each item has at least this number of words.
func (r *reader) count(what string, most, words int) int {
	n := r.below(what, uint64(most))
	if n > uint64(len(r.left)/max(words, 1)) && words > 0 {
		r.fail("%d %s in %d words", n, what, len(r.left))
		return 0
	}
	return int(n)
}

func (r *reader) indices(what string, most int) []uint32 {
	list := make([]uint32, r.count(what, most, 1))
	for i := range list {
		list[i] = r.index(what)
	}
	return list
}

func (r *reader) dims(n int) []Dim {
	list := make([]Dim, min(n, len(r.left)))
	for i := range n {
		d := Dim(r.word())
		if param, is := d.Param(); is && Param(param) != d {
			r.fail("a parameter of %d", ^d)
		}
		if i < len(list) {
			list[i] = d
		}
	}
	return list
}

func (r *reader) text(most int) string {
	bytes := r.below("bytes of a text", uint64(most))
	words := int(bytes+7) / 8
	if words > len(r.left) {
		r.fail("a text of %d bytes in %d words", bytes, len(r.left))
		return ""
	}
	b := make([]byte, 0, 8*words)
	for _, w := range r.left[:words] {
		b = binary.LittleEndian.AppendUint64(b, w)
	}
	r.left = r.left[words:]
	return string(b[:bytes])
}

func (r *reader) program() *Program {
	p := &Program{Params: uint32(r.below("parameters", MaxParams)), Buffers: uint32(r.below("buffers", MaxBuffers))}
	p.Inputs = r.indices("inputs", MaxRef)
	p.Outputs = r.indices("outputs", MaxRef)
	r.ops = make([]string, r.count("operators", MaxSteps, 1))
	for i := range r.ops {
		r.ops[i] = r.text(MaxOpName)
	}
	p.Tensors = make([]Tensor, r.count("tensors", MaxTensors, 5))
	for i := range p.Tensors {
		t := &p.Tensors[i]
		t.Buffer, t.DType = r.index("a buffer"), r.byte("a dtype")
		rank := r.count("dims", MaxRank, 1)
		t.Sizes = r.dims(rank)
		if r.below("whether strides follow", 1) == 0 {
			t.Strides = r.dims(rank)
		}
		t.Offset = r.dim()
	}
	p.Kernels = make([]*kernel.Kernel, r.count("kernels", MaxKernels, 5))
	for i := range p.Kernels {
		p.Kernels[i] = r.kernel()
	}
	r.kernels = p.Kernels
	n := r.count("steps", MaxSteps, 3)
	p.Steps, p.Records = make([]Step, n), make([]uint32, n)
	for i := 0; i < n && r.err == nil; i++ {
		kind := r.word()
		p.Records[i] = r.index("a record")
		p.Steps[i] = r.step(kind)
	}
	p.Versions = make([]Version, r.count("versions", MaxSteps, 4))
	for i := range p.Versions {
		p.Versions[i] = Version{r.index("an output"), r.index("a record"), r.index("a buffer"), r.index("a record")}
	}
	return p
}

func (r *reader) dim() Dim {
	if list := r.dims(1); len(list) == 1 {
		return list[0]
	}
	return 0
}

func (r *reader) kernel() *kernel.Kernel {
	k := &kernel.Kernel{Spaces: make([]int, r.count("index spaces", kernel.MaxSpaces, 1))}
	for i := range k.Spaces {
		k.Spaces[i] = int(r.below("dims of an index space", kernel.MaxRank))
	}
	k.Reduced = int(r.below("reduced dims", kernel.MaxRank))
	k.Operands = make([]kernel.Operand, r.count("operands", kernel.MaxOperands, 4))
	for i := range k.Operands {
		o := &k.Operands[i]
		o.DType, o.Access = r.byte("a dtype"), kernel.Access(r.below("an access", 3))
		o.Space = int(r.below("an index space", kernel.MaxSpaces))
		o.Along = make([]int8, r.count("dims", MaxRank, 1))
		for j := range o.Along {
			d := int8(r.below("a dim along which an operand runs", kernel.MaxRank+1)) - 1
			if d == kernel.MaxRank {
				d = kernel.Taken
			}
			o.Along[j] = d
		}
	}
	k.Numbers = int(r.below("numbers", kernel.MaxNumbers))
	k.Code = make([]kernel.Instr, r.count("instructions", kernel.MaxInstrs, 4))
	for i := range k.Code {
		head := r.below("the head of an instruction", math.MaxUint16)
		k.Code[i] = kernel.Instr{Op: kernel.Op(head), Class: kernel.Class(head >> 8), A: r.word(), B: r.word(), C: r.word()}
	}
	return k
}

func (r *reader) step(kind uint64) Step {
	switch kind {
	case catalogue.StepCall:
		return r.call()
	case catalogue.StepCopy:
		return &Copy{r.index("a tensor"), r.index("a tensor")}
	case catalogue.StepAlloc:
		return &Alloc{r.index("a buffer"), r.dim()}
	case catalogue.StepClone:
		return &Clone{r.index("a buffer"), r.index("a buffer")}
	case catalogue.StepFree:
		return &Free{r.index("a buffer")}
	case catalogue.StepResize:
		return &Resize{r.index("a buffer"), r.dim()}
	case catalogue.StepFused:
		return &Fused{r.index("a number of steps"), r.index("a number of steps")}
	case catalogue.StepKernel:
		return r.kernelStep()
	}
	r.fail("a step of kind %d", kind)
	return nil
}

func (r *reader) call() *Call {
	c := new(Call)
	op := r.index("an operator")
	if uint64(op) >= uint64(len(r.ops)) {
		r.fail("operator %d of %d", op, len(r.ops))
		return c
	}
	c.Op = r.ops[op]
	c.Args = r.args(MaxArgs, false)
	c.Results = r.indices("results", MaxResults)
	c.Flags = r.byte("flags")
	return c
}

func (r *reader) kernelStep() *Kernel {
	s := &Kernel{Kernel: r.index("a kernel")}
	if uint64(s.Kernel) >= uint64(len(r.kernels)) {
		r.fail("kernel %d of %d", s.Kernel, len(r.kernels))
		return s
	}
	k := r.kernels[s.Kernel]
	sizes := 0
	for _, rank := range k.Spaces {
		sizes += rank
	}
	s.Instances = make([]Instance, r.count("instances", MaxList, max(1, sizes+2*len(k.Operands)+2*k.Numbers)))
	for i := range s.Instances {
		at := &s.Instances[i]
		at.Sizes, at.Uses, at.Numbers = r.dims(sizes), make([]Use, len(k.Operands)), make([]Arg, k.Numbers)
		for j := range at.Uses {
			at.Uses[j] = Use{r.index("a tensor"), r.below("whether a buffer is made", 1) == 1}
		}
		for j := range at.Numbers {
			r.arg(&at.Numbers[j], true)
		}
	}
	return s
}

func (r *reader) args(most int, items bool) []Arg {
	list := make([]Arg, r.count("arguments", most, 1))
	for i := 0; i < len(list) && r.err == nil; i++ {
		r.arg(&list[i], items)
	}
	return list
}

// arg reads an argument. An item of a list is no list.
func (r *reader) arg(a *Arg, item bool) {
	a.Tag = r.byte("a tag")
	row := catalogue.ArgKindOf(uint64(a.Tag))
	if row == nil {
		r.fail("no argument has the tag %d", a.Tag)
		return
	}
	if row.HasHead() {
		a.Head = r.byte("the kind of an argument")
	}
	switch row.Payload {
	case catalogue.PayloadTensor, catalogue.PayloadParam:
		a.Value = uint64(r.index("an index"))
	case catalogue.PayloadWord, catalogue.PayloadHead:
		a.Value = r.word()
	case catalogue.PayloadText:
		a.Text = r.text(MaxString)
	case catalogue.PayloadItems:
		if item {
			r.fail("a list in a list")
			return
		}
		a.Items = r.args(MaxList, true)
	}
}
