// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import protobuf "google.golang.org/protobuf/proto"

// The most bytes of parts of an encoded program, each with its tag and its length.
const (
	mostDim    = 13 // a message with a 64-bit number
	mostArg    = 16 // a message with a message of two 32-bit numbers
	mostTensor = 8  // an argument that is a tensor
	mostNumber = 6  // a 32-bit number
	mostHead   = 24 // what else a message holds besides its lists and dims
)

// SizeBound is at least the number of bytes of an encoded program. Counting the bytes exactly takes several times as
// long.
func SizeBound(p *Program) int {
	n := 4*mostHead + len(p.Key)
	n += mostNumber * (len(p.Inputs) + len(p.Outputs) + len(p.Records) + len(p.Versions))
	for _, t := range p.Tensors {
		n += mostHead + mostDim*(len(t.GetSizes())+len(t.GetStrides()))
		if t.GetOffset() != nil {
			n += mostDim
		}
	}
	for _, k := range p.Kernels {
		n += mostHead + protobuf.Size(k)
	}
	for _, s := range p.Steps {
		n += mostHead
		switch k := s.GetKind().(type) {
		case *Step_Call:
			n += len(k.Call.GetOp()) + argsBound(k.Call.GetArgs()) + mostNumber*len(k.Call.GetResults())
		case *Step_Alloc, *Step_Resize:
			n += mostDim
		case *Step_Kernel:
			for _, at := range k.Kernel.GetInstances() {
				n += mostHead + mostDim*len(at.GetSizes()) + mostNumber*len(at.GetTensors()) + argsBound(at.GetNumbers())
			}
		}
	}
	return n
}

func argsBound(args []*Arg) int {
	n := 0
	for _, a := range args {
		switch k := a.GetKind().(type) {
		case *Arg_Tensor:
			n += mostTensor
		case *Arg_Str:
			n += mostArg + len(k.Str)
		case *Arg_List_:
			n += mostArg + argsBound(k.List.GetItems())
		default:
			n += mostArg
		}
	}
	return n
}
