// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"bytes"

	"github.com/mycelya/mycelya/kernel"
)

func con(v uint64) *Dim { return &Dim{Kind: &Dim_Const{Const: v}} }
func par(i uint32) *Dim { return &Dim{Kind: &Dim_Param{Param: i}} }

func tensorArg(i uint32) *Arg { return &Arg{Kind: &Arg_Tensor{Tensor: i}} }
func intArg(v int64) *Arg     { return &Arg{Kind: &Arg_Int{Int: v}} }

// sample has every kind of step, argument, list and dim once.
func sample() *Program {
	list := func(kind uint32, items ...*Arg) *Arg {
		return &Arg{Kind: &Arg_List_{List: &Arg_List{Kind: kind, Items: items}}}
	}
	return &Program{
		Key:     bytes.Repeat([]byte{0xab, 0x01}, KeyBytes/2),
		Params:  6,
		Buffers: 5,
		Tensors: []*Tensor{
			{Buffer: 0, Dtype: 7, Sizes: []*Dim{par(0), con(3)}, Contiguous: true},
			{Buffer: 1, Dtype: 7, Sizes: []*Dim{con(3), par(0)}, Strides: []*Dim{con(1), par(1)}, Offset: con(4)},
			{Buffer: 2, Dtype: 13, Contiguous: true},
			{Buffer: 3, Dtype: 7, Sizes: []*Dim{con(0)}, Contiguous: true, Offset: par(2)},
		},
		Steps: []*Step{
			{Kind: &Step_Call{Call: &CallOp{
				Op: "aten::everything.out",
				Args: []*Arg{
					tensorArg(0),
					{Kind: &Arg_None{None: true}},
					{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberC128, Param: 4}}},
					{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: 7, Param: 3}}},
					{Kind: &Arg_Size{Size: 2}},
					intArg(-7),
					{Kind: &Arg_Float{Float: 0.5}},
					{Kind: &Arg_Bool{Bool: true}},
					{Kind: &Arg_Bool{}},
					{Kind: &Arg_Dtype{Dtype: 13}},
					{Kind: &Arg_Layout{Layout: 0}},
					{Kind: &Arg_Device{Device: true}},
					{Kind: &Arg_MemoryFormat{MemoryFormat: 2}},
					{Kind: &Arg_Str{Str: "trunc"}},
					{Kind: &Arg_Str{Str: "bij,bjk->bik …"}},
					{Kind: &Arg_Generator{Generator: 3}},
					list(ListTensors, tensorArg(0), tensorArg(0)),
					list(ListOptTensors, tensorArg(0), &Arg{Kind: &Arg_None{None: true}}),
					list(ListInts, intArg(1), &Arg{Kind: &Arg_Size{Size: 0}}),
					list(ListFloats, &Arg{Kind: &Arg_Float{Float: -1}}),
					list(ListBools, &Arg{Kind: &Arg_Bool{Bool: true}}),
					list(ListScalars),
				},
				Results: []uint32{0, 2},
				Flags:   1,
			}}},
			{Kind: &Step_Copy{Copy: &Copy{Dst: 2, Src: 1}}},
			{Kind: &Step_Alloc{Alloc: &Alloc{Buffer: 3, Bytes: par(2)}}},
			{Kind: &Step_Clone{Clone: &Clone{To: 4, From: 0}}},
			{Kind: &Step_Free{Free: &Free{Buffer: 0}}},
			{Kind: &Step_Resize{Resize: &Resize{Buffer: 4, Bytes: con(64)}}},
		},
		Inputs:  []uint32{0},
		Outputs: []uint32{4, 1},
	}
}

// fusedSample adds a number to a tensor and sums its rows, by a kernel or by two operators.
func fusedSample() *Program {
	number := &Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberF64, Param: 2}}}
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
		Key:     bytes.Repeat([]byte{0xab, 0x01}, KeyBytes/2),
		Params:  3,
		Buffers: 3,
		Tensors: []*Tensor{
			{Buffer: 0, Dtype: 7, Sizes: []*Dim{par(0), par(1)}, Contiguous: true},
			{Buffer: 1, Dtype: 7, Sizes: []*Dim{par(0), con(1)}, Contiguous: true},
			{Buffer: 2, Dtype: 7, Sizes: []*Dim{par(0), par(1)}, Contiguous: true},
		},
		Kernels: []*Kernel{KernelMessage(k)},
		Steps: []*Step{
			{Kind: &Step_Fused{Fused: &Fused{Kernels: 2, Plain: 4}}},
			{Kind: &Step_Kernel{Kernel: &KernelOp{Instances: []*KernelOp_Instance{{Sizes: []*Dim{par(0), par(1)},
				Tensors: []uint32{0, 3}, Numbers: []*Arg{number}}}}}},
			{Kind: &Step_Free{Free: &Free{Buffer: 0}}},
			{Kind: &Step_Call{Call: &CallOp{Op: "aten::add.Tensor", Args: []*Arg{tensorArg(0), number, intArg(1)},
				Results: []uint32{3}}}},
			{Kind: &Step_Free{Free: &Free{Buffer: 0}}},
			{Kind: &Step_Call{Call: &CallOp{Op: "aten::sum.dim_IntList", Args: []*Arg{tensorArg(2), intArg(1)},
				Results: []uint32{2}}}},
			{Kind: &Step_Free{Free: &Free{Buffer: 2}}},
		},
		Inputs:  []uint32{0},
		Outputs: []uint32{1},
	}
}
