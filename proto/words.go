// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"encoding/binary"
	"math"
)

// Tags of csrc/abi/mycelya.h: arguments MYC_W_*, steps MYC_S_*.
const (
	wNone   = 2
	wTensor = 3
	wNumber = 4
	wScalar = 5
	wSize   = 6
	wInt    = 7
	wFloat  = 8
	wBool   = 9
	wDType  = 10
	wLayout = 11
	wDevice = 12
	wMemFmt = 13
	wStr    = 14
	wGen    = 15
	wList   = 16

	sCall   = 1
	sCopy   = 2
	sAlloc  = 3
	sClone  = 4
	sFree   = 5
	sResize = 6
	sFused  = 7
	sKernel = 8
)

// Words encodes a program that Validate has accepted for the executor; csrc/abi/mycelya.h, part 3, has the grammar.
func Words(p *Program) []uint64 {
	w := words(make([]uint64, 0, 16*(1+len(p.Tensors)+len(p.Steps))))
	w.put(uint64(p.Params), uint64(p.Buffers), uint64(len(p.Tensors)))
	for _, t := range p.Tensors {
		w.put(uint64(t.Buffer), uint64(t.Dtype), uint64(len(t.Sizes)))
		for _, d := range t.Sizes {
			w.dim(d)
		}
		w.bool(t.Contiguous)
		for _, d := range t.Strides {
			w.dim(d)
		}
		w.dim(t.Offset)
	}
	w.put(uint64(len(p.Kernels)))
	for _, k := range p.Kernels {
		w.kernel(k)
	}
	w.put(uint64(len(p.Steps)))
	for _, s := range p.Steps {
		w.step(s)
	}
	return w
}

type words []uint64

func (w *words) put(v ...uint64) { *w = append(*w, v...) }

func (w *words) bool(b bool) {
	if b {
		w.put(1)
	} else {
		w.put(0)
	}
}

// dim writes kind and value; an absent dim is the constant 0.
func (w *words) dim(d *Dim) {
	if k, ok := d.GetKind().(*Dim_Param); ok {
		w.put(1, uint64(k.Param))
		return
	}
	w.put(0, d.GetConst())
}

// str writes the length in bytes and the bytes, zero padded to words.
func (w *words) str(s string) {
	w.put(uint64(len(s)))
	for len(s) >= 8 {
		w.put(binary.LittleEndian.Uint64([]byte(s[:8])))
		s = s[8:]
	}
	if s != "" {
		var tail [8]byte
		copy(tail[:], s)
		w.put(binary.LittleEndian.Uint64(tail[:]))
	}
}

func (w *words) step(s *Step) {
	switch k := s.Kind.(type) {
	case *Step_Call:
		w.put(sCall)
		w.str(k.Call.Op)
		w.put(uint64(len(k.Call.Args)))
		for _, a := range k.Call.Args {
			w.arg(a)
		}
		w.put(uint64(len(k.Call.Results)))
		for _, r := range k.Call.Results {
			w.put(uint64(r))
		}
		w.put(uint64(k.Call.Flags))
	case *Step_Copy:
		w.put(sCopy, uint64(k.Copy.GetDst()), uint64(k.Copy.GetSrc()))
	case *Step_Alloc:
		w.put(sAlloc, uint64(k.Alloc.GetBuffer()))
		w.dim(k.Alloc.GetBytes())
	case *Step_Clone:
		w.put(sClone, uint64(k.Clone.GetTo()), uint64(k.Clone.GetFrom()))
	case *Step_Free:
		w.put(sFree, uint64(k.Free.GetBuffer()))
	case *Step_Resize:
		w.put(sResize, uint64(k.Resize.GetBuffer()))
		w.dim(k.Resize.GetBytes())
	case *Step_Fused:
		w.put(sFused, uint64(k.Fused.GetKernels()), uint64(k.Fused.GetPlain()))
	case *Step_Kernel:
		w.kernelOp(k.Kernel)
	default:
		panic("BUG: a step of no known kind after Validate")
	}
}

func (w *words) arg(a *Arg) {
	switch k := a.Kind.(type) {
	case *Arg_None:
		w.put(wNone)
	case *Arg_Tensor:
		w.put(wTensor, uint64(k.Tensor))
	case *Arg_Number_:
		w.put(wNumber, uint64(k.Number.Kind), uint64(k.Number.Param))
	case *Arg_Scalar_:
		w.put(wScalar, uint64(k.Scalar.Dtype), uint64(k.Scalar.Param))
	case *Arg_Size:
		w.put(wSize, uint64(k.Size))
	case *Arg_Int:
		w.put(wInt, uint64(k.Int))
	case *Arg_Float:
		w.put(wFloat, math.Float64bits(k.Float))
	case *Arg_Bool:
		w.put(wBool)
		w.bool(k.Bool)
	case *Arg_Dtype:
		w.put(wDType, uint64(k.Dtype))
	case *Arg_Layout:
		w.put(wLayout, uint64(k.Layout))
	case *Arg_Device:
		w.put(wDevice, 0)
	case *Arg_MemoryFormat:
		w.put(wMemFmt, uint64(k.MemoryFormat))
	case *Arg_Str:
		w.put(wStr)
		w.str(k.Str)
	case *Arg_Generator:
		w.put(wGen, uint64(k.Generator))
	case *Arg_List_:
		w.put(wList, uint64(k.List.Kind), uint64(len(k.List.Items)))
		for _, item := range k.List.Items {
			w.arg(item)
		}
	default:
		panic("BUG: an argument of no known kind after Validate")
	}
}
