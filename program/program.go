// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package program is the program that the compiler makes and a worker runs: its Go form, its words, and the rules that
// it must obey. The words are the program on the wire, in caches and in the executor; csrc/abi/mycelya.h, part 3, has
// their grammar. The package never runs anything and never reads tensor data.
package program

import (
	"fmt"
	"strings"
	"unsafe"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// Program is a list of steps over buffers. A call of it brings its parameters, the storages that it takes over, and the
// storages that it leaves.
type Program struct {
	Params, Buffers uint32   // their numbers
	Inputs          []uint32 // buffers that exist at the start, one for each input of a call
	Outputs         []uint32 // buffers that become storages at the end, one for each output of a call; no buffer twice
	Tensors         []Tensor
	Kernels         []*kernel.Kernel
	Steps           []Step
	Records         []uint32  // by step: 1 + the number of the recorded op that it belongs to; 0: none
	Versions        []Version // by output and record
}

// Record is the number of the recorded op that a step belongs to, -1 for none.
func (p *Program) Record(step int) int { return int(p.Records[step]) - 1 }

// Version says where the content of an output's storage lies from one record on. A failure leaves that content behind:
// see the executor's run in csrc/abi/mycelya.h. A version may lie in two buffers.
type Version struct {
	Output uint32 // index
	Record uint32 // 1 + the number of the op that makes or writes the storage
	Buffer uint32 // 1 + the buffer; 0: the content is lost
	Writer uint32 // 1 + the number of the op whose step leaves it in the buffer; 0: none does
}

// Dim is a size, stride, offset or byte count: a constant, which is not negative, or a parameter of the call.
type Dim int64

// Param is the dim that parameter i holds, as an int64.
func Param(i uint32) Dim { return ^Dim(i) }

// Param returns the dim's parameter; ok is false for a constant.
func (d Dim) Param() (i uint32, ok bool) { return uint32(^d), d < 0 }

// At is the dim's value in a call with these parameters.
func (d Dim) At(params []uint64) int64 {
	if i, ok := d.Param(); ok {
		return int64(params[i])
	}
	return int64(d)
}

func (d Dim) String() string {
	if i, ok := d.Param(); ok {
		return fmt.Sprintf("p%d", i)
	}
	return fmt.Sprint(int64(d))
}

// Tensor is a strided window on a buffer.
type Tensor struct {
	Buffer  uint32
	DType   uint8 // MYC_*
	Sizes   []Dim
	Strides []Dim // in elements; nil: row-major for the sizes
	Offset  Dim   // in elements
}

// Arg is an argument of an operator or a number of a kernel. Its tag has a row in catalogue.ArgKinds, which says what
// the other fields are.
type Arg struct {
	Tag   uint8  // catalogue.Tag*
	Head  uint8  // kind of a number or a list, or dtype of a scalar
	Value uint64 // index of a tensor or a parameter, or the bits of a literal
	Text  string
	Items []Arg // never lists
}

// Window is an argument that is tensor i.
func Window(i uint32) Arg { return Arg{Tag: catalogue.TagTensor, Value: uint64(i)} }

// Int is an argument that is a literal integer.
func Int(v int64) Arg { return Arg{Tag: catalogue.TagInt, Value: uint64(v)} }

// Number is an argument that is a Python number of a kind (catalogue.Number*), from parameter i on.
func Number(kind uint8, i uint32) Arg {
	return Arg{Tag: catalogue.TagNumber, Head: kind, Value: uint64(i)}
}

// Scalar is an argument that is the element of a 0-dim tensor, from parameter i on.
func Scalar(dtype uint8, i uint32) Arg {
	return Arg{Tag: catalogue.TagScalar, Head: dtype, Value: uint64(i)}
}

// List is an argument that is a list of a kind (catalogue.List*).
func List(kind uint8, items ...Arg) Arg { return Arg{Tag: catalogue.TagList, Head: kind, Items: items} }

// Step is one of *Call, *Copy, *Alloc, *Clone, *Free, *Resize, *Fused and *Kernel.
type Step interface{ kind() uint64 }

// Call calls an operator of PyTorch, or an own one, by the name of its schema. The operator writes operands in place.
type Call struct {
	Op      string // "aten::add.Tensor"
	Args    []Arg
	Results []uint32 // each 0 (not wanted, or undefined), or 1 + a tensor whose buffer the step makes
	Flags   uint8    // MYC_R_*
}

// Copy copies a tensor element by element, with conversion. If Dst's buffer does not exist, the step makes it, as large
// as Dst's geometry needs.
type Copy struct{ Dst, Src uint32 }

// Alloc makes a buffer without content.
type Alloc struct {
	Buffer uint32
	Bytes  Dim
}

// Clone makes buffer To with a copy of all bytes of From.
type Clone struct{ To, From uint32 }

// Free ends a buffer.
type Free struct{ Buffer uint32 }

// Resize changes a buffer's size and keeps the common prefix.
type Resize struct {
	Buffer uint32
	Bytes  Dim
}

// Fused stands before Kernels steps that may run instead of the Plain steps after them. Both leave the same buffers
// with the same contents; the worker chooses.
type Fused struct{ Kernels, Plain uint32 }

// Kernel runs a kernel once for each instance. Instances may run at the same time. Only the kernels of a Fused step
// have this kind.
type Kernel struct {
	Kernel    uint32 // index into Program.Kernels
	Instances []Instance
}

// Instance is what a kernel runs on.
type Instance struct {
	Sizes   []Dim // of all index spaces, one space after the other
	Uses    []Use // by operand
	Numbers []Arg // numbers, scalars and literals
}

// Use is an operand of an instance. If Made, the step makes the tensor's buffer.
type Use struct {
	Tensor uint32
	Made   bool
}

func (*Call) kind() uint64   { return catalogue.StepCall }
func (*Copy) kind() uint64   { return catalogue.StepCopy }
func (*Alloc) kind() uint64  { return catalogue.StepAlloc }
func (*Clone) kind() uint64  { return catalogue.StepClone }
func (*Free) kind() uint64   { return catalogue.StepFree }
func (*Resize) kind() uint64 { return catalogue.StepResize }
func (*Fused) kind() uint64  { return catalogue.StepFused }
func (*Kernel) kind() uint64 { return catalogue.StepKernel }

// SetsFlag reports whether a step sets a flag or the default dtype. Such steps run after a failure, too: the recorder
// does not repeat them.
func SetsFlag(s Step) bool {
	c, ok := s.(*Call)
	return ok && (c.Op == "mycelya::set_default_dtype" || c.Op == "mycelya::set_flag")
}

// Joins reports whether a step begins a collective, in which other workers wait, or ends one.
func Joins(s Step) bool {
	c, ok := s.(*Call)
	return ok && strings.HasPrefix(c.Op, "mycelya::comm_")
}

// Bytes is the memory of the program in its Go form.
func (p *Program) Bytes() int64 {
	n := memory(p.Inputs) + memory(p.Outputs) + memory(p.Tensors) + memory(p.Kernels) + memory(p.Steps) +
		memory(p.Records) + memory(p.Versions) + int64(unsafe.Sizeof(*p))
	for i := range p.Tensors {
		n += memory(p.Tensors[i].Sizes) + memory(p.Tensors[i].Strides)
	}
	for _, k := range p.Kernels {
		n += int64(unsafe.Sizeof(*k)) + memory(k.Spaces) + memory(k.Operands) + memory(k.Code)
		for i := range k.Operands {
			n += memory(k.Operands[i].Along)
		}
	}
	for _, s := range p.Steps {
		switch s := s.(type) {
		case *Call:
			n += int64(unsafe.Sizeof(*s)) + argsBytes(s.Args) + memory(s.Results)
		case *Kernel:
			n += int64(unsafe.Sizeof(*s)) + memory(s.Instances)
			for i := range s.Instances {
				at := &s.Instances[i]
				n += memory(at.Sizes) + memory(at.Uses) + argsBytes(at.Numbers)
			}
		default:
			n += int64(unsafe.Sizeof(Alloc{}))
		}
	}
	return n
}

func memory[T any](list []T) int64 {
	var one T
	return int64(uintptr(cap(list)) * unsafe.Sizeof(one))
}

func argsBytes(args []Arg) int64 {
	n := memory(args)
	for i := range args {
		n += int64(len(args[i].Text)) + argsBytes(args[i].Items)
	}
	return n
}
