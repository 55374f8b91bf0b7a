// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"encoding/binary"

	"github.com/mycelya/mycelya/catalogue"
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
		w.put(bit(t.Contiguous))
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
	for i, s := range p.Steps {
		at := len(w)
		w.step(s)
		if p.Records != nil {
			w[at] |= uint64(p.Records[i]) << 32
		}
	}
	w.put(uint64(len(p.Versions) / VersionWords))
	for v := p.Versions; len(v) > 0; v = v[VersionWords:] {
		w.put(uint64(p.Outputs[v[0]]), uint64(v[1]), uint64(v[2]), uint64(v[3]))
	}
	return w
}

type words []uint64

func (w *words) put(v ...uint64) { *w = append(*w, v...) }

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
		w.put(catalogue.StepCall)
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
		w.put(catalogue.StepCopy, uint64(k.Copy.GetDst()), uint64(k.Copy.GetSrc()))
	case *Step_Alloc:
		w.put(catalogue.StepAlloc, uint64(k.Alloc.GetBuffer()))
		w.dim(k.Alloc.GetBytes())
	case *Step_Clone:
		w.put(catalogue.StepClone, uint64(k.Clone.GetTo()), uint64(k.Clone.GetFrom()))
	case *Step_Free:
		w.put(catalogue.StepFree, uint64(k.Free.GetBuffer()))
	case *Step_Resize:
		w.put(catalogue.StepResize, uint64(k.Resize.GetBuffer()))
		w.dim(k.Resize.GetBytes())
	case *Step_Fused:
		w.put(catalogue.StepFused, uint64(k.Fused.GetKernels()), uint64(k.Fused.GetPlain()))
	case *Step_Kernel:
		w.kernelOp(k.Kernel)
	default:
		panic("BUG: a step of no known kind after Validate")
	}
}

// arg writes the tag, the head if it is not the value itself, and the payload.
func (w *words) arg(a *Arg) {
	f := a.Flat()
	kind := catalogue.ArgKindOf(f.Tag)
	if kind == nil {
		panic("BUG: an argument of no known kind after Validate")
	}
	w.put(f.Tag)
	if kind.HasHead() {
		w.put(f.Head)
	}
	switch kind.Payload {
	case catalogue.PayloadTensor, catalogue.PayloadParam, catalogue.PayloadWord, catalogue.PayloadHead:
		w.put(f.Value)
	case catalogue.PayloadText:
		w.str(f.Text)
	case catalogue.PayloadItems:
		w.put(uint64(len(f.Items)))
		for _, item := range f.Items {
			w.arg(item)
		}
	}
}
