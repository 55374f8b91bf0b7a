// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program

import (
	"math"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

func literal(tag uint8, value uint64) Arg { return Arg{Tag: tag, Value: value} }
func text(s string) Arg                   { return Arg{Tag: catalogue.TagStr, Text: s} }

// sample has every kind of argument, list and dim once, and every kind of step but those of fusedSample.
func sample() *Program {
	return &Program{
		Params:  6,
		Buffers: 5,
		Tensors: []Tensor{
			{Buffer: 0, DType: 7, Sizes: []Dim{Param(0), 3}},
			{Buffer: 1, DType: 7, Sizes: []Dim{3, Param(0)}, Strides: []Dim{1, Param(1)}, Offset: 4},
			{Buffer: 2, DType: 13, Sizes: []Dim{}},
			{Buffer: 3, DType: 7, Sizes: []Dim{0}, Offset: Param(2)},
		},
		Steps: []Step{
			&Call{
				Op: "aten::everything.out",
				Args: []Arg{
					Window(0), literal(catalogue.TagNone, 0), Number(catalogue.NumberC128, 4), Scalar(7, 3),
					literal(catalogue.TagSize, 2), Int(-7), literal(catalogue.TagFloat, math.Float64bits(0.5)),
					literal(catalogue.TagBool, 1), literal(catalogue.TagBool, 0), literal(catalogue.TagDType, 13),
					literal(catalogue.TagLayout, 0), literal(catalogue.TagDevice, 0), literal(catalogue.TagMemFmt, 2),
					text("trunc"), text("bij,bjk->bik …"), text(""), literal(catalogue.TagGen, 3),
					List(catalogue.ListTensors, Window(0), Window(0)),
					List(catalogue.ListOptTensors, Window(0), literal(catalogue.TagNone, 0)),
					List(catalogue.ListInts, Int(1), literal(catalogue.TagSize, 0)),
					List(catalogue.ListFloats, literal(catalogue.TagFloat, math.Float64bits(-1))),
					List(catalogue.ListBools, literal(catalogue.TagBool, 1)),
					List(catalogue.ListScalars, []Arg{}...),
				},
				Results: []uint32{0, 2},
				Flags:   1,
			},
			&Copy{Dst: 2, Src: 1},
			&Alloc{Buffer: 3, Bytes: Param(2)},
			&Clone{To: 4, From: 0},
			&Free{Buffer: 0},
			&Resize{Buffer: 4, Bytes: 64},
		},
		Records:  []uint32{1, 2, 3, 4, 0, math.MaxUint32},
		Inputs:   []uint32{0},
		Outputs:  []uint32{4, 1},
		Kernels:  []*kernel.Kernel{},
		Versions: []Version{{Output: 0, Record: 4, Buffer: 5, Writer: 4}, {Output: 1, Record: 1, Buffer: 0, Writer: 0}},
	}
}

// fusedSample adds a number to a tensor and sums its rows, by a kernel or by two operators.
func fusedSample() *Program {
	number := Number(catalogue.NumberF64, 2)
	k := &kernel.Kernel{
		Spaces: []int{2}, Reduced: 1, Numbers: 1,
		Operands: []kernel.Operand{{DType: 7, Access: kernel.Read, Along: []int8{0, 1}},
			{DType: 7, Access: kernel.Write, Along: []int8{0, -1}}},
		Code: []kernel.Instr{
			{Op: kernel.Load, Class: kernel.F32},
			{Op: kernel.Number, Class: kernel.F32},
			{Op: kernel.Add, Class: kernel.F32, A: 0, B: 1},
			{Op: kernel.Sum, Class: kernel.F32, A: 2},
			{Op: kernel.Store, Class: kernel.F32, A: 1, B: 3},
		},
	}
	return &Program{
		Params:  3,
		Buffers: 3,
		Tensors: []Tensor{
			{Buffer: 0, DType: 7, Sizes: []Dim{Param(0), Param(1)}},
			{Buffer: 1, DType: 7, Sizes: []Dim{Param(0), 1}},
			{Buffer: 2, DType: 7, Sizes: []Dim{Param(0), Param(1)}},
		},
		Kernels: []*kernel.Kernel{k},
		Steps: []Step{
			&Fused{Kernels: 2, Plain: 4},
			&Kernel{Instances: []Instance{{
				Sizes: []Dim{Param(0), Param(1)}, Uses: []Use{{Tensor: 0}, {Tensor: 1, Made: true}}, Numbers: []Arg{number},
			}}},
			&Free{Buffer: 0},
			&Call{Op: "aten::add.Tensor", Args: []Arg{Window(0), number, Int(1)}, Results: []uint32{3}},
			&Free{Buffer: 0},
			&Call{Op: "aten::sum.dim_IntList", Args: []Arg{Window(2), Int(1)}, Results: []uint32{2}},
			&Free{Buffer: 2},
		},
		Records:  make([]uint32, 7),
		Inputs:   []uint32{0},
		Outputs:  []uint32{1},
		Versions: []Version{},
	}
}
