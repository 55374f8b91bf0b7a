// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kernel is the IR of kernels: one fused loop as code that runs at each point of an index space. Sizes and
// strides come with each instance, so one kernel serves all shapes. The package does not depend on graphs, buffers or
// devices, and never runs anything. csrc/abi/mycelya.h defines grammar and meaning.
package kernel

import (
	"math"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
)

// Kernel is a loop. It runs over index space 0, whose last Reduced dims are reduced. Other index spaces have the same
// points in the same order under other sizes; only a kernel without reductions has them.
type Kernel struct {
	Spaces   []int // ranks of the index spaces
	Reduced  int
	Operands []Operand
	Numbers  int // how many numbers each instance brings
	Code     []Instr
}

// Operand is a tensor of a dtype (MYC_*) that the code reads or writes.
type Operand struct {
	DType  uint8
	Access Access
	Space  int
	Along  []int8 // by dim of the tensor: the dim of the index space along which it runs, -1 for a dim of size 1, or Taken
}

// Taken is the dim of an operand along which each TAKE has its own position. An operand has one at most, and is then
// only taken from.
const Taken int8 = -2

// Takes returns the dim of an operand that is Taken, -1 if there is none.
func (o *Operand) Takes() int { return slices.Index(o.Along, Taken) }

// Access is the set of ways in which a kernel accesses an operand: it reads, writes, or both.
type Access uint8

const (
	Read  Access = catalogue.KernelRead
	Write Access = catalogue.KernelWrite
)

// Class is the type of a register's value.
type Class uint8

const (
	F32 Class = catalogue.RegisterF32
	F64 Class = catalogue.RegisterF64
	I64 Class = catalogue.RegisterI64
	B8  Class = catalogue.RegisterB8 // 0 or 1
)

func (c Class) String() string {
	if c < F32 || c > B8 {
		return "?"
	}
	return catalogue.Registers[c-1].Name
}

// Instr is an instruction. Its op says what A, B and C are. Each instruction but a store defines the register of its
// index.
type Instr struct {
	Op      Op
	Class   Class
	A, B, C uint64
}

// rows are the rows of the catalogue by number; nil where no instruction has the number.
var rows = makeRows()

func makeRows() (rows [numOps]*catalogue.Instr) {
	for _, i := range catalogue.Instrs() {
		rows[i.Number] = i
	}
	return rows
}

// Row is the row of an op in the catalogue; nil if there is no such op.
func (op Op) Row() *catalogue.Instr {
	if op >= numOps {
		return nil
	}
	return rows[op]
}

// Set is the class as a set.
func (c Class) Set() catalogue.RegisterSet { return 1 << c }

// Reduces reports whether an op combines the values of several points.
func (op Op) Reduces() bool { r := op.Row(); return r != nil && r.Group == catalogue.GroupReduce }

func (op Op) String() string {
	r := op.Row()
	if r == nil {
		return "?"
	}
	return r.Name
}

// Takes reports whether an op computes on operands of a class.
func (op Op) Takes(c Class) bool {
	r := op.Row()
	return r != nil && c >= F32 && c <= B8 && r.Takes&c.Set() != 0
}

// dtypes has the properties of a dtype in kernels, by its number. The class is 0 if kernels don't compute in it.
var dtypes = func() (rows [catalogue.NumDTypes]struct {
	class  Class
	rounds bool
}) {
	for _, d := range catalogue.DTypes {
		rows[d.Number].class, rows[d.Number].rounds = Class(d.RegisterOf()), d.Rounds
	}
	return rows
}()

// ClassOf is the class of a register that a dtype (MYC_*) is loaded into, 0 if kernels don't compute in it.
func ClassOf(dtype uint8) Class {
	if int(dtype) >= len(dtypes) {
		return 0
	}
	return dtypes[dtype].class
}

// Rounds reports whether a register that holds the dtype needs a ROUND after arithmetic.
func Rounds(dtype uint8) bool { return int(dtype) < len(dtypes) && dtypes[dtype].rounds }

// Holds reports whether a dtype represents a number: a float, or an integer (whole). PyTorch refuses finite numbers
// beyond the largest of a float dtype, so those are not represented.
func Holds(dtype uint8, integral bool, real float64, whole int64) bool {
	row := catalogue.DTypeOf(uint64(dtype))
	switch {
	case ClassOf(dtype) == 0:
		return true
	case row.Class == catalogue.ClassFloat:
		if integral {
			real = float64(whole)
		}
		return !(math.Abs(real) > row.Largest) || math.IsInf(real, 0)
	case !integral:
		return false
	case row.Class == catalogue.ClassBool:
		return whole == 0 || whole == 1
	}
	bits := 8 * row.Size
	if row.Signed {
		return whole<<(64-bits)>>(64-bits) == whole
	}
	return whole>>bits == 0
}
