// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package bind_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen/bind"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
)

func params(list ...uint32) (out []program.Dim) {
	for _, i := range list {
		out = append(out, program.Param(i))
	}
	return out
}

// TestInstances: sizes, strides, offsets and numbers of all kinds, from constants and from words of a call.
func TestInstances(t *testing.T) {
	p := &program.Program{Tensors: []program.Tensor{
		{DType: 7, Sizes: []program.Dim{program.Param(0), 3, program.Param(1)}},
		{
			DType: 13, Sizes: params(0, 1), Strides: []program.Dim{1, program.Param(0)},
			Offset: program.Param(1),
		},
	}}
	given := []uint64{5, 7, math.Float64bits(1.5), math.MaxUint64, 0xc000, 0xbf80, 0xfffe, 0x8001}
	op := &program.Kernel{Instances: []program.Instance{{
		Sizes: []program.Dim{program.Param(0), 3, program.Param(1)},
		Uses:  []program.Use{{Tensor: 0}, {Tensor: 1, Made: true}},
		Numbers: []program.Arg{
			program.Int(-3), {Tag: catalogue.TagFloat, Value: math.Float64bits(0.25)}, {Tag: catalogue.TagBool, Value: 1},
			program.Number(catalogue.NumberF64, 2), program.Number(catalogue.NumberI64, 3), program.Scalar(6, 4),
			program.Scalar(13, 5), program.Scalar(3, 6), program.Scalar(18, 6),
			program.Scalar(2, 6), program.Scalar(19, 7), program.Scalar(6, 7), program.Scalar(8, 2),
		},
	}}}
	whole := func(v int64) cuda.Number { return cuda.Number{Integral: true, Whole: v} }
	real := func(v float64) cuda.Number { return cuda.Number{Real: v} }
	operands := []kernel.Operand{{DType: 7, Along: []int8{0, 1, 2}}, {DType: 13, Along: []int8{0, 2}}}
	k := &kernel.Kernel{Spaces: []int{3}, Operands: operands}
	got, err := bind.Instances(k, p, op, given)
	require.NoError(t, err)
	require.Equal(t, []cuda.Instance{{
		Sizes:    []int64{5, 3, 7},
		Operands: []cuda.Operand{{Strides: []int64{21, 7, 1}}, {Address: 14, Strides: []int64{1, 5}}},
		Numbers: []cuda.Number{
			whole(-3), real(0.25), whole(1), real(1.5), whole(-1), real(-2), real(-1), whole(-2), whole(0xfffe), whole(-2),
			whole(0x8001), real(-0x1p-24), real(1.5),
		},
	}}, got)
}

// TestFits: an instance with sizes on which a kernel must not run is refused, even if products of them overflow.
func TestFits(t *testing.T) {
	// Parameters: sizes of two spaces, i0 i1 and j0, sizes and strides of an operand along each.
	p := &program.Program{Tensors: []program.Tensor{
		{DType: 8, Sizes: params(3, 4), Strides: params(5, 6)}, {DType: 8, Sizes: params(7, 8), Strides: params(9, 9)},
	}}
	at := program.Instance{Sizes: params(0, 1, 2), Uses: []program.Use{{Tensor: 0}, {Tensor: 1}}}
	op := &program.Kernel{Instances: []program.Instance{at}}
	operands := []kernel.Operand{{DType: 8, Along: []int8{0, 1}}, {DType: 8, Space: 1, Along: []int8{-1, 0}}}
	k := &kernel.Kernel{Spaces: []int{2, 1}, Operands: operands}
	const most = 1<<63 - 1
	writes := *k
	writes.Operands = []kernel.Operand{{DType: 8, Access: kernel.Write, Along: []int8{0, 1}}, k.Operands[1]}
	for strides, fits := range map[[2]uint64]bool{
		{3, 1}: true, {1, 4}: true, {6, 2}: true, {4, 2}: false, {1, 1}: false, {2, 1}: false, {0, 1}: false, {2, 2}: false,
	} {
		_, err := bind.Instances(&writes, p, op, []uint64{4, 3, 12, 4, 3, strides[0], strides[1], 1, 12, 1})
		if fits {
			require.NoError(t, err, "%v", strides)
		} else {
			require.ErrorContains(t, err, "would be written an element twice", "%v", strides)
		}
	}
	_, err := bind.Instances(&writes, p, op, []uint64{1, 0, 0, 1, 0, 0, 0, 1, 0, 1})
	require.NoError(t, err, "nothing is written")
	for _, c := range []struct {
		why    string
		params []uint64
	}{
		{"", []uint64{4, 3, 12, 4, 3, 3, 1, 1, 12, 1}},
		{"", []uint64{4, 0, 0, 4, 0, 3, 1, 1, 0, 1}},
		{"", []uint64{1, 1, 1, 1, 1, most, most, 1, 1, most}},
		{"", []uint64{2, 1, 2, 2, 1, 1<<60 - 2, 1, 1, 2, 1}},
		{"space 1 has 11 points, space 0 has 12", []uint64{4, 3, 11, 4, 3, 3, 1, 1, 11, 1}},
		{"dim 1 of operand 0 has size 4, its space has 3", []uint64{4, 3, 12, 4, 4, 3, 1, 1, 12, 1}},
		{"dim 0 of operand 1 has size 2, its space has 1", []uint64{4, 3, 12, 4, 3, 3, 1, 2, 12, 1}},
		{"space 0 has sizes", []uint64{1 << 63, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
		{"space 0 has sizes", []uint64{1 << 32, 1 << 32, 0, 1 << 32, 1 << 32, 0, 0, 1, 0, 1}},
		{"space 0 has sizes", []uint64{1 << 62, 4, 0, 1, 1, 1, 1, 1, 1, 1}},
		{"it has 68719476737 points", []uint64{1<<36 + 1, 1, 1<<36 + 1, 1<<36 + 1, 1, 0, 0, 1, 1<<36 + 1, 0}},
		{"operand 0 with sizes", []uint64{2, 1, 2, 2, 1, 1 << 60, 1, 1, 2, 1}},
		{"operand 0 with sizes", []uint64{2, 1, 2, 2, 1, 1 << 63, 1, 1, 2, 1}},
		{"operand 0 with sizes", []uint64{4, 3, 12, 4, 3, most / 3, most / 2, 1, 12, 1}},
	} {
		_, err := bind.Instances(k, p, op, c.params)
		if c.why == "" {
			require.NoError(t, err, "%v", c.params)
		} else {
			require.ErrorContains(t, err, c.why, "%v", c.params)
		}
	}
}

// TestFitsNumbers: a number that a 16-bit float cannot hold is refused where PyTorch refuses it.
func TestFitsNumbers(t *testing.T) {
	p := &program.Program{Tensors: []program.Tensor{{DType: 6}, {DType: 8}}}
	number := program.Number(catalogue.NumberF64, 0)
	for _, c := range []struct {
		tensor uint32
		number float64
		fits   bool
	}{{0, 65504, true}, {0, -65505, false}, {0, math.Inf(-1), true}, {0, math.NaN(), true}, {1, 1e300, true}} {
		at := program.Instance{Uses: []program.Use{{Tensor: c.tensor}}, Numbers: []program.Arg{number}}
		op := &program.Kernel{Instances: []program.Instance{at}}
		dtype := uint8(p.Tensors[c.tensor].DType)
		k := &kernel.Kernel{
			Spaces: []int{0}, Operands: []kernel.Operand{{DType: dtype, Along: []int8{}}}, Numbers: 1,
			Code: []kernel.Instr{{Op: kernel.Number, Class: kernel.F64, B: uint64(dtype)}},
		}
		_, err := bind.Instances(k, p, op, []uint64{math.Float64bits(c.number)})
		require.Equal(t, c.fits, err == nil, "%v: %v", c, err)
	}
}

// TestFitsReductions: a sum of no elements is 0. A maximum of no elements is an error, unless it has no results either.
func TestFitsReductions(t *testing.T) {
	p := &program.Program{Tensors: []program.Tensor{{DType: 7, Sizes: params(0, 1)}}}
	at := program.Instance{Sizes: params(0, 1), Uses: []program.Use{{Tensor: 0}}}
	op := &program.Kernel{Instances: []program.Instance{at}}
	reduce := func(op kernel.Op) *kernel.Kernel {
		return &kernel.Kernel{
			Spaces: []int{2}, Reduced: 1, Operands: []kernel.Operand{{DType: 7, Along: []int8{0, 1}}},
			Code: []kernel.Instr{{Op: kernel.Load, Class: kernel.F32}, {Op: op, Class: kernel.F32}},
		}
	}
	for _, c := range []struct {
		op            kernel.Op
		rows, columns uint64
		fits          bool
	}{
		{kernel.Sum, 3, 0, true}, {kernel.Max, 3, 1, true}, {kernel.Max, 3, 0, false}, {kernel.Min, 3, 0, false},
		{kernel.Max, 0, 0, true},
	} {
		_, err := bind.Instances(reduce(c.op), p, op, []uint64{c.rows, c.columns})
		require.Equal(t, c.fits, err == nil, "%v: %v", c, err)
	}
}
