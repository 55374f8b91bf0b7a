// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package conformance

import (
	"encoding/binary"
	"math"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
)

// builder builds a program for a test case.
type builder struct{ p *proto.Program }

func con(v int64) *proto.Dim      { return &proto.Dim{Kind: &proto.Dim_Const{Const: uint64(v)}} }
func par(i uint32) *proto.Dim     { return &proto.Dim{Kind: &proto.Dim_Param{Param: i}} }
func ten(i uint32) *proto.Arg     { return &proto.Arg{Kind: &proto.Arg_Tensor{Tensor: i}} }
func num(v int64) *proto.Arg      { return &proto.Arg{Kind: &proto.Arg_Int{Int: v}} }
func boolean(b bool) *proto.Arg   { return &proto.Arg{Kind: &proto.Arg_Bool{Bool: b}} }
func absent() *proto.Arg          { return &proto.Arg{Kind: &proto.Arg_None{None: true}} }
func dtype(d ir.DType) *proto.Arg { return &proto.Arg{Kind: &proto.Arg_Dtype{Dtype: uint32(d)}} }
func number(kind, param uint32) *proto.Arg {
	return &proto.Arg{Kind: &proto.Arg_Number_{Number: &proto.Arg_Number{Kind: kind, Param: param}}}
}
func scalar(d ir.DType, param uint32) *proto.Arg {
	return &proto.Arg{Kind: &proto.Arg_Scalar_{Scalar: &proto.Arg_Scalar{Dtype: uint32(d), Param: param}}}
}
func ints(v ...int64) *proto.Arg {
	l := &proto.Arg_List{Kind: proto.ListInts}
	for _, i := range v {
		l.Items = append(l.Items, num(i))
	}
	return &proto.Arg{Kind: &proto.Arg_List_{List: l}}
}

func sizes(v ...int64) (out []*proto.Dim) {
	for _, s := range v {
		out = append(out, con(s))
	}
	return out
}

// tensor adds a contiguous window and returns its number.
func (b *builder) tensor(buffer uint32, d ir.DType, dims ...*proto.Dim) uint32 {
	b.p.Buffers = max(b.p.Buffers, buffer+1)
	b.p.Tensors = append(b.p.Tensors, &proto.Tensor{Buffer: buffer, Dtype: uint32(d), Sizes: dims, Contiguous: true})
	return uint32(len(b.p.Tensors) - 1)
}

// view adds a strided window.
func (b *builder) view(buffer uint32, d ir.DType, size, stride []*proto.Dim, offset *proto.Dim) uint32 {
	i := b.tensor(buffer, d, size...)
	t := b.p.Tensors[i]
	t.Contiguous, t.Strides, t.Offset = false, stride, offset
	return i
}

// call adds a call. Its result is tensor result-1; result 0 is no result.
func (b *builder) call(op string, result uint32, args ...*proto.Arg) {
	c := &proto.CallOp{Op: op, Args: args}
	if result != 0 {
		c.Results = []uint32{result}
	}
	b.step(&proto.Step{Kind: &proto.Step_Call{Call: c}})
}

func (b *builder) step(s *proto.Step) { b.p.Steps = append(b.p.Steps, s) }

func (b *builder) copy(dst, src uint32) {
	b.step(&proto.Step{Kind: &proto.Step_Copy{Copy: &proto.Copy{Dst: dst, Src: src}}})
}

func (b *builder) alloc(buffer uint32, bytes *proto.Dim) {
	b.p.Buffers = max(b.p.Buffers, buffer+1)
	b.step(&proto.Step{Kind: &proto.Step_Alloc{Alloc: &proto.Alloc{Buffer: buffer, Bytes: bytes}}})
}

func (b *builder) clone(to, from uint32) {
	b.p.Buffers = max(b.p.Buffers, to+1)
	b.step(&proto.Step{Kind: &proto.Step_Clone{Clone: &proto.Clone{To: to, From: from}}})
}

func (b *builder) free(buffer uint32) {
	b.step(&proto.Step{Kind: &proto.Step_Free{Free: &proto.Free{Buffer: buffer}}})
}

func (b *builder) resize(buffer uint32, bytes *proto.Dim) {
	b.step(&proto.Step{Kind: &proto.Step_Resize{Resize: &proto.Resize{Buffer: buffer, Bytes: bytes}}})
}

func f32(v ...float32) (out []byte) {
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

func i64(v ...int64) (out []byte) {
	for _, x := range v {
		out = binary.LittleEndian.AppendUint64(out, uint64(x))
	}
	return out
}

func f64bits(v float64) uint64 { return math.Float64bits(v) }
