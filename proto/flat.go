// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"fmt"
	"math"

	"github.com/mycelya/mycelya/catalogue"
)

// Flat is an argument without its oneof, by the words of the catalogue: its tag, and the head and the payload that the
// row of the tag names. Code that does not depend on the kind of an argument reads this form.
type Flat struct {
	Tag   uint64 // catalogue.Tag*, or 0 if the message holds no kind that is known
	Head  uint64 // kind of a number or a list, or dtype of a scalar
	Value uint64 // index of a tensor or a parameter, or the bits of a literal
	Text  string
	Items []*Arg
}

// Flat reads the oneof of an argument. It and NewArg are the only lists of all its cases.
func (a *Arg) Flat() Flat {
	switch k := a.GetKind().(type) {
	case *Arg_None:
		return Flat{Tag: catalogue.TagNone}
	case *Arg_Tensor:
		return Flat{Tag: catalogue.TagTensor, Value: uint64(k.Tensor)}
	case *Arg_Number_:
		return Flat{Tag: catalogue.TagNumber, Head: uint64(k.Number.GetKind()), Value: uint64(k.Number.GetParam())}
	case *Arg_Scalar_:
		return Flat{Tag: catalogue.TagScalar, Head: uint64(k.Scalar.GetDtype()), Value: uint64(k.Scalar.GetParam())}
	case *Arg_Size:
		return Flat{Tag: catalogue.TagSize, Value: uint64(k.Size)}
	case *Arg_Int:
		return Flat{Tag: catalogue.TagInt, Value: uint64(k.Int)}
	case *Arg_Float:
		return Flat{Tag: catalogue.TagFloat, Value: math.Float64bits(k.Float)}
	case *Arg_Bool:
		return Flat{Tag: catalogue.TagBool, Value: bit(k.Bool)}
	case *Arg_Dtype:
		return Flat{Tag: catalogue.TagDType, Value: uint64(k.Dtype)}
	case *Arg_Layout:
		return Flat{Tag: catalogue.TagLayout, Value: uint64(k.Layout)}
	case *Arg_Device:
		return Flat{Tag: catalogue.TagDevice}
	case *Arg_MemoryFormat:
		return Flat{Tag: catalogue.TagMemFmt, Value: uint64(k.MemoryFormat)}
	case *Arg_Str:
		return Flat{Tag: catalogue.TagStr, Text: k.Str}
	case *Arg_Generator:
		return Flat{Tag: catalogue.TagGen, Value: uint64(k.Generator)}
	case *Arg_List_:
		return Flat{Tag: catalogue.TagList, Head: uint64(k.List.GetKind()), Items: k.List.GetItems()}
	}
	return Flat{}
}

// NewArg is the inverse of Arg.Flat.
func NewArg(f Flat) *Arg {
	head, value := uint32(f.Head), uint32(f.Value)
	switch f.Tag {
	case catalogue.TagNone:
		return &Arg{Kind: &Arg_None{None: true}}
	case catalogue.TagTensor:
		return &Arg{Kind: &Arg_Tensor{Tensor: value}}
	case catalogue.TagNumber:
		return &Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: head, Param: value}}}
	case catalogue.TagScalar:
		return &Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: head, Param: value}}}
	case catalogue.TagSize:
		return &Arg{Kind: &Arg_Size{Size: value}}
	case catalogue.TagInt:
		return &Arg{Kind: &Arg_Int{Int: int64(f.Value)}}
	case catalogue.TagFloat:
		return &Arg{Kind: &Arg_Float{Float: math.Float64frombits(f.Value)}}
	case catalogue.TagBool:
		return &Arg{Kind: &Arg_Bool{Bool: f.Value != 0}}
	case catalogue.TagDType:
		return &Arg{Kind: &Arg_Dtype{Dtype: value}}
	case catalogue.TagLayout:
		return &Arg{Kind: &Arg_Layout{Layout: value}}
	case catalogue.TagDevice:
		return &Arg{Kind: &Arg_Device{Device: true}}
	case catalogue.TagMemFmt:
		return &Arg{Kind: &Arg_MemoryFormat{MemoryFormat: value}}
	case catalogue.TagStr:
		return &Arg{Kind: &Arg_Str{Str: f.Text}}
	case catalogue.TagGen:
		return &Arg{Kind: &Arg_Generator{Generator: value}}
	case catalogue.TagList:
		return &Arg{Kind: &Arg_List_{List: &Arg_List{Kind: head, Items: f.Items}}}
	}
	panic(fmt.Sprintf("BUG: no argument has the tag %d", f.Tag))
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}
