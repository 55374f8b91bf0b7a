// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package bind puts the sizes, strides, offsets and numbers of a call into the instances of a program's kernels. It has
// no addresses: every buffer begins at 0, and the caller adds addresses, which CUDA's allocator aligns to 512 bytes.
package bind

import (
	"fmt"
	"math"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
)

// Instances returns the instances of a kernel step of a valid program, for the parameters of a call. k is the step's
// kernel. An error means that the kernel must not run on them. The caller, which has the buffers, checks that the
// operands lie within them.
func Instances(k *kernel.Kernel, p *program.Program, op *program.Kernel, params []uint64) ([]cuda.Instance, error) {
	out := make([]cuda.Instance, 0, len(op.Instances))
	for i := range op.Instances {
		at := &op.Instances[i]
		in := cuda.Instance{Sizes: dims(at.Sizes, params)}
		var sizes [][]int64
		for _, u := range at.Uses {
			w := &p.Tensors[u.Tensor]
			sizes = append(sizes, dims(w.Sizes, params))
			in.Operands = append(in.Operands, operand(w, sizes[len(sizes)-1], params))
		}
		for j := range at.Numbers {
			in.Numbers = append(in.Numbers, Number(&at.Numbers[j], params))
		}
		if err := fits(k, &in, sizes); err != nil {
			return nil, fmt.Errorf("instance %d: %w", i, err)
		}
		out = append(out, in)
	}
	return out, nil
}

// Shape appends the parameters on which the launches of a step's kernel depend: all parameters that Instances reads,
// except numbers. It may append a parameter more than once, in any order. NumberParam returns the parameter of a
// number, or false for a literal.
func Shape(list []uint32, p *program.Program, op *program.Kernel) []uint32 {
	take := func(dims ...program.Dim) {
		for _, d := range dims {
			if i, ok := d.Param(); ok {
				list = append(list, i)
			}
		}
	}
	for i := range op.Instances {
		take(op.Instances[i].Sizes...)
		for _, u := range op.Instances[i].Uses {
			w := &p.Tensors[u.Tensor]
			take(w.Sizes...)
			take(w.Strides...)
			take(w.Offset)
		}
	}
	return list
}

func NumberParam(a *program.Arg) (uint32, bool) {
	return uint32(a.Value), a.Tag == catalogue.TagNumber || a.Tag == catalogue.TagScalar
}

func dims(list []program.Dim, params []uint64) []int64 {
	out := make([]int64, len(list))
	for i, d := range list {
		out[i] = d.At(params)
	}
	return out
}

func operand(t *program.Tensor, sizes []int64, params []uint64) cuda.Operand {
	bytes := uint64(t.Offset.At(params)) * uint64(catalogue.DTypeSize(uint64(t.DType)))
	o := cuda.Operand{Buffer: t.Buffer, Strides: dims(t.Strides, params), Address: bytes}
	if t.Strides == nil {
		o.Strides = make([]int64, len(sizes))
		step := int64(1)
		for i := len(sizes) - 1; i >= 0; i-- {
			o.Strides[i] = step
			step *= sizes[i]
		}
	}
	return o
}

// Number returns a number of a kernel's instance.
func Number(a *program.Arg, params []uint64) cuda.Number {
	switch a.Tag {
	case catalogue.TagInt:
		return cuda.Number{Integral: true, Whole: int64(a.Value)}
	case catalogue.TagFloat:
		return cuda.Number{Real: math.Float64frombits(a.Value)}
	case catalogue.TagBool:
		return cuda.Number{Integral: true, Whole: int64(min(a.Value, 1))}
	case catalogue.TagNumber:
		word := params[a.Value]
		if a.Head == catalogue.NumberF64 {
			return cuda.Number{Real: math.Float64frombits(word)}
		}
		return cuda.Number{Integral: true, Whole: int64(word)}
	case catalogue.TagScalar:
		return element(a.Head, params[a.Value])
	}
	panic(fmt.Sprintf("BUG: an argument of tag %d is no number of a kernel", a.Tag))
}

// element returns the element of a 0-dim tensor from the bits that it has in memory.
func element(dtype uint8, word uint64) cuda.Number {
	switch dtype {
	case 6:
		return cuda.Number{Real: half(uint16(word))}
	case 7:
		return cuda.Number{Real: float64(math.Float32frombits(uint32(word)))}
	case 8:
		return cuda.Number{Real: math.Float64frombits(word)}
	case 13:
		return cuda.Number{Real: float64(math.Float32frombits(uint32(word) << 16))}
	}
	v := int64(word)
	switch dtype {
	case 2:
		v = int64(int8(word))
	case 3:
		v = int64(int16(word))
	case 4:
		v = int64(int32(word))
	}
	return cuda.Number{Integral: true, Whole: v}
}

// half returns the value of binary16 bits.
func half(b uint16) float64 {
	sign, exponent, fraction := 1-2*float64(b>>15), int(b>>10&31), float64(b&1023)
	switch {
	case exponent == 31 && fraction != 0:
		return math.NaN()
	case exponent == 31:
		return math.Inf(int(sign))
	case exponent == 0:
		return sign * math.Ldexp(fraction, -24)
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
