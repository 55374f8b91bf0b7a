// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"fmt"
	"slices"
	"strings"
)

// Own is the row of an op of the IR: a leaf, an op on memory, a call, or one of the own compute ops. A zero cell
// above Logical is a mistake; the cells from Logical on are zero where they do not apply.
type Own struct {
	Name  string // in the text form
	Go    string // the constant's name without "Op", if it is not Name in camel case
	Doc   string // comment of the constant
	Kind  Kind
	Args  string // argument words in order: x y z c operands, number, dims, keepdim; "-" none, "..." any
	Takes Classes
	DType DTypeRule
	Shape ShapeRule
	Pure  Purity
	ATen  []Form // the first form that fits is emitted; empty, not nil, if there is none

	Logical    bool    // computes with the truth of its operands
	WideNumber bool    // a number among 16-bit float operands keeps f32 precision, as in PyTorch's CPU kernels
	Identity   Classes // the op returns its operand of these dtypes unchanged
	Divides    bool    // an error if the second operand, an integer, is 0
	Commutes   Classes // two operands of one of these dtypes, the same for both, may change places: the bits stay
	OnBool     *Instr  // replaces Kernel if the operands are b8
	Kernel     *Instr  // the instruction that computes the op in a kernel
	Meaning    Meaning // the reference, for ir/eval
}

// Kind is a group of ops that passes and codegen handle in the same way.
type Kind uint8

const (
	KindLeaf        Kind = iota + 1 // no operands
	KindMemory                      // about storages, not about elements
	KindCall                        // an operator of PyTorch
	KindElementwise                 // operands broadcast; one element of the result from one of each
	KindFill                        // one number everywhere
	KindCopy                        // the same elements in new memory
	KindReduce                      // some dims are reduced
)

// Classes is a set of kinds of dtype.
type Classes uint8

const (
	Bools     Classes = 1 << (ClassBool - 1)
	Ints      Classes = 1 << (ClassInt - 1)
	Floats    Classes = 1 << (ClassFloat - 1)
	Complexes Classes = 1 << (ClassComplex - 1)
	Floats8   Classes = 1 << (ClassFloat8 - 1)

	Reals   = Ints | Floats
	Numbers = Bools | Ints | Floats | Complexes
	All     = Numbers | Floats8
)

// DTypeRule is the rule for the dtype of an op's result. "Promoted" is ATen's type promotion over all operands, except
// the condition of where.
type DTypeRule uint8

const (
	DTypeGiven    DTypeRule = iota + 1 // any dtype: the result type has it
	DTypeNumber                        // f64, i64, b8 or c128
	DTypeFirst                         // operand 0's
	DTypePromoted                      // promoted
	DTypeFloat                         // promoted; bool and ints give the default dtype, f32 unless the user changed it
	DTypeReal                          // promoted; complex gives its parts' dtype
	DTypeBool                          // b8
	DTypeSum                           // operand 0's; bool and ints give i64
)

// ShapeRule is the rule for the sizes of an op's result.
type ShapeRule uint8

const (
	ShapeGiven     ShapeRule = iota + 1 // any sizes: the result type has them
	ShapeScalar                         // rank 0
	ShapeFirst                          // operand 0's
	ShapeBroadcast                      // the operands' broadcast
	ShapeReduce                         // operand 0's with the dims reduced
	ShapeBytes                          // rank 1, u8: any number of bytes
)

// Purity is the condition under which two nodes with equal operands may be merged.
type Purity uint8

const (
	Pure    Purity = iota + 1 // always
	Fresh                     // never, for content is undefined; droppable
	ByFlags                   // if the node has no flags and writes nothing
)

// Form is one operator of PyTorch with the exact meaning of an own op. Args has one word per argument of its schema:
//
//	0 1 2     that operand, a tensor or, in ops with several operands, a number
//	0# 1#     that operand, which is a number
//	one       the literal integer 1
//	dims      the dims of a reduction; absent or empty means all
//	keepdim   the flag of a reduction
//	all       nothing in the schema: stands at the end; dims are empty and keepdim is false
//	dtype     the result's dtype, present
//	asdtype   absent, or the dtype that the result has anyway
//	layout device pin nonblock   absent, or what every tensor of the device has; nonblock has no meaning here
//	preserve  a memory format that leaves the operand's layout: absent or preserve
//	memfmt    any memory format: the result type holds its effect
type Form struct {
	Name string
	Args string
}

// Instr is the row of a kernel instruction. Its number is that of MYC_K_<NAME>; it never changes.
type Instr struct {
	Name      string
	Go        string // the constant's name in package kernel, if it is not Name in camel case
	Number    uint8
	Group     Group
	Operands  int         // registers that it uses
	Takes     RegisterSet // classes of its operands, which are all of one class
	Condition bool        // the first operand is B8, for any class of the others
	Truth     bool        // the result is B8; else it has the operands' class
	Keeps     bool        // the result is one of the operands or 0: it has a dtype's values only if they have
	Cost      Cost
	Combine   string   // GroupReduce: the instruction that combines two values
	Start     Identity // GroupReduce: the value that an empty reduction has
	CUDA      Text     // expression in CUDA C++; see Text
	CPU       CPU
}

// Group determines the words of an instruction, and how it is computed.
type Group uint8

const (
	GroupMemory  Group = iota + 1 // reads or writes an operand, or reads an index
	GroupValue                    // one value for a kernel instance
	GroupConvert                  // one register to another class or dtype; its code depends on both
	GroupReduce                   // combines the values of the points that are reduced together
	GroupCompute                  // computes registers element by element
)

// RegisterSet is a set of register classes.
type RegisterSet uint8

const (
	RegF32 RegisterSet = 1 << (iota + 1)
	RegF64
	RegI64
	RegB8

	FloatRegs  = RegF32 | RegF64
	NumberRegs = FloatRegs | RegI64
	BitRegs    = RegI64 | RegB8
	AnyRegs    = NumberRegs | RegB8
)

// Cost is the cost of an instruction for one element. Each planner has its own weights for the four levels.
type Cost uint8

const (
	CostFree     Cost = iota + 1 // no arithmetic
	CostSimple                   // as an addition
	CostDivide                   // as a division
	CostFunction                 // as an exponential
)

// Identity is the neutral value of a reduction: combining it with another value gives that other value.
type Identity uint8

const (
	IdentityZero    Identity = iota + 1
	IdentityLowest           // -inf, the least integer, false
	IdentityHighest          // inf, the largest integer, true
)

// Text is an expression by the class of the operands. An empty cell means the one before it, Float, Whole, Truth.
//
// In CUDA, $a $b $c are the registers, $f is "f" for F32 and nothing for F64, and @name is a function of the prelude.
// On the CPU, a and b are values of type T, and U<T> is T without a sign, whose sums wrap; the compiler vectorises it.
type Text struct {
	Float, Whole, Truth string
}

// CPU is the code with which the CPU executor computes an instruction (csrc/exec/kernel/Tile.cpp).
type CPU struct {
	Loop  Text   // a loop over values
	Vec   string // of floats: an expression on a, b, c of at::vec::Vectorized<T>, V, with the results of ATen's kernels
	F32   string // of f32, before Vec: a function in csrc/exec/kernel/Math.h
	Loops string // a template in Tile.cpp that gives the loops by shape
	Brain bool   // a loop of its own rounds the result of f32 to bf16
	Pairs bool   // two such instructions of f32, the second on the first's result, have one loop
}

// Integer is the dtype of an integer or truth value: b8 has one bit.
type Integer struct {
	Bits   int
	Signed bool
}

// Meaning is the reference of an elementwise op, by the kind of its operands. The result still has to be rounded to
// the op's dtype. A row has the functions for its number of operands.
type Meaning struct {
	Float    func(x float64) float64
	Complex  func(x complex128) complex128
	Int      func(x int64, d Integer) int64
	Float2   func(x, y float64) float64
	Complex2 func(x, y complex128) complex128
	Int2     func(x, y int64, d Integer) (int64, error)
	Order    func(Ordering) bool  // a comparison
	Logic    func(x, y bool) bool // of the operands' truth
}

// Ordering is the result of a comparison of two values.
type Ordering int

const (
	Less Ordering = iota - 1
	Equal
	Greater
	Unordered // one is NaN, or they are different complex numbers
)

// Of is the expression for one of the classes, "" if there is none.
func (t Text) Of(r RegisterSet) string {
	switch {
	case r&RegB8 != 0 && t.Truth != "":
		return t.Truth
	case r&BitRegs != 0 && t.Whole != "":
		return t.Whole
	}
	return t.Float
}

// GoName is the name of the op's constant without its prefix.
func (o *Own) GoName() string {
	if o.Go != "" {
		return o.Go
	}
	return camel(o.Name)
}

// GoName is the name of the instruction's constant.
func (i *Instr) GoName() string {
	if i.Go != "" {
		return i.Go
	}
	return camel(i.Name)
}

// Macro is the name of the instruction's number in C.
func (i *Instr) Macro() string { return "MYC_K_" + strings.ToUpper(i.Name) }

func camel(name string) string {
	var b strings.Builder
	for w := range strings.SplitSeq(name, "_") {
		b.WriteString(strings.ToUpper(w[:1]) + w[1:])
	}
	return b.String()
}

// Arity is the number of operands, -1 if any number.
func (o *Own) Arity() int {
	switch o.Args {
	case "-":
		return 0
	case "...":
		return -1
	}
	n := 0
	for w := range strings.SplitSeq(o.Args, " ") {
		if w != "dims" && w != "keepdim" {
			n++
		}
	}
	return n
}

// Instrs lists all kernel instructions by number.
func Instrs() []*Instr {
	var out []*Instr
	for i := range kernelOnly {
		out = append(out, &kernelOnly[i])
	}
	for i := range OwnOps {
		if k := OwnOps[i].Kernel; k != nil && !slices.Contains(out, k) {
			out = append(out, k)
		}
	}
	slices.SortFunc(out, func(a, b *Instr) int { return int(a.Number) - int(b.Number) })
	return out
}

// MeaningOf is the op that an instruction computes on registers, nil for those that have no op.
func (i *Instr) MeaningOf() *Own {
	for j := range OwnOps {
		if o := &OwnOps[j]; o.Kernel == i && !o.Logical {
			return o
		}
	}
	return nil
}

// InstrNamed finds an instruction by its name.
func InstrNamed(name string) *Instr {
	for _, i := range Instrs() {
		if i.Name == name {
			return i
		}
	}
	panic(fmt.Sprintf("BUG: there is no kernel instruction %q", name))
}
