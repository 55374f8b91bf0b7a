// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// Limits of a program. They bound the memory that a hostile or broken peer can claim. Each is far above the needs of a
// trace.
const (
	MaxBytes   = 16 << 20 // packed; a 10,000-op step is about 1 MiB, and parsing costs at most ~40 times this
	MaxParams  = 1 << 22  // 32 MiB in a Call, half of what a frame's metadata may be
	MaxBuffers = 1 << 20
	MaxTensors = 1 << 20
	MaxSteps   = 1 << 20
	MaxKernels = 1 << 14
	MaxArgs    = 1 << 10 // PyTorch's longest schema has fewer than 40; custom ops may have more
	MaxResults = 1 << 16 // a Tensor[] return counts one per item
	MaxList    = 1 << 16 // a _foreach_ op over every parameter of a large model
	MaxOpName  = 1 << 10 // bytes
	MaxString  = 1 << 16 // bytes of a string argument: einsum equations, rounding modes
	MaxRank    = 255     // a trace has 8 bits for a rank
	MaxRef     = 1 << 18 // inputs, outputs: a step of AdamW has four inputs for each parameter
)

// Validate reports whether p obeys the rules. Every count is within its limit, every index in range, and every geometry
// complete. Steps use a buffer only between the step that makes it (or the start, for an input) and the step that frees
// it.
func (p *Program) Validate() error {
	v := validator{p: p}
	if err := v.header(); err != nil {
		return fmt.Errorf("program: %w", err)
	}
	for i := range p.Tensors {
		if err := v.tensor(&p.Tensors[i]); err != nil {
			return fmt.Errorf("program: tensor %d: %w", i, err)
		}
	}
	for i, k := range p.Kernels {
		if err := k.Verify(); err != nil {
			return fmt.Errorf("program: kernel %d: %w", i, err)
		}
	}
	for i := 0; i < len(p.Steps); i++ {
		at, err := i, error(nil)
		switch s := p.Steps[i].(type) {
		case *Fused:
			i, err = v.fused(i, s)
		case *Kernel:
			err = fmt.Errorf("a kernel outside the kernels of a fused step")
		default:
			err = v.step(s)
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
	return v.versions()
}

// versions checks what the program says about failures.
func (v *validator) versions() error {
	p := v.p
	last := Version{}
	for _, of := range p.Versions {
		switch {
		case of.Output >= uint32(len(p.Outputs)) || of.Buffer > p.Buffers:
			return fmt.Errorf("program: a version of output %d of %d in buffer %d of %d", of.Output, len(p.Outputs),
				of.Buffer, p.Buffers)
		case of.Record == 0 || of.Output < last.Output || of.Output == last.Output && of.Record < last.Record:
			return fmt.Errorf("program: version %d of output %d is out of order", of.Record, of.Output)
		}
		last = of
	}
	return nil
}

// validator walks a program in step order. alive has the buffers that exist at the current step.
type validator struct {
	p       *Program
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
	if len(p.Records) != len(p.Steps) {
		return fmt.Errorf("records of %d steps, it has %d", len(p.Records), len(p.Steps))
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

func (v *validator) param(i uint64, n int) error {
	if i+uint64(n) > uint64(v.p.Params) {
		return fmt.Errorf("parameter %d of %d", i+uint64(n)-1, v.p.Params)
	}
	return nil
}

func (v *validator) dim(d Dim) error {
	if i, ok := d.Param(); ok {
		return v.param(uint64(i), 1)
	}
	return nil
}

func (v *validator) dims(what string, list []Dim) error {
	for i, d := range list {
		if err := v.dim(d); err != nil {
			return fmt.Errorf("%s %d: %w", what, i, err)
		}
	}
	return nil
}

func (v *validator) tensor(t *Tensor) error {
	if err := v.buffer(t.Buffer); err != nil {
		return err
	}
	if catalogue.DTypeSize(uint64(t.DType)) == 0 {
		return fmt.Errorf("dtype %d doesn't exist", t.DType)
	}
	if err := atMost("dims", len(t.Sizes), MaxRank); err != nil {
		return err
	}
	if t.Strides != nil && len(t.Strides) != len(t.Sizes) {
		return fmt.Errorf("%d strides for %d sizes", len(t.Strides), len(t.Sizes))
	}
	if err := v.dims("size", t.Sizes); err != nil {
		return err
	}
	if err := v.dims("stride", t.Strides); err != nil {
		return err
	}
	return v.dims("offset", []Dim{t.Offset})
}

// window checks that a tensor exists at the current step.
func (v *validator) window(i uint64) error {
	if err := v.index(i); err != nil {
		return err
	}
	if err := v.exists(v.p.Tensors[i].Buffer); err != nil {
		return fmt.Errorf("tensor %d: %w", i, err)
	}
	return nil
}

func (v *validator) index(tensor uint64) error {
	if tensor >= uint64(len(v.p.Tensors)) {
		return fmt.Errorf("tensor %d of %d", tensor, len(v.p.Tensors))
	}
	return nil
}

func (v *validator) step(s Step) error {
	name, err := "", error(nil)
	switch s := s.(type) {
	case *Call:
		return v.call(s)
	case *Copy:
		name = "copy"
		if err = v.window(uint64(s.Src)); err == nil {
			if err = v.index(uint64(s.Dst)); err == nil {
				v.set(v.p.Tensors[s.Dst].Buffer, true)
			}
		}
	case *Alloc:
		name = "alloc"
		if err = v.birth(s.Buffer); err == nil {
			err = v.dim(s.Bytes)
		}
	case *Clone:
		name = "clone"
		if err = v.exists(s.From); err == nil {
			err = v.birth(s.To)
		}
	case *Free:
		name = "free"
		if err = v.exists(s.Buffer); err == nil {
			v.set(s.Buffer, false)
		}
	case *Resize:
		name = "resize"
		if err = v.exists(s.Buffer); err == nil {
			err = v.dim(s.Bytes)
		}
	case *Kernel:
		name, err = "kernel", v.kernel(s)
	default:
		return fmt.Errorf("is of no known kind")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

func (v *validator) call(c *Call) error {
	if c.Op == "" || len(c.Op) > MaxOpName {
		return fmt.Errorf("call: op name of %d bytes, want 1 to %d", len(c.Op), MaxOpName)
	}
	if err := v.callArgs(c); err != nil {
		return fmt.Errorf("call %q: %w", c.Op, err)
	}
	return nil
}

func (v *validator) callArgs(c *Call) error {
	if err := atMost("arguments", len(c.Args), MaxArgs); err != nil {
		return err
	}
	if err := atMost("results", len(c.Results), MaxResults); err != nil {
		return err
	}
	for i := range c.Args {
		a := &c.Args[i]
		check := v.arg
		if a.Tag == catalogue.TagList {
			check = v.list
		}
		if err := check(a); err != nil {
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

func (v *validator) list(l *Arg) error {
	if l.Head == 0 || l.Head >= catalogue.NumLists {
		return fmt.Errorf("list of kind %d", l.Head)
	}
	tags := catalogue.ListKinds[l.Head-1].Tags()
	if err := atMost("list items", len(l.Items), MaxList); err != nil {
		return err
	}
	for i := range l.Items {
		a := &l.Items[i]
		if tags>>a.Tag&1 == 0 {
			return fmt.Errorf("item %d: an argument of tag %d in a list of kind %d", i, a.Tag, l.Head)
		}
		if err := v.arg(a); err != nil {
			return fmt.Errorf("item %d: %w", i, err)
		}
	}
	return nil
}

// arg checks an argument that is not a list.
func (v *validator) arg(a *Arg) error {
	row := catalogue.ArgKindOf(uint64(a.Tag))
	if row == nil {
		return fmt.Errorf("is of no known kind")
	}
	switch row.Payload {
	case catalogue.PayloadTensor:
		return v.window(a.Value)
	case catalogue.PayloadParam:
		n, err := params(row, a.Head)
		if err != nil {
			return err
		}
		return v.param(a.Value, n)
	case catalogue.PayloadHead:
		if row.Head == catalogue.HeadDType && catalogue.DTypeOf(a.Value) == nil {
			return fmt.Errorf("dtype %d doesn't exist", a.Value)
		}
	case catalogue.PayloadText:
		return atMost("bytes of string", len(a.Text), MaxString)
	case catalogue.PayloadItems:
		return fmt.Errorf("a list in a list")
	}
	return nil
}

// params is the number of parameters of an argument whose payload is one.
func params(row *catalogue.ArgKind, head uint8) (int, error) {
	switch row.Head {
	case catalogue.HeadNumber:
		if head == 0 || int(head) > len(catalogue.NumberKinds) {
			return 0, fmt.Errorf("number of kind %d", head)
		}
		return catalogue.NumberKinds[head-1].Params, nil
	case catalogue.HeadDType:
		if size := catalogue.DTypeSize(uint64(head)); size > 0 {
			return max(1, size/8), nil
		}
		return 0, fmt.Errorf("scalar of dtype %d, which doesn't exist", head)
	}
	return 1, nil
}

// fused checks the steps that belong to the fused step i, and returns the last one. The kernels and the plain steps
// must leave the same buffers behind.
func (v *validator) fused(i int, f *Fused) (int, error) {
	first, steps := i+1, v.p.Steps
	if left := uint64(len(steps) - first); uint64(f.Kernels)+uint64(f.Plain) > left {
		return i, fmt.Errorf("fused: %d and %d steps of the %d that follow", f.Kernels, f.Plain, left)
	}
	plain := first + int(f.Kernels)
	end := plain + int(f.Plain)
	walk := func(from, to int, allowed func(Step) bool) ([]uint32, error) {
		v.changed = []uint32{}
		for j := from; j < to; j++ {
			if !allowed(steps[j]) {
				return nil, fmt.Errorf("step %d: a %T doesn't belong there", j, steps[j])
			}
			if err := v.step(steps[j]); err != nil {
				return nil, fmt.Errorf("step %d: %w", j, err)
			}
		}
		changed := v.changed
		v.changed = nil
		return odd(changed), nil
	}
	kernels := false
	one, err := walk(first, plain, func(s Step) bool {
		switch s := s.(type) {
		case *Call:
			return !kernels && (len(s.Results) == 0 || !hasTensor(s.Args))
		case *Kernel, *Alloc, *Free:
			kernels = true
			return true
		}
		return false
	})
	if err != nil {
		return i, fmt.Errorf("fused: %w", err)
	}
	for _, b := range one {
		v.alive[b] = !v.alive[b]
	}
	other, err := walk(plain, end, func(s Step) bool {
		switch s.(type) {
		case *Kernel, *Fused:
			return false
		}
		return true
	})
	if err != nil {
		return i, fmt.Errorf("fused: %w", err)
	}
	if !slices.Equal(one, other) {
		return i, fmt.Errorf("fused: its kernels change buffers %v, the steps in their place %v", one, other)
	}
	return end - 1, nil
}

// hasTensor reports whether an argument is a tensor or a list with a tensor.
func hasTensor(args []Arg) bool {
	return slices.ContainsFunc(args, func(a Arg) bool { return a.Tag == catalogue.TagTensor || hasTensor(a.Items) })
}

// odd sorts a list and returns the numbers that occur in it an odd number of times. A buffer that steps have made and
// freed again occurs twice, so it is not among them.
func odd(list []uint32) []uint32 {
	slices.Sort(list)
	out := list[:0]
	for i := 0; i < len(list); {
		j := i
		for j < len(list) && list[j] == list[i] {
			j++
		}
		b := list[i]
		if (j-i)%2 != 0 {
			out = append(out, b)
		}
		i = j
	}
	return out
}

func (v *validator) kernel(s *Kernel) error {
	if uint64(s.Kernel) >= uint64(len(v.p.Kernels)) {
		return fmt.Errorf("kernel %d of %d", s.Kernel, len(v.p.Kernels))
	}
	k := v.p.Kernels[s.Kernel]
	if err := atMost("instances", len(s.Instances), MaxList); err != nil {
		return err
	}
	sizes := 0
	for _, rank := range k.Spaces {
		sizes += rank
	}
	for i := range s.Instances {
		if err := v.instance(k, &s.Instances[i], sizes); err != nil {
			return fmt.Errorf("instance %d: %w", i, err)
		}
	}
	return nil
}

func (v *validator) instance(k *kernel.Kernel, at *Instance, sizes int) error {
	if len(at.Sizes) != sizes || len(at.Uses) != len(k.Operands) || len(at.Numbers) != k.Numbers {
		return fmt.Errorf("%d sizes, %d tensors, %d numbers, not %d, %d, %d", len(at.Sizes), len(at.Uses),
			len(at.Numbers), sizes, len(k.Operands), k.Numbers)
	}
	if err := v.dims("size", at.Sizes); err != nil {
		return err
	}
	for i := range at.Numbers {
		if err := v.number(&at.Numbers[i]); err != nil {
			return fmt.Errorf("number %d: %w", i, err)
		}
	}
	for _, made := range []bool{false, true} { // operands that are read must exist before any operand is made
		for i, u := range at.Uses {
			if u.Made != made {
				continue
			}
			if err := v.use(u, &k.Operands[i]); err != nil {
				return fmt.Errorf("operand %d: %w", i, err)
			}
		}
	}
	return nil
}

func (v *validator) use(u Use, o *kernel.Operand) error {
	if err := v.index(uint64(u.Tensor)); err != nil {
		return err
	}
	w := &v.p.Tensors[u.Tensor]
	switch {
	case w.DType != o.DType || len(w.Sizes) != len(o.Along):
		return fmt.Errorf("a tensor of dtype %d with %d dims, not %d with %d", w.DType, len(w.Sizes), o.DType, len(o.Along))
	case u.Made && o.Access != kernel.Write:
		return fmt.Errorf("is read, and made only now")
	case u.Made:
		return v.birth(w.Buffer)
	}
	return v.exists(w.Buffer)
}

// number checks a number of a kernel's instance.
func (v *validator) number(a *Arg) error {
	var class catalogue.Class
	switch a.Tag {
	case catalogue.TagNumber:
		if a.Head == catalogue.NumberC128 {
			class = catalogue.ClassComplex
		}
	case catalogue.TagScalar:
		if row := catalogue.DTypeOf(uint64(a.Head)); row != nil {
			class = row.Class
		}
	case catalogue.TagInt, catalogue.TagFloat, catalogue.TagBool:
	default:
		return fmt.Errorf("an argument of tag %d is no number", a.Tag)
	}
	if class == catalogue.ClassComplex {
		return fmt.Errorf("is complex")
	}
	return v.arg(a)
}
