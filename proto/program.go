// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package proto holds the messages of mycelya.proto, the rules that a program must obey, and the encoding of a program
// that the executor reads. It never runs anything and never reads tensor data.
package proto

import (
	"fmt"
	"math"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// Limits of a program. They bound the memory that a hostile or broken peer can claim. Each is far above the needs of a
// trace.
const (
	MaxProgramBytes = 16 << 20 // encoded; a 10,000-op step is about 1 MiB, and decoding costs at most ~50 times this
	MaxParams       = 1 << 22  // 32 MiB in a Call, half of what a frame's metadata may be
	MaxBuffers      = 1 << 20
	MaxTensors      = 1 << 20
	MaxSteps        = 1 << 20
	MaxKernels      = 1 << 14
	MaxArgs         = 1 << 10 // PyTorch's longest schema has fewer than 40; custom ops may have more
	MaxResults      = 1 << 16 // a Tensor[] return counts one per item
	MaxList         = 1 << 16 // a _foreach_ op over every parameter of a large model
	MaxOpName       = 1 << 10 // bytes
	MaxString       = 1 << 16 // bytes of a string argument: einsum equations, rounding modes
	MaxRank         = 255     // a trace has 8 bits for a rank
	MaxRef          = 1 << 18 // inputs, outputs: a step of AdamW has four inputs for each parameter
	KeyBytes        = 20      // 16 of the skeleton's hash, 4 of the variant
)

// DecodeProgram decodes and validates a program.
func DecodeProgram(b []byte) (*Program, error) {
	if len(b) > MaxProgramBytes {
		return nil, fmt.Errorf("program: %d bytes, at most %d are allowed", len(b), MaxProgramBytes)
	}
	p := new(Program)
	if err := protobuf.Unmarshal(b, p); err != nil {
		return nil, fmt.Errorf("program: %w", err)
	}
	return p, Validate(p)
}

// Validate reports whether p obeys the rules. Every count is within its limit, every index in range, and every geometry
// complete. Steps use a buffer only between the step that makes it (or the start, for an input) and the step that frees
// it. Words encodes every program that Validate accepts.
func Validate(p *Program) error {
	v := validator{p: p}
	if err := v.header(); err != nil {
		return fmt.Errorf("program: %w", err)
	}
	for i, t := range p.Tensors {
		if err := v.tensor(t); err != nil {
			return fmt.Errorf("program: tensor %d: %w", i, err)
		}
	}
	for i, m := range p.Kernels {
		k, err := m.Decode()
		if err != nil {
			return fmt.Errorf("program: kernel %d: %w", i, err)
		}
		v.kernels = append(v.kernels, k)
	}
	for i := 0; i < len(p.Steps); i++ {
		at, err := i, error(nil)
		switch p.Steps[i].GetKind().(type) {
		case *Step_Fused:
			i, err = v.fused(i)
		case *Step_Kernel:
			err = fmt.Errorf("a kernel outside the kernels of a fused step")
		default:
			err = v.step(p.Steps[i])
		}
		if err != nil {
			return fmt.Errorf("program: step %d: %w", at, err)
		}
	}
	for i, b := range p.Outputs {
		if !v.alive[b] {
			return fmt.Errorf("program: output %d: buffer %d doesn't exist at the end", i, b)
		}
	}
	return v.records()
}

// VersionWords is how many numbers of Program.Versions describe one version.
const VersionWords = 4

// records checks what the program says about failures.
func (v *validator) records() error {
	p := v.p
	if len(p.Records) != 0 && len(p.Records) != len(p.Steps) {
		return fmt.Errorf("program: records of %d steps, it has %d", len(p.Records), len(p.Steps))
	}
	if len(p.Versions)%VersionWords != 0 {
		return fmt.Errorf("program: %d numbers about versions, want %d each", len(p.Versions), VersionWords)
	}
	output, record := uint32(0), uint32(0)
	for v := p.Versions; len(v) > 0; v = v[VersionWords:] {
		switch {
		case v[0] >= uint32(len(p.Outputs)) || v[2] > p.Buffers:
			return fmt.Errorf("program: a version of output %d of %d in buffer %d of %d", v[0], len(p.Outputs), v[2], p.Buffers)
		case v[1] == 0 || v[0] < output || v[0] == output && v[1] < record:
			return fmt.Errorf("program: version %d of output %d is out of order", v[1], v[0])
		}
		output, record = v[0], v[1]
	}
	return nil
}

// validator walks a program in step order. alive has the buffers that exist at the current step.
type validator struct {
	p       *Program
	kernels []*kernel.Kernel
	alive   []bool
	changed []uint32 // unless nil: the buffers that steps have made or freed since it was set
}

func (v *validator) set(b uint32, alive bool) {
	if v.alive[b] != alive && v.changed != nil {
		v.changed = append(v.changed, b)
	}
	v.alive[b] = alive
}

func atMost(what string, n, limit int) error {
	if n > limit {
		return fmt.Errorf("%d %s, at most %d are allowed", n, what, limit)
	}
	return nil
}

func (v *validator) header() error {
	p := v.p
	if len(p.Key) != KeyBytes {
		return fmt.Errorf("key of %d bytes, want %d", len(p.Key), KeyBytes)
	}
	for _, c := range []struct {
		what     string
		n, limit int
	}{
		{"parameters", int(p.Params), MaxParams},
		{"buffers", int(p.Buffers), MaxBuffers},
		{"tensors", len(p.Tensors), MaxTensors},
		{"steps", len(p.Steps), MaxSteps},
		{"kernels", len(p.Kernels), MaxKernels},
		{"inputs", len(p.Inputs), MaxRef},
		{"outputs", len(p.Outputs), MaxRef},
	} {
		if err := atMost(c.what, c.n, c.limit); err != nil {
			return err
		}
	}
	v.alive = make([]bool, p.Buffers)
	for i, b := range p.Inputs {
		if err := v.birth(b); err != nil {
			return fmt.Errorf("input %d: %w", i, err)
		}
	}
	seen := make([]bool, p.Buffers)
	for i, b := range p.Outputs {
		if err := v.buffer(b); err != nil {
			return fmt.Errorf("output %d: %w", i, err)
		}
		if seen[b] {
			return fmt.Errorf("output %d: buffer %d is an output twice", i, b)
		}
		seen[b] = true
	}
	return nil
}

func (v *validator) buffer(b uint32) error {
	if b >= v.p.Buffers {
		return fmt.Errorf("buffer %d of %d", b, v.p.Buffers)
	}
	return nil
}

func (v *validator) birth(b uint32) error {
	if err := v.buffer(b); err != nil {
		return err
	}
	if v.alive[b] {
		return fmt.Errorf("buffer %d is made while it exists", b)
	}
	v.set(b, true)
	return nil
}

func (v *validator) exists(b uint32) error {
	if err := v.buffer(b); err != nil {
		return err
	}
	if !v.alive[b] {
		return fmt.Errorf("buffer %d is used but doesn't exist here", b)
	}
	return nil
}

func (v *validator) param(i, n uint32) error {
	if uint64(i)+uint64(n) > uint64(v.p.Params) {
		return fmt.Errorf("parameter %d of %d", i+n-1, v.p.Params)
	}
	return nil
}

// dim checks a dim. An absent dim is 0.
func (v *validator) dim(d *Dim) error {
	switch k := d.GetKind().(type) {
	case *Dim_Const:
		if k.Const > math.MaxInt64 {
			return fmt.Errorf("a constant of %d is not an int64", k.Const)
		}
	case *Dim_Param:
		return v.param(k.Param, 1)
	}
	return nil
}

func (v *validator) tensor(t *Tensor) error {
	if t == nil {
		return fmt.Errorf("is missing")
	}
	if err := v.buffer(t.Buffer); err != nil {
		return err
	}
	if DTypeSize(t.Dtype) == 0 {
		return fmt.Errorf("dtype %d doesn't exist", t.Dtype)
	}
	rank := len(t.Sizes)
	if err := atMost("dims", rank, MaxRank); err != nil {
		return err
	}
	switch {
	case t.Contiguous && len(t.Strides) != 0:
		return fmt.Errorf("contiguous, but has %d strides", len(t.Strides))
	case !t.Contiguous && len(t.Strides) != rank:
		return fmt.Errorf("%d strides for %d sizes", len(t.Strides), rank)
	}
	for i, d := range t.Sizes {
		if d.GetKind() == nil {
			return fmt.Errorf("size %d is missing", i)
		}
		if err := v.dim(d); err != nil {
			return fmt.Errorf("size %d: %w", i, err)
		}
	}
	for i, d := range t.Strides {
		if d.GetKind() == nil {
			return fmt.Errorf("stride %d is missing", i)
		}
		if err := v.dim(d); err != nil {
			return fmt.Errorf("stride %d: %w", i, err)
		}
	}
	if err := v.dim(t.Offset); err != nil {
		return fmt.Errorf("offset: %w", err)
	}
	return nil
}

// window checks that tensor i exists at the current step.
func (v *validator) window(i uint32) error {
	if int64(i) >= int64(len(v.p.Tensors)) {
		return fmt.Errorf("tensor %d of %d", i, len(v.p.Tensors))
	}
	if err := v.exists(v.p.Tensors[i].Buffer); err != nil {
		return fmt.Errorf("tensor %d: %w", i, err)
	}
	return nil
}

func (v *validator) step(s *Step) error {
	switch k := s.GetKind().(type) {
	case *Step_Call:
		return v.call(k.Call)
	case *Step_Copy:
		if err := v.window(k.Copy.GetSrc()); err != nil {
			return fmt.Errorf("copy: %w", err)
		}
		dst := k.Copy.GetDst()
		if int64(dst) >= int64(len(v.p.Tensors)) {
			return fmt.Errorf("copy: tensor %d of %d", dst, len(v.p.Tensors))
		}
		v.set(v.p.Tensors[dst].Buffer, true)
	case *Step_Alloc:
		if err := v.birth(k.Alloc.GetBuffer()); err != nil {
			return fmt.Errorf("alloc: %w", err)
		}
		if err := v.dim(k.Alloc.GetBytes()); err != nil {
			return fmt.Errorf("alloc: bytes: %w", err)
		}
	case *Step_Clone:
		if err := v.exists(k.Clone.GetFrom()); err != nil {
			return fmt.Errorf("clone: %w", err)
		}
		if err := v.birth(k.Clone.GetTo()); err != nil {
			return fmt.Errorf("clone: %w", err)
		}
	case *Step_Free:
		b := k.Free.GetBuffer()
		if err := v.exists(b); err != nil {
			return fmt.Errorf("free: %w", err)
		}
		v.set(b, false)
	case *Step_Resize:
		if err := v.exists(k.Resize.GetBuffer()); err != nil {
			return fmt.Errorf("resize: %w", err)
		}
		if err := v.dim(k.Resize.GetBytes()); err != nil {
			return fmt.Errorf("resize: bytes: %w", err)
		}
	case *Step_Kernel:
		if err := v.kernel(k.Kernel); err != nil {
			return fmt.Errorf("kernel: %w", err)
		}
	default:
		return fmt.Errorf("is of no known kind")
	}
	return nil
}

func (v *validator) call(c *CallOp) error {
	if c.GetOp() == "" || len(c.GetOp()) > MaxOpName {
		return fmt.Errorf("call: op name of %d bytes, want 1 to %d", len(c.GetOp()), MaxOpName)
	}
	if err := v.callArgs(c); err != nil {
		return fmt.Errorf("call %q: %w", c.Op, err)
	}
	return nil
}

func (v *validator) callArgs(c *CallOp) error {
	if err := atMost("arguments", len(c.Args), MaxArgs); err != nil {
		return err
	}
	if err := atMost("results", len(c.Results), MaxResults); err != nil {
		return err
	}
	for i, a := range c.Args {
		if l, ok := a.GetKind().(*Arg_List_); ok {
			if err := v.list(l.List); err != nil {
				return fmt.Errorf("argument %d: %w", i, err)
			}
			continue
		}
		if err := v.arg(a); err != nil {
			return fmt.Errorf("argument %d: %w", i, err)
		}
	}
	for i, r := range c.Results {
		if r == 0 {
			continue
		}
		if int64(r) > int64(len(v.p.Tensors)) {
			return fmt.Errorf("result %d: tensor %d of %d", i, r-1, len(v.p.Tensors))
		}
		if err := v.birth(v.p.Tensors[r-1].Buffer); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	return nil
}

func (v *validator) list(l *Arg_List) error {
	if l.GetKind() == 0 || l.GetKind() >= catalogue.NumLists {
		return fmt.Errorf("list of kind %d", l.GetKind())
	}
	tags := catalogue.ListKinds[l.Kind-1].Tags()
	if err := atMost("list items", len(l.Items), MaxList); err != nil {
		return err
	}
	for i, a := range l.Items {
		if tags>>a.Flat().Tag&1 == 0 {
			return fmt.Errorf("item %d: a %T in a list of kind %d", i, a.GetKind(), l.Kind)
		}
		if err := v.arg(a); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// arg checks an argument that is not a list.
func (v *validator) arg(a *Arg) error {
	f := a.Flat()
	kind := catalogue.ArgKindOf(f.Tag)
	if kind == nil {
		return fmt.Errorf("is of no known kind")
	}
	switch kind.Payload {
	case catalogue.PayloadTensor:
		return v.window(uint32(f.Value))
	case catalogue.PayloadParam:
		n, err := params(kind, f.Head)
		if err != nil {
			return err
		}
		return v.param(uint32(f.Value), n)
	case catalogue.PayloadHead:
		if kind.Head == catalogue.HeadDType && catalogue.DTypeOf(f.Value) == nil {
			return fmt.Errorf("dtype %d doesn't exist", f.Value)
		}
	case catalogue.PayloadText:
		return atMost("bytes of string", len(f.Text), MaxString)
	case catalogue.PayloadItems:
		return fmt.Errorf("a list in a list")
	}
	return nil
}

// params is the number of parameters of an argument whose payload is one.
func params(kind *catalogue.ArgKind, head uint64) (uint32, error) {
	switch kind.Head {
	case catalogue.HeadNumber:
		if n := numberParams(head); n != 0 {
			return n, nil
		}
		return 0, fmt.Errorf("number of kind %d", head)
	case catalogue.HeadDType:
		if n := elementParams(head); n != 0 {
			return n, nil
		}
		return 0, fmt.Errorf("scalar of dtype %d, which doesn't exist", head)
	}
	return 1, nil
}

// ValidateCall reports whether c fits p: equal numbers of parameters, inputs and outputs, no storage twice among the
// inputs or the outputs, and no input 0.
func ValidateCall(p *Program, c *Call) error {
	switch {
	case len(c.Params) != int(p.Params):
		return fmt.Errorf("call: %d parameters, the program has %d", len(c.Params), p.Params)
	case len(c.Inputs) != len(p.Inputs):
		return fmt.Errorf("call: %d inputs, the program has %d", len(c.Inputs), len(p.Inputs))
	case len(c.Outputs) != len(p.Outputs):
		return fmt.Errorf("call: %d outputs, the program has %d", len(c.Outputs), len(p.Outputs))
	}
	seen := make(map[uint64]bool, len(c.Inputs)+len(c.Outputs))
	for i, s := range c.Inputs {
		if s == 0 || seen[s] {
			return fmt.Errorf("call: input %d is storage %d, which is 0 or an input already", i, s)
		}
		seen[s] = true
	}
	clear(seen)
	for i, s := range c.Outputs {
		if s != 0 && seen[s] {
			return fmt.Errorf("call: output %d is storage %d, which is an output already", i, s)
		}
		seen[s] = true
	}
	return nil
}
