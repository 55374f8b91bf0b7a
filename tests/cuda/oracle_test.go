// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"math"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/ref"
)

// programOf returns a program with a kernel as its only step. All its buffers are inputs.
func programOf(k *kernel.Kernel, instances []*bound, buffers int) *program.Program {
	list := func(all []int64) []program.Dim {
		out := make([]program.Dim, len(all))
		for i, v := range all {
			out[i] = program.Dim(v)
		}
		return out
	}
	p := &program.Program{Buffers: uint32(buffers), Kernels: []*kernel.Kernel{k}}
	for b := range uint32(buffers) {
		p.Inputs = append(p.Inputs, b)
	}
	op := &program.Kernel{}
	for _, b := range instances {
		at := program.Instance{Sizes: list(b.sizes)}
		for i, t := range b.tensors {
			at.Uses = append(at.Uses, program.Use{Tensor: uint32(len(p.Tensors))})
			p.Tensors = append(p.Tensors, program.Tensor{Buffer: uint32(t.buffer), DType: k.Operands[i].DType,
				Sizes: list(t.sizes), Strides: list(t.strides), Offset: program.Dim(t.offset)})
		}
		for _, n := range b.numbers {
			a := program.Arg{Tag: catalogue.TagFloat, Value: math.Float64bits(n.Real)}
			if n.Integral {
				a = program.Int(n.Whole)
			}
			at.Numbers = append(at.Numbers, a)
		}
		op.Instances = append(op.Instances, at)
	}
	p.Steps, p.Records = []program.Step{&program.Fused{Kernels: 1}, op}, make([]uint32, 2)
	return p
}

// meaning returns the buffers after ir/eval has run a kernel. It returns false if the kernel has no meaning, such as a
// maximum of no elements.
func meaning(t require.TestingT, k *kernel.Kernel, instances []*bound, buffers [][]byte) ([][]byte, bool) {
	x, err := ref.Backend{Kernels: true}.New("")
	require.NoError(t, err)
	defer x.Close()
	p := programOf(k, instances, len(buffers))
	prepared, err := x.Prepare(p, nil)
	require.NoError(t, err)
	var inputs []uint64
	for i, data := range buffers {
		memory, err := x.UploadBegin(uint64(i+1), uint64(len(data)))
		require.NoError(t, err)
		copy(memory, data)
		require.NoError(t, x.UploadEnd(uint64(i+1)))
		inputs = append(inputs, uint64(i), uint64(i+1))
	}
	if failed, errs := x.Run(prepared, nil, inputs, nil, nil, 1); failed > 0 {
		require.Contains(t, errs[0].Cause.Text, "of no elements", "%s", k)
		return nil, false
	}
	out := make([][]byte, len(buffers))
	for i, data := range buffers {
		v := &proto.Read{Storage: uint64(i + 1), Dtype: uint32(ir.U8), Sizes: []int64{int64(len(data))}, Strides: []int64{1}}
		require.NoError(t, x.Read(v, func(b []byte) error { out[i] = append([]byte{}, b...); return nil }))
	}
	return out, true
}

// newJob lays out buffers in the emulator's memory and binds a kernel to them. The kernel must not write the gaps
// around the buffers.
func newJob(k *kernel.Kernel, instances []*bound, buffers [][]byte, sms int) *job {
	const room = 64
	j := &job{k: k, sms: sms, bytes: room}
	at := make([]uint64, len(buffers))
	for i, data := range buffers {
		at[i] = arena + j.bytes
		padded := make([]byte, room)
		for r := range padded {
			padded[r] = 0xa5
		}
		j.segments = append(j.segments, segment{at[i], data}, segment{at[i] + uint64(len(data)), padded})
		// the alignment of CUDA's allocator: more than a vector
		j.bytes = (j.bytes + uint64(len(data)) + 2*room - 1) / room * room
	}
	for _, b := range instances {
		in := cuda.Instance{Sizes: b.sizes, Numbers: b.numbers}
		var bases []uint64
		for i, t := range b.tensors {
			address := uint64(t.offset) * uint64(ir.DType(k.Operands[i].DType).Size())
			operand := cuda.Operand{Buffer: uint32(t.buffer), Address: address, Strides: t.strides}
			if d := k.Operands[i].Takes(); d >= 0 {
				operand.Taken = t.sizes[d]
			}
			in.Operands = append(in.Operands, operand)
			bases = append(bases, at[t.buffer])
		}
		j.bases = append(j.bases, bases)
		j.instances = append(j.instances, in)
	}
	return j
}

// buffersOf returns the contents of a job's buffers after a run, and whether the gaps around them are unchanged.
func buffersOf(j *job, data []byte) (out [][]byte, untouched bool) {
	untouched = true
	for i, s := range j.segments {
		if i%2 == 0 {
			out = append(out, data[:len(s.data)])
		} else {
			for _, b := range data[:len(s.data)] {
				untouched = untouched && b == 0xa5
			}
		}
		data = data[len(s.data):]
	}
	return out, untouched
}

// near reports whether two elements are equal. Inexact elements may differ by the error of libraries and orders of
// sums.
func near(dtype uint8, a, b []byte, exact bool) bool {
	d := ir.DType(dtype)
	x, y := number(dtype, a), number(dtype, b)
	switch {
	case !d.Is(ir.Floats):
		return string(a) == string(b)
	case x != x || y != y:
		return x != x && y != y
	case exact:
		return string(a) == string(b)
	case math.IsInf(x, 0) || math.IsInf(y, 0):
		return x == y || math.Abs(x) > 1e30 && math.Abs(y) > 1e30 || dtype == 6 && math.Abs(x) > 60000 && math.Abs(y) > 60000
	}
	tolerance := map[uint8]float64{6: 4e-3, 13: 2e-2}[dtype]
	return math.Abs(x-y) <= max(1e-3, tolerance)*max(8, math.Abs(x))
}

// number is an element of a floating dtype.
func number(dtype uint8, b []byte) float64 {
	switch dtype {
	case 7:
		return float64(math.Float32frombits(uint32(word(b))))
	case 8:
		return math.Float64frombits(word(b))
	case 13:
		return float64(math.Float32frombits(uint32(word(b)) << 16))
	case 6:
		h := word(b)
		sign := 1 - 2*float64(h>>15)
		switch e, f := int(h>>10&31), float64(h&1023); {
		case e == 31 && f != 0:
			return math.NaN()
		case e == 31:
			return math.Inf(int(sign))
		case e == 0:
			return sign * math.Ldexp(f, -24)
		default:
			return sign * math.Ldexp(1024+f, e-25)
		}
	}
	return 0
}

func word(b []byte) (w uint64) {
	for i, v := range b {
		w |= uint64(v) << (8 * i)
	}
	return w
}
