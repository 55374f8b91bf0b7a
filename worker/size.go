// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import "github.com/mycelya/mycelya/proto"

// The memory of the records of a prepared program, in bytes: those of csrc/exec/program/Program.h with what they own,
// and the allocator's overhead. TestSizeOfPreparedPrograms compares the sum with the growth of a process.
const (
	sizeProgram  = 2048
	sizeStep     = 200 // with the name of the operator and the kinds of its returns
	sizeTensor   = 64  // with its place among those of its buffer
	sizeTensorAt = 16  // of a run
	sizeDim      = 16
	sizeArg      = 32
	sizeNumber   = 300 // an argument that a 0-dim tensor holds
	sizeBuffer   = 72  // of a run, with its output's records
	sizeIndex    = 8   // of a buffer that a step reads or writes
	sizeInstance = 24
	sizeUse      = 8
	sizeValue    = 40
	sizeKernel   = 6 << 10 // with its tile programs
	sizeInstr    = 48
	// Of an instance while a step runs, and kept for the next run.
	sizeGiven        = 24
	sizeGivenOperand = 24
	sizeGivenNumber  = 24
)

// runBytes is the memory that a program keeps from its first run on: its buffers and tensors, without their content,
// and what the instances of its largest kernel step are given.
func runBytes(p *proto.Program) int64 {
	largest := 0
	for _, s := range p.Steps {
		n := 0
		for _, at := range s.GetKernel().GetInstances() {
			// A size is 8 bytes. An operand has a size and a stride for at most each dim.
			n += sizeGiven + 8*len(at.Sizes) + sizeGivenNumber*len(at.Numbers)
			n += len(at.Tensors) * (sizeGivenOperand + 16*len(at.Sizes))
		}
		largest = max(largest, n)
	}
	return int64(len(p.Tensors)*sizeTensorAt + int(p.Buffers)*sizeBuffer + largest)
}

// PreparedBytes is the memory that a program takes when it is prepared.
func PreparedBytes(p *proto.Program) int64 {
	n := sizeProgram + len(p.Tensors)*sizeTensor + len(p.Steps)*sizeStep + 4*len(p.Versions)
	for _, t := range p.Tensors {
		n += (len(t.Sizes) + len(t.Strides)) * sizeDim
	}
	for _, s := range p.Steps {
		switch k := s.Kind.(type) {
		case *proto.Step_Call:
			n += len(k.Call.Results) * (4 + sizeIndex)
			for _, a := range k.Call.Args {
				n += preparedArg(a)
			}
		case *proto.Step_Kernel:
			for _, at := range k.Kernel.Instances {
				n += sizeInstance + len(at.Sizes)*sizeDim + len(at.Tensors)*(sizeUse+sizeIndex) + len(at.Numbers)*sizeValue
			}
		}
	}
	for _, k := range p.Kernels {
		n += sizeKernel + len(k.Code)*sizeInstr
	}
	return int64(n)
}

func preparedArg(a *proto.Arg) int {
	switch k := a.Kind.(type) {
	case *proto.Arg_Tensor:
		return sizeArg + sizeIndex
	case *proto.Arg_Number_:
		return sizeArg + sizeNumber
	case *proto.Arg_List_:
		n := sizeArg
		for _, item := range k.List.Items {
			n += preparedArg(item)
		}
		return n
	}
	return sizeArg
}
