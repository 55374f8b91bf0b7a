// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package kernel is the form of a fused group on its way to a machine: one loop nest, as code that runs at each point of an index
// space. Sizes and strides are not in it but come with each launch, so one kernel is for all shapes. It knows nothing of graphs,
// buffers or machines, and never runs anything. Grammar and meaning are those of csrc/abi/mycelya.h.
package kernel

import (
	"math"

	"github.com/mycelya/mycelya/catalogue"
)

// Kernel is a loop nest. Frame 0 is its index space, of which the last Folded dims are folded by reductions. Other frames have the
// same points in the same order under other sizes; only a kernel that folds nothing has any.
type Kernel struct {
	Frames   []int // ranks
	Folded   int
	Operands []Operand
	Numbers  int // that each instance is given
	Code     []Instr
}

// Operand is what the code reads or writes: a tensor of a dtype (MYC_*).
type Operand struct {
	DType  uint8
	Access Access
	Frame  int
	Along  []int8 // by dim of the tensor: the dim of the frame along which it runs, -1 for one of size 1
}

// Access says what is done with an operand.
type Access uint8

const (
	Read  Access = catalogue.KernelRead
	Write Access = catalogue.KernelWrite
)

// Class is what a register holds.
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

// Instr is an instruction; what A, B and C are is the op's to say. It makes the register of its index, but a STORE.
type Instr struct {
	Op      Op
	Class   Class
	A, B, C uint64
}

// Op is what an instruction does: MYC_K_*.
type Op uint8

const (
	Load Op = iota + 1
	Store
	Number
	Const
	Count
	Index
	Cast
	Round
	Sum
	Max
	Min

	Neg Op = iota + 5
	Abs
	Sqrt
	Rsqrt
	Exp
	Log
	Sin
	Cos
	Tanh
	Sigmoid
	Relu
	Reciprocal
	Floor
	Ceil
	Sign
	Erf
	Exp2
	Log2
	Log1p
	Expm1
	Trunc
	Nearest
	IsNaN
	Not

	Add Op = iota + 13
	Sub
	Mul
	Div
	Pow
	Maximum
	Minimum
	Eq
	Ne
	Lt
	Le
	Gt
	Ge
	And
	Or
	Xor
	Atan2
	Fmod
	Remainder
	Fma
	Where

	numOps
)

// classes is a set of them.
type classes uint8

const (
	f32   = 1 << F32
	f64   = 1 << F64
	i64   = 1 << I64
	b8    = 1 << B8
	float = f32 | f64
	any   = float | i64 | b8
)

func (s classes) has(c Class) bool { return c >= F32 && c <= B8 && s>>c&1 != 0 }

// row says what an op takes: how many registers, and of which classes.
type row struct {
	name    string
	arity   int
	takes   classes // its operands, which are of one class
	makesB8 bool    // whatever it takes
}

var rows = [numOps]row{
	Load: {"load", 0, 0, false}, Store: {"store", 1, any, false}, Number: {"number", 0, 0, false}, Const: {"const", 0, 0, false},
	Count: {"count", 0, 0, false}, Index: {"index", 0, 0, false}, Cast: {"cast", 1, any, false}, Round: {"round", 1, f32 | i64, false},
	Sum: {"sum", 1, float | i64, false}, Max: {"max", 1, any, false}, Min: {"min", 1, any, false},

	Neg: {"neg", 1, float | i64, false}, Abs: {"abs", 1, float | i64, false}, Sqrt: {"sqrt", 1, float, false}, Rsqrt: {"rsqrt", 1, float, false},
	Exp: {"exp", 1, float, false}, Log: {"log", 1, float, false}, Sin: {"sin", 1, float, false}, Cos: {"cos", 1, float, false},
	Tanh: {"tanh", 1, float, false}, Sigmoid: {"sigmoid", 1, float, false}, Relu: {"relu", 1, float | i64, false},
	Reciprocal: {"reciprocal", 1, float, false}, Floor: {"floor", 1, float, false}, Ceil: {"ceil", 1, float, false},
	Sign: {"sign", 1, float | i64, false}, Erf: {"erf", 1, float, false}, Exp2: {"exp2", 1, float, false}, Log2: {"log2", 1, float, false},
	Log1p: {"log1p", 1, float, false}, Expm1: {"expm1", 1, float, false}, Trunc: {"trunc", 1, float, false}, Nearest: {"nearest", 1, float, false},
	IsNaN: {"isnan", 1, float, true}, Not: {"not", 1, i64 | b8, false},

	Add: {"add", 2, float | i64, false}, Sub: {"sub", 2, float | i64, false}, Mul: {"mul", 2, float | i64, false}, Div: {"div", 2, float, false},
	Pow: {"pow", 2, float, false}, Maximum: {"maximum", 2, any, false}, Minimum: {"minimum", 2, any, false},
	Eq: {"eq", 2, any, true}, Ne: {"ne", 2, any, true}, Lt: {"lt", 2, any, true}, Le: {"le", 2, any, true}, Gt: {"gt", 2, any, true},
	Ge: {"ge", 2, any, true}, And: {"and", 2, i64 | b8, false}, Or: {"or", 2, i64 | b8, false}, Xor: {"xor", 2, i64 | b8, false},
	Atan2: {"atan2", 2, float, false}, Fmod: {"fmod", 2, float, false}, Remainder: {"remainder", 2, float, false},
	Fma:   {"fma", 3, float, false},
	Where: {"where", 3, any, false},
}

func (op Op) String() string {
	if op >= numOps || rows[op].name == "" {
		return "?"
	}
	return rows[op].name
}

// Takes says whether an op computes on operands of a class.
func (op Op) Takes(c Class) bool { return op < numOps && rows[op].takes.has(c) }

// dtypes are what kernels know of a dtype, by its number. The class is 0 if they don't compute in it.
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

// Rounds says whether a register that holds the dtype needs a ROUND after arithmetic.
func Rounds(dtype uint8) bool { return int(dtype) < len(dtypes) && dtypes[dtype].rounds }

// Holds says whether a dtype represents a number: a float, or an integer (whole). PyTorch refuses finite numbers beyond
// the largest of a float dtype, so those are not represented.
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
