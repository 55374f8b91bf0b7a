// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// taken is the place of a dim from which a TAKE takes, in a message.
const taken = kernel.MaxRank + 1

// KernelMessage makes the message of a kernel.
func KernelMessage(k *kernel.Kernel) *Kernel {
	m := &Kernel{Reduced: uint32(k.Reduced), Numbers: uint32(k.Numbers)}
	for _, rank := range k.Spaces {
		m.Spaces = append(m.Spaces, uint32(rank))
	}
	for _, o := range k.Operands {
		operand := &Kernel_Operand{Dtype: uint32(o.DType), Access: uint32(o.Access), Space: uint32(o.Space)}
		for _, d := range o.Along {
			if d == kernel.Taken {
				d = taken - 1
			}
			operand.Along = append(operand.Along, uint32(d+1))
		}
		m.Operands = append(m.Operands, operand)
	}
	for _, n := range k.Code {
		m.Code = append(m.Code, &Kernel_Instr{Op: uint32(n.Op), Class: uint32(n.Class), A: n.A, B: n.B, C: n.C})
	}
	return m
}

// Decode makes the kernel of a message and verifies it.
func (m *Kernel) Decode() (*kernel.Kernel, error) {
	if m == nil {
		return nil, fmt.Errorf("kernel: is missing")
	}
	// A number that does not fit a narrower field of a kernel must not wrap around to one that does.
	small := func(what string, v, limit uint32) error {
		if v > limit {
			return fmt.Errorf("kernel: %s of %d", what, v)
		}
		return nil
	}
	if err := small("reduced dims", m.Reduced, kernel.MaxRank); err != nil {
		return nil, err
	}
	if err := small("numbers", m.Numbers, kernel.MaxNumbers); err != nil {
		return nil, err
	}
	if len(m.Spaces) > kernel.MaxSpaces || len(m.Operands) > kernel.MaxOperands || len(m.Code) > kernel.MaxInstrs {
		return nil, fmt.Errorf("kernel: %d index spaces, %d operands, %d instructions, at most %d, %d, %d are allowed",
			len(m.Spaces),
			len(m.Operands), len(m.Code), kernel.MaxSpaces, kernel.MaxOperands, kernel.MaxInstrs)
	}
	k := &kernel.Kernel{Reduced: int(m.Reduced), Numbers: int(m.Numbers)}
	for _, rank := range m.Spaces {
		if err := small("an index space's rank", rank, kernel.MaxRank); err != nil {
			return nil, err
		}
		k.Spaces = append(k.Spaces, int(rank))
	}
	for i, o := range m.Operands {
		if o.GetDtype() > 255 || o.GetAccess() > 3 || o.GetSpace() > kernel.MaxSpaces || len(o.GetAlong()) > MaxRank {
			return nil, fmt.Errorf("kernel: operand %d: dtype %d, access %d, index space %d, %d dims", i, o.GetDtype(),
				o.GetAccess(), o.GetSpace(), len(o.GetAlong()))
		}
		operand := kernel.Operand{DType: uint8(o.GetDtype()), Access: kernel.Access(o.GetAccess()), Space: int(o.GetSpace())}
		for _, d := range o.GetAlong() {
			if err := small("a dim along which an operand runs", d, taken); err != nil {
				return nil, err
			}
			along := int8(d) - 1
			if d == taken {
				along = kernel.Taken
			}
			operand.Along = append(operand.Along, along)
		}
		k.Operands = append(k.Operands, operand)
	}
	for i, n := range m.Code {
		if n.GetOp() > 255 || n.GetClass() > 255 {
			return nil, fmt.Errorf("kernel: instruction %d: op %d, class %d", i, n.GetOp(), n.GetClass())
		}
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Op(n.GetOp()), Class: kernel.Class(n.GetClass()), A: n.GetA(),
			B: n.GetB(), C: n.GetC()})
	}
	return k, k.Verify()
}

// fused checks the steps that belong to the fused step i, and returns the last one. The kernels and the plain steps
// must leave the same buffers behind.
func (v *validator) fused(i int) (int, error) {
	f := v.p.Steps[i].GetFused()
	first, steps := i+1, v.p.Steps
	if left := uint64(len(steps) - first); uint64(f.GetKernels())+uint64(f.GetPlain()) > left {
		return i, fmt.Errorf("fused: %d and %d steps of the %d that follow", f.GetKernels(), f.GetPlain(), left)
	}
	plain := first + int(f.GetKernels())
	end := plain + int(f.GetPlain())
	walk := func(from, to int, allowed func(*Step) bool) ([]uint32, error) {
		v.changed = []uint32{}
		for j := from; j < to; j++ {
			if !allowed(steps[j]) {
				return nil, fmt.Errorf("step %d: a %T doesn't belong there", j, steps[j].GetKind())
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
	one, err := walk(first, plain, func(s *Step) bool {
		switch k := s.GetKind().(type) {
		case *Step_Call:
			return !kernels && (len(k.Call.GetResults()) == 0 || !hasTensor(k.Call.GetArgs()))
		case *Step_Kernel, *Step_Alloc, *Step_Free:
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
	other, err := walk(plain, end, func(s *Step) bool {
		switch s.GetKind().(type) {
		case *Step_Kernel, *Step_Fused:
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
func hasTensor(args []*Arg) bool {
	return slices.ContainsFunc(args, func(a *Arg) bool {
		_, is := a.GetKind().(*Arg_Tensor)
		return is || hasTensor(a.GetList().GetItems())
	})
}

// odd returns the numbers that occur an odd number of times, in order. A buffer made and freed again has not changed.
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

func (v *validator) kernel(c *KernelOp) error {
	if int64(c.GetKernel()) >= int64(len(v.kernels)) {
		return fmt.Errorf("kernel %d of %d", c.GetKernel(), len(v.kernels))
	}
	k := v.kernels[c.GetKernel()]
	if err := atMost("instances", len(c.GetInstances()), MaxList); err != nil {
		return err
	}
	sizes := 0
	for _, rank := range k.Spaces {
		sizes += rank
	}
	for i, at := range c.GetInstances() {
		if err := v.instance(k, at, sizes); err != nil {
			return fmt.Errorf("instance %d: %w", i, err)
		}
	}
	return nil
}

func (v *validator) instance(k *kernel.Kernel, at *KernelOp_Instance, sizes int) error {
	if len(at.GetSizes()) != sizes || len(at.GetTensors()) != len(k.Operands) || len(at.GetNumbers()) != k.Numbers {
		return fmt.Errorf("%d sizes, %d tensors, %d numbers, not %d, %d, %d", len(at.GetSizes()), len(at.GetTensors()),
			len(at.GetNumbers()), sizes,
			len(k.Operands), k.Numbers)
	}
	for i, d := range at.Sizes {
		if d.GetKind() == nil {
			return fmt.Errorf("size %d is missing", i)
		}
		if err := v.dim(d); err != nil {
			return fmt.Errorf("size %d: %w", i, err)
		}
	}
	for i, a := range at.Numbers {
		switch a.Flat().Tag {
		case catalogue.TagNumber, catalogue.TagScalar, catalogue.TagInt, catalogue.TagFloat, catalogue.TagBool:
			if isComplex(a) {
				return fmt.Errorf("number %d is complex", i)
			}
			if err := v.arg(a); err != nil {
				return fmt.Errorf("number %d: %w", i, err)
			}
		default:
			return fmt.Errorf("number %d is a %T", i, a.GetKind())
		}
	}
	for pass := range 2 { // operands that are read must exist before any operand is made
		for i, t := range at.Tensors {
			made := t&1 != 0
			if made != (pass == 1) {
				continue
			}
			if int64(t/2) >= int64(len(v.p.Tensors)) {
				return fmt.Errorf("tensor %d of %d", t/2, len(v.p.Tensors))
			}
			w, o := v.p.Tensors[t/2], k.Operands[i]
			switch {
			case w.Dtype != uint32(o.DType) || len(w.Sizes) != len(o.Along):
				return fmt.Errorf("operand %d is of dtype %d with %d dims, not %d with %d", i, w.Dtype, len(w.Sizes), o.DType,
					len(o.Along))
			case made && o.Access != kernel.Write:
				return fmt.Errorf("operand %d is read, and made only now", i)
			}
			var err error
			if made {
				err = v.birth(w.Buffer)
			} else {
				err = v.exists(w.Buffer)
			}
			if err != nil {
				return fmt.Errorf("operand %d: %w", i, err)
			}
		}
	}
	return nil
}

func isComplex(a *Arg) bool {
	if n := a.GetNumber(); n != nil {
		return n.GetKind() == NumberC128
	}
	row := catalogue.DTypeOf(uint64(a.GetScalar().GetDtype()))
	return row != nil && row.Class == catalogue.ClassComplex
}

// kernel writes a kernel in the executor's grammar.
func (w *words) kernel(k *Kernel) {
	w.put(uint64(len(k.Spaces)))
	for _, rank := range k.Spaces {
		w.put(uint64(rank))
	}
	w.put(uint64(k.Reduced), uint64(len(k.Operands)))
	for _, o := range k.Operands {
		w.put(uint64(o.Dtype), uint64(o.Access), uint64(o.Space), uint64(len(o.Along)))
		for _, d := range o.Along {
			w.put(uint64(d))
		}
	}
	w.put(uint64(k.Numbers), uint64(len(k.Code)))
	for _, n := range k.Code {
		w.put(uint64(n.Op)|uint64(n.Class)<<8, n.A, n.B, n.C)
	}
}

func (w *words) kernelOp(c *KernelOp) {
	w.put(catalogue.StepKernel, uint64(c.Kernel), uint64(len(c.Instances)))
	for _, at := range c.Instances {
		for _, d := range at.Sizes {
			w.dim(d)
		}
		for _, t := range at.Tensors {
			w.put(uint64(t/2), uint64(t&1))
		}
		for _, a := range at.Numbers {
			w.arg(a)
		}
	}
}
