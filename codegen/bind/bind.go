// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package bind puts the sizes, strides, offsets and numbers of a call into the instances of a program's kernels. It has
// no addresses: every buffer begins at 0, and the caller adds addresses, which CUDA's allocator aligns to 512 bytes.
package bind

import (
	"fmt"
	"math"

	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/proto"
)

// Instances returns the instances of a kernel step of a valid program, for the parameters of a call. k is the step's
// kernel. An error means that the kernel must not run on them. The caller, which has the buffers, checks that the
// operands lie within them.
func Instances(k *kernel.Kernel, p *proto.Program, op *proto.KernelOp, params []uint64) ([]cuda.Instance, error) {
	out := make([]cuda.Instance, 0, len(op.GetInstances()))
	for i, at := range op.GetInstances() {
		in := cuda.Instance{Sizes: dims(at.Sizes, params)}
		var sizes [][]int64
		for _, t := range at.Tensors {
			w := p.Tensors[t/2]
			sizes = append(sizes, dims(w.Sizes, params))
			in.Operands = append(in.Operands, operand(w, sizes[len(sizes)-1], params))
		}
		for _, a := range at.Numbers {
			in.Numbers = append(in.Numbers, Number(a, params))
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
func Shape(list []uint32, p *proto.Program, op *proto.KernelOp) []uint32 {
	take := func(dims ...*proto.Dim) {
		for _, d := range dims {
			if k, ok := d.GetKind().(*proto.Dim_Param); ok {
				list = append(list, k.Param)
			}
		}
	}
	for _, at := range op.GetInstances() {
		take(at.Sizes...)
		for _, t := range at.Tensors {
			w := p.Tensors[t/2]
			take(w.Sizes...)
			take(w.Strides...)
			take(w.Offset)
		}
	}
	return list
}

func NumberParam(a *proto.Arg) (uint32, bool) {
	switch k := a.GetKind().(type) {
	case *proto.Arg_Number_:
		return k.Number.Param, true
	case *proto.Arg_Scalar_:
		return k.Scalar.Param, true
	}
	return 0, false
}

func dim(d *proto.Dim, params []uint64) int64 {
	if p, ok := d.GetKind().(*proto.Dim_Param); ok {
		return int64(params[p.Param])
	}
	return int64(d.GetConst())
}

func dims(list []*proto.Dim, params []uint64) []int64 {
	out := make([]int64, len(list))
	for i, d := range list {
		out[i] = dim(d, params)
	}
	return out
}

func operand(t *proto.Tensor, sizes []int64, params []uint64) cuda.Operand {
	bytes := uint64(dim(t.Offset, params)) * uint64(proto.DTypeSize(t.Dtype))
	o := cuda.Operand{Buffer: t.Buffer, Strides: dims(t.Strides, params), Address: bytes}
	if t.Contiguous {
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
func Number(a *proto.Arg, params []uint64) cuda.Number {
	whole := func(v int64) cuda.Number { return cuda.Number{Integral: true, Whole: v} }
	switch k := a.GetKind().(type) {
	case *proto.Arg_Int:
		return whole(k.Int)
	case *proto.Arg_Float:
		return cuda.Number{Real: k.Float}
	case *proto.Arg_Bool:
		if k.Bool {
			return whole(1)
		}
		return whole(0)
	case *proto.Arg_Number_:
		word := params[k.Number.Param]
		if k.Number.Kind == proto.NumberF64 {
			return cuda.Number{Real: math.Float64frombits(word)}
		}
		return whole(int64(word))
	case *proto.Arg_Scalar_:
		return element(k.Scalar.Dtype, params[k.Scalar.Param])
	}
	panic(fmt.Sprintf("BUG: %T is no number of a kernel", a.GetKind()))
}

// element returns the element of a 0-dim tensor from the bits that it has in memory.
func element(dtype uint32, word uint64) cuda.Number {
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
