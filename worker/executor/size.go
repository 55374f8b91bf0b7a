// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package executor

import (
	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/program"
)

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

// RunBytes is the memory that a program keeps from its first run on: its buffers and tensors, without their content,
// and what the instances of its largest kernel step are given.
func RunBytes(p *program.Program) int64 {
	largest := 0
	for _, s := range p.Steps {
		k, ok := s.(*program.Kernel)
		if !ok {
			continue
		}
		n := 0
		for i := range k.Instances {
			// A size is 8 bytes. An operand has a size and a stride for at most each dim.
			at := &k.Instances[i]
			n += sizeGiven + 8*len(at.Sizes) + sizeGivenNumber*len(at.Numbers)
			n += len(at.Uses) * (sizeGivenOperand + 16*len(at.Sizes))
		}
		largest = max(largest, n)
	}
	return int64(len(p.Tensors)*sizeTensorAt + int(p.Buffers)*sizeBuffer + largest)
}

// PreparedBytes is the memory that a program takes when it is prepared.
func PreparedBytes(p *program.Program) int64 {
	n := sizeProgram + len(p.Tensors)*sizeTensor + len(p.Steps)*sizeStep + 16*len(p.Versions)
	for i := range p.Tensors {
		n += (len(p.Tensors[i].Sizes) + len(p.Tensors[i].Strides)) * sizeDim
	}
	for _, s := range p.Steps {
		switch s := s.(type) {
		case *program.Call:
			n += len(s.Results)*(4+sizeIndex) + preparedArgs(s.Args)
		case *program.Kernel:
			for i := range s.Instances {
				at := &s.Instances[i]
				n += sizeInstance + len(at.Sizes)*sizeDim + len(at.Uses)*(sizeUse+sizeIndex) + len(at.Numbers)*sizeValue
			}
		}
	}
	for _, k := range p.Kernels {
		n += sizeKernel + len(k.Code)*sizeInstr
	}
	return int64(n)
}

func preparedArgs(args []program.Arg) int {
	n := sizeArg * len(args)
	for i := range args {
		switch a := &args[i]; a.Tag {
		case catalogue.TagTensor:
			n += sizeIndex
		case catalogue.TagNumber:
			n += sizeNumber
		case catalogue.TagList:
			n += preparedArgs(a.Items)
		}
	}
	return n
}
