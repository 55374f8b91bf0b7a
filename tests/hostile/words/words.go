// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package words reads what mycelya_operator_fuzz --words prints: programs with hostile arguments for one operator each.
// First come the contents of the storages, each with its length. For each program follow the number of its words, the
// words (part 3 of csrc/abi/mycelya.h), and its call as text with its length.
package words

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/mycelya/mycelya/proto"
)

// Tags of arguments: MYC_W_* of csrc/abi/words.h.
const (
	wordNone   = 2
	wordTensor = 3
	wordInt    = 7
	wordFloat  = 8
	wordBool   = 9
	wordDtype  = 10
	wordLayout = 11
	wordDevice = 12
	wordMemfmt = 13
	wordStr    = 14
	wordList   = 16
)

// Contents reads the contents of the storages.
func Contents(in *bufio.Reader) ([][]byte, error) {
	n, err := readWord(in)
	if err != nil {
		return nil, err
	}
	out := make([][]byte, n)
	for i := range out {
		if out[i], err = readBytes(in); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// Program reads the next program, and its call as text. Its first buffers hold the contents.
func Program(in *bufio.Reader) (*proto.Program, string, error) {
	n, err := readWord(in)
	if err != nil {
		return nil, "", err
	}
	w := words{list: make([]uint64, n)}
	if err := binary.Read(in, binary.LittleEndian, w.list); err != nil {
		return nil, "", err
	}
	text, err := readBytes(in)
	if err != nil {
		return nil, "", err
	}
	p := w.program()
	if len(w.list) != 0 {
		return nil, string(text), fmt.Errorf("%d words are left", len(w.list))
	}
	return p, string(text), nil
}

func readWord(in io.Reader) (uint64, error) {
	var b [8]byte
	_, err := io.ReadFull(in, b[:])
	return binary.LittleEndian.Uint64(b[:]), err
}

func readBytes(in io.Reader) ([]byte, error) {
	n, err := readWord(in)
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(in, b)
	return b, err
}

// words reads a program of calls. The words come from a builder, so they are complete.
type words struct{ list []uint64 }

func (w *words) next() uint64 {
	v := w.list[0]
	w.list = w.list[1:]
	return v
}

func (w *words) next32() uint32 { return uint32(w.next()) }

func (w *words) text() string {
	n := int(w.next())
	b := make([]byte, 0, n+7)
	for len(b) < n {
		b = binary.LittleEndian.AppendUint64(b, w.next())
	}
	return string(b[:n])
}

func (w *words) dim() *proto.Dim {
	kind, v := w.next(), w.next()
	if kind == 0 {
		return &proto.Dim{Kind: &proto.Dim_Const{Const: v}}
	}
	return &proto.Dim{Kind: &proto.Dim_Param{Param: uint32(v)}}
}

func (w *words) dims(n uint64) (out []*proto.Dim) {
	for range n {
		out = append(out, w.dim())
	}
	return out
}

func (w *words) program() *proto.Program {
	p := &proto.Program{Params: w.next32(), Buffers: w.next32()}
	for range w.next() {
		t := &proto.Tensor{Buffer: w.next32(), Dtype: w.next32()}
		rank := w.next()
		t.Sizes = w.dims(rank)
		if t.Contiguous = w.next() != 0; !t.Contiguous {
			t.Strides = w.dims(rank)
		}
		t.Offset = w.dim()
		p.Tensors = append(p.Tensors, t)
	}
	w.next() // kernels: none
	for range w.next() {
		w.next() // a call
		c := &proto.CallOp{Op: w.text()}
		for range w.next() {
			c.Args = append(c.Args, w.arg())
		}
		for range w.next() {
			c.Results = append(c.Results, w.next32())
		}
		c.Flags = w.next32()
		p.Steps = append(p.Steps, &proto.Step{Kind: &proto.Step_Call{Call: c}})
	}
	w.next() // versions: none
	return p
}

func (w *words) arg() *proto.Arg {
	switch tag := w.next(); tag {
	case wordNone:
		return &proto.Arg{Kind: &proto.Arg_None{None: true}}
	case wordTensor:
		return &proto.Arg{Kind: &proto.Arg_Tensor{Tensor: w.next32()}}
	case wordInt:
		return &proto.Arg{Kind: &proto.Arg_Int{Int: int64(w.next())}}
	case wordFloat:
		return &proto.Arg{Kind: &proto.Arg_Float{Float: math.Float64frombits(w.next())}}
	case wordBool:
		return &proto.Arg{Kind: &proto.Arg_Bool{Bool: w.next() != 0}}
	case wordDtype:
		return &proto.Arg{Kind: &proto.Arg_Dtype{Dtype: w.next32()}}
	case wordLayout:
		return &proto.Arg{Kind: &proto.Arg_Layout{Layout: w.next32()}}
	case wordDevice:
		w.next()
		return &proto.Arg{Kind: &proto.Arg_Device{Device: true}}
	case wordMemfmt:
		return &proto.Arg{Kind: &proto.Arg_MemoryFormat{MemoryFormat: w.next32()}}
	case wordStr:
		return &proto.Arg{Kind: &proto.Arg_Str{Str: w.text()}}
	case wordList:
		list := &proto.Arg_List{Kind: w.next32()}
		for range w.next() {
			list.Items = append(list.Items, w.arg())
		}
		return &proto.Arg{Kind: &proto.Arg_List_{List: list}}
	default:
		panic(fmt.Sprintf("the fuzzer makes no argument with tag %d", tag))
	}
}
