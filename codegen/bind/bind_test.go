// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package bind_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen/bind"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/proto"
)

// TestInstances: sizes, strides, offsets and numbers of all kinds, from constants and from words of a call.
func TestInstances(t *testing.T) {
	constant := func(v uint64) *proto.Dim { return &proto.Dim{Kind: &proto.Dim_Const{Const: v}} }
	param := func(i uint32) *proto.Dim { return &proto.Dim{Kind: &proto.Dim_Param{Param: i}} }
	scalar := func(dtype, i uint32) *proto.Arg {
		return &proto.Arg{Kind: &proto.Arg_Scalar_{Scalar: &proto.Arg_Scalar{Dtype: dtype, Param: i}}}
	}
	given := func(kind, i uint32) *proto.Arg {
		return &proto.Arg{Kind: &proto.Arg_Number_{Number: &proto.Arg_Number{Kind: kind, Param: i}}}
	}
	p := &proto.Program{Tensors: []*proto.Tensor{
		{Dtype: 7, Sizes: []*proto.Dim{param(0), constant(3), param(1)}, Contiguous: true},
		{Dtype: 13, Sizes: []*proto.Dim{param(0), param(1)}, Strides: []*proto.Dim{constant(1), param(0)}, Offset: param(1)},
	}}
	params := []uint64{5, 7, math.Float64bits(1.5), math.MaxUint64, 0xc000, 0xbf80, 0xfffe, 0x8001}
	op := &proto.KernelOp{Instances: []*proto.KernelOp_Instance{{Sizes: []*proto.Dim{param(0), param(1)}, Tensors: []uint32{0, 3}, Numbers: []*proto.Arg{
		{Kind: &proto.Arg_Int{Int: -3}}, {Kind: &proto.Arg_Float{Float: 0.25}}, {Kind: &proto.Arg_Bool{Bool: true}},
		given(proto.NumberF64, 2), given(proto.NumberI64, 3), scalar(6, 4), scalar(13, 5), scalar(3, 6), scalar(18, 6), scalar(2, 6), scalar(19, 7), scalar(6, 7), scalar(8, 2),
	}}}}
	whole := func(v int64) cuda.Number { return cuda.Number{Integral: true, Whole: v} }
	real := func(v float64) cuda.Number { return cuda.Number{Real: v} }
	require.Equal(t, []cuda.Instance{{
		Sizes:    []int64{5, 7},
		Operands: []cuda.Operand{{Strides: []int64{21, 7, 1}}, {Address: 14, Strides: []int64{1, 5}}},
		Numbers: []cuda.Number{whole(-3), real(0.25), whole(1), real(1.5), whole(-1), real(-2), real(-1), whole(-2), whole(0xfffe), whole(-2), whole(0x8001),
			real(-0x1p-24), real(1.5)},
	}}, bind.Instances(p, op, params))
}
