// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package conformance

import (
	"encoding/binary"
	"math"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// builder builds a program for a test case.
type builder struct{ p *program.Program }

func con(v int64) program.Dim      { return program.Dim(v) }
func par(i uint32) program.Dim     { return program.Param(i) }
func ten(i uint32) program.Arg     { return program.Window(i) }
func num(v int64) program.Arg      { return program.Int(v) }
func absent() program.Arg          { return program.Arg{Tag: catalogue.TagNone} }
func dtype(d ir.DType) program.Arg { return program.Arg{Tag: catalogue.TagDType, Value: uint64(d)} }
func boolean(b bool) program.Arg {
	a := program.Arg{Tag: catalogue.TagBool}
	if b {
		a.Value = 1
	}
	return a
}
func number(kind uint8, param uint32) program.Arg { return program.Number(kind, param) }
func scalar(d ir.DType, param uint32) program.Arg { return program.Scalar(uint8(d), param) }
func ints(v ...int64) program.Arg {
	l := program.List(catalogue.ListInts)
	for _, i := range v {
		l.Items = append(l.Items, num(i))
	}
	return l
}

func sizes(v ...int64) (out []program.Dim) {
	for _, s := range v {
		out = append(out, con(s))
	}
	return out
}

// tensor adds a contiguous window and returns its number.
func (b *builder) tensor(buffer uint32, d ir.DType, dims ...program.Dim) uint32 {
	b.p.Buffers = max(b.p.Buffers, buffer+1)
	b.p.Tensors = append(b.p.Tensors, program.Tensor{Buffer: buffer, DType: uint8(d), Sizes: dims})
	return uint32(len(b.p.Tensors) - 1)
}

// view adds a strided window.
func (b *builder) view(buffer uint32, d ir.DType, size, stride []program.Dim, offset program.Dim) uint32 {
	i := b.tensor(buffer, d, size...)
	b.p.Tensors[i].Strides, b.p.Tensors[i].Offset = stride, offset
	return i
}

// call adds a call. Its result is tensor result-1; result 0 is no result.
func (b *builder) call(op string, result uint32, args ...program.Arg) {
	c := &program.Call{Op: op, Args: args}
	if result != 0 {
		c.Results = []uint32{result}
	}
	b.step(c)
}

func (b *builder) step(s program.Step) { b.p.Steps = append(b.p.Steps, s) }

func (b *builder) copy(dst, src uint32) {
	b.step(&program.Copy{Dst: dst, Src: src})
}

func (b *builder) alloc(buffer uint32, bytes program.Dim) {
	b.p.Buffers = max(b.p.Buffers, buffer+1)
	b.step(&program.Alloc{Buffer: buffer, Bytes: bytes})
}

func (b *builder) clone(to, from uint32) {
	b.p.Buffers = max(b.p.Buffers, to+1)
	b.step(&program.Clone{To: to, From: from})
}

func (b *builder) free(buffer uint32) {
	b.step(&program.Free{Buffer: buffer})
}

func (b *builder) resize(buffer uint32, bytes program.Dim) {
	b.step(&program.Resize{Buffer: buffer, Bytes: bytes})
}

// versions adds versions, four numbers each: output, record, buffer and writer.
func (b *builder) versions(v ...uint32) {
	for ; len(v) > 0; v = v[4:] {
		b.p.Versions = append(b.p.Versions, program.Version{Output: v[0], Record: v[1], Buffer: v[2], Writer: v[3]})
	}
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
