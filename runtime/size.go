// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"unsafe"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/proto"
)

// The sizes in memory of what a session keeps for its programs. The allocator rounds sizes up; object does the same.
// TestSizeOfPrograms compares the sum with the growth of the heap.

// object is the memory of an object of this size: the allocator's classes are about an eighth apart.
func object(bytes uintptr) int64 {
	const word, small = 16, 128
	if bytes <= small {
		return int64((bytes + word - 1) &^ (word - 1))
	}
	return int64(bytes + bytes/16)
}

func slice[T any](s []T) int64 {
	var one T
	if cap(s) == 0 {
		return 0
	}
	return object(unsafe.Sizeof(one) * uintptr(cap(s)))
}

// oneof is the memory of a message of type T that is the value of a oneof with a wrapper of type W.
func oneof[T, W any]() int64 {
	var t T
	var w W
	return object(unsafe.Sizeof(t) + unsafe.Sizeof(w))
}

// bytes is the memory of an entry, with its variants.
func (e *entry) bytes() int64 {
	n := object(unsafe.Sizeof(*e)) + slice(e.skeleton) + slice(e.inputs) + slice(e.changed) + slice(e.ops) +
		slice(e.variants)
	for _, v := range e.variants {
		n += v.bytes
	}
	return n
}

// measure is the memory of a variant. A call of the program, which the variant keeps, is counted before there is one.
func (v *variant) measure() int64 {
	c := v.compiled
	n := object(unsafe.Sizeof(*v)) + slice(v.wanted) + 2*int64(8*len(v.first)) + object(unsafe.Sizeof(*c)) +
		slice(c.Slots) + slice(c.Inputs) + slice(c.Outputs) + slice(c.StepRecord) + slice(c.Derived) + slice(c.Requires) +
		slice(c.Numbers)
	for i := range c.Derived {
		d := &c.Derived[i]
		n += slice(d.Sizes) + slice(d.Strides) + slice(d.Over)
	}
	if v.weight != nil {
		n += v.weight.Bytes()
	}
	if v.account != nil {
		n += object(unsafe.Sizeof(*v.account)) + slice(v.account.origins) + int64(len(v.account.why)+len(v.account.memory))
	}
	n += object(unsafe.Sizeof(proto.Call{})) + 8*int64(c.Program.Params) + 8*int64(len(c.Inputs)+len(c.Outputs))
	return n + programBytes(c)
}

// programBytes is the memory of a program's messages.
func programBytes(c *codegen.Compiled) int64 {
	p := c.Program
	n := object(unsafe.Sizeof(*p)) + slice(p.Tensors) + slice(p.Steps) + slice(p.Kernels) + slice(p.Inputs) +
		slice(p.Outputs) + slice(p.Records) + slice(p.Versions)
	// Equal dims are one message, and so are equal windows and equal numbers as arguments. A parameter is a dim or a
	// number.
	n += int64(p.Params) * oneof[proto.Dim, proto.Dim_Param]()
	numbers := make(numbers, p.Params)
	n += int64(len(p.Tensors)) * (object(unsafe.Sizeof(proto.Tensor{})) + oneof[proto.Arg, proto.Arg_Tensor]())
	for _, t := range p.Tensors {
		n += slice(t.Sizes) + slice(t.Strides)
	}
	for _, s := range p.Steps {
		n += object(unsafe.Sizeof(*s)) + numbers.step(s)
	}
	for _, k := range p.Kernels {
		n += kernelBytes(k)
	}
	return n
}

// numbers are the parameters whose message as a number is counted.
type numbers []bool

func (c numbers) step(s *proto.Step) (n int64) {
	switch k := s.Kind.(type) {
	case *proto.Step_Call:
		n = oneof[proto.CallOp, proto.Step_Call]() + slice(k.Call.Args) + slice(k.Call.Results)
		for _, a := range k.Call.Args {
			n += c.arg(a)
		}
	case *proto.Step_Kernel:
		n = oneof[proto.KernelOp, proto.Step_Kernel]() + slice(k.Kernel.Instances)
		for _, at := range k.Kernel.Instances {
			n += object(unsafe.Sizeof(*at)) + slice(at.Sizes) + slice(at.Tensors) + slice(at.Numbers)
			for _, a := range at.Numbers {
				n += c.arg(a)
			}
		}
	default: // of about the same size
		n = oneof[proto.Alloc, proto.Step_Alloc]()
	}
	return n
}

func (c numbers) arg(a *proto.Arg) int64 {
	switch k := a.Kind.(type) {
	case *proto.Arg_Tensor:
		return 0 // shared
	case *proto.Arg_Number_:
		if c[k.Number.Param] {
			return 0
		}
		c[k.Number.Param] = true
		number := unsafe.Sizeof(*a) + unsafe.Sizeof(*k) + unsafe.Sizeof(*k.Number)
		return object(number) - oneof[proto.Dim, proto.Dim_Param]()
	case *proto.Arg_List_:
		n := object(unsafe.Sizeof(*a)) + oneof[proto.Arg_List, proto.Arg_List_]() + slice(k.List.Items)
		for _, item := range k.List.Items {
			n += c.arg(item)
		}
		return n
	}
	return object(unsafe.Sizeof(*a)) + object(unsafe.Sizeof(proto.Arg_Int{}))
}

func kernelBytes(k *proto.Kernel) int64 {
	n := object(unsafe.Sizeof(*k)) + slice(k.Operands) + slice(k.Code) + slice(k.Spaces)
	for _, i := range k.Code {
		n += object(unsafe.Sizeof(*i))
	}
	for _, o := range k.Operands {
		n += object(unsafe.Sizeof(*o)) + slice(o.Along)
	}
	return n
}
