// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"math"
	"math/cmplx"
)

// This file is the table of ops and kernel instructions; op.go explains the columns. A new own op is one row here.
// The table may be longer than 600 lines.

// one makes the list of a single form.
func one(name, args string) []Form { return []Form{{name, args}} }

// overloads makes the forms of the overloads Tensor and Scalar, for operators that have both.
func overloads(name string) []Form {
	return []Form{{name + ".Scalar", "0 1#"}, {name + ".Tensor", "0 1"}}
}

// withNumbers has the three overloads of the bitwise ops.
func withNumbers(name string) []Form {
	return []Form{{name + ".Scalar", "0 1#"}, {name + ".Scalar_Tensor", "0# 1"}, {name + ".Tensor", "0 1"}}
}

// function is an instruction that CUDA has as a function of f64, with an f after its name of f32, and ATen as a method
// of its vectors.
func function(i Instr, cuda, vec string) *Instr {
	args := [...]string{1: "($a)", 2: "($a, $b)", 3: "($a, $b, $c)"}
	i.Group, i.Takes = GroupCompute, FloatRegs
	i.CUDA, i.CPU.Vec = Text{Float: cuda + "$f" + args[i.Operands]}, vec
	return &i
}

// compare is an instruction that compares two values of any class.
func compare(name string, number uint8, operator string) *Instr {
	return &Instr{Name: name, Number: number, Group: GroupCompute, Operands: 2, Takes: AnyRegs, Truth: true,
		Cost: CostSimple, CUDA: Text{Float: "$a " + operator + " $b"}, CPU: CPU{Loop: Text{Float: "a " + operator + " b"}}}
}

// bits is an instruction on the bits of integers and truth values.
func bits(name string, number uint8, operator string) *Instr {
	return &Instr{Name: name, Number: number, Group: GroupCompute, Operands: 2, Takes: BitRegs,
		Cost: CostSimple, CUDA: Text{Whole: "$a " + operator + " $b"}, CPU: CPU{Loop: Text{Whole: "a " + operator + " b"}}}
}

// wraps is an arithmetic operator whose integers wrap.
func wraps(operator string) (cuda, cpu Text) {
	unsigned := "(unsigned long long)"
	return Text{Float: "$a " + operator + " $b",
			Whole: "(long long)(" + unsigned + "$a " + operator + " " + unsigned + "$b)"},
		Text{Float: "U<T>(a) " + operator + " U<T>(b)"}
}

// arithmetic is an instruction that adds, subtracts or multiplies.
func arithmetic(name string, number uint8, operator string) *Instr {
	cuda, cpu := wraps(operator)
	return &Instr{Name: name, Number: number, Group: GroupCompute, Operands: 2, Takes: NumberRegs, Cost: CostSimple,
		CUDA: cuda, CPU: CPU{Loop: cpu, Brain: true, Pairs: true}}
}

// pick is an instruction that gives the greater or the lesser of two values, or a NaN if one of them is a NaN.
func pick(name string, number uint8, order string) *Instr {
	return &Instr{Name: name, Number: number, Group: GroupCompute, Operands: 2, Takes: AnyRegs, Keeps: true,
		Cost: CostSimple, CUDA: Text{Float: "@" + name + "($a, $b)"},
		CPU: CPU{Loop: Text{Float: "a != a || b != b ? a + b : (a " + order + " b ? a : b)",
			Whole: "a " + order + " b ? a : b"}}}
}

// rounding is an instruction that rounds floats to integers.
func rounding(name string, number uint8, cuda, vec string) *Instr {
	return function(Instr{Name: name, Number: number, Operands: 1, Cost: CostSimple}, cuda, vec)
}

// unary is an instruction with one operand that costs as much as a function.
func unary(name string, number uint8) *Instr {
	return function(Instr{Name: name, Number: number, Operands: 1, Cost: CostFunction}, name, "a."+name+"()")
}

// written is unary with a function in Math.h for f32.
func written(name string, number uint8, f32 string) *Instr {
	i := unary(name, number)
	i.CPU.F32 = f32
	return i
}

// binary is an instruction with two operands that costs as much as a function.
func binary(name string, number uint8) *Instr {
	return function(Instr{Name: name, Number: number, Operands: 2, Cost: CostFunction}, name, "a."+name+"(b)")
}

const factory = " layout device pin "

// Instructions that compute several ops.
var (
	notInstr = &Instr{Name: "not", Number: 39, Group: GroupCompute, Operands: 1, Takes: BitRegs, Cost: CostSimple,
		CUDA: Text{Whole: "~$a", Truth: "!$a"}, CPU: CPU{Loop: Text{Whole: "~a", Truth: "a ^ 1"}}}
	andInstr = bits("and", 61, "&")
	orInstr  = bits("or", 62, "|")
	xorInstr = bits("xor", 63, "^")
)

// kernelOnly are the instructions that belong to no op.
var kernelOnly = []Instr{
	{Name: "load", Number: 1, Group: GroupMemory, Cost: CostFree},
	{Name: "store", Number: 2, Group: GroupMemory, Operands: 1, Takes: AnyRegs, Cost: CostFree},
	{Name: "number", Number: 3, Group: GroupValue, Cost: CostFree},
	{Name: "const", Number: 4, Group: GroupValue, Cost: CostFree},
	{Name: "count", Number: 5, Group: GroupValue, Cost: CostFree},
	{Name: "index", Number: 6, Group: GroupMemory, Cost: CostFree},
	{Name: "take", Number: 12, Group: GroupMemory, Operands: 1, Takes: RegI64, Cost: CostSimple},
	{Name: "round", Number: 8, Group: GroupConvert, Operands: 1, Takes: RegF32 | RegI64, Cost: CostSimple},
}

// OwnOps is the table; its order is that of the constants in package ir.
var OwnOps = []Own{
	// Leaves.
	{Name: "input", Doc: "input k: the content of the storage bound to slot k",
		Kind: KindLeaf, Args: "-", Takes: All, DType: DTypeGiven, Shape: ShapeGiven, Pure: Pure, ATen: []Form{}},
	{Name: "param", Doc: "param k: a Python number held by parameter slot k; weakest in type promotion",
		Kind: KindLeaf, Args: "-", Takes: Numbers, DType: DTypeNumber, Shape: ShapeScalar, Pure: Pure,
		ATen: []Form{}},
	{Name: "scalar", Doc: "scalar k: a 0-dim CPU tensor whose element is parameter slot k",
		Kind: KindLeaf, Args: "-", Takes: All, DType: DTypeGiven, Shape: ShapeScalar, Pure: Pure, ATen: []Form{}},
	{Name: "const", Doc: "const 0.5: a Python number that is the same in every call; as param in all else",
		Kind: KindLeaf, Args: "-", Takes: Bools | Ints | Floats, DType: DTypeNumber, Shape: ShapeScalar, Pure: Pure,
		ATen: []Form{}},

	// Memory.
	{Name: "empty", Doc: "empty: uninitialised content",
		Kind: KindMemory, Args: "-", Takes: All, DType: DTypeGiven, Shape: ShapeGiven, Pure: Fresh, ATen: []Form{}},
	{Name: "view", Doc: "view %x offset=o: the elements of %x's storage at the result type's sizes and strides",
		Kind: KindMemory, Args: "x", Takes: All, DType: DTypeGiven, Shape: ShapeGiven, Pure: Pure, ATen: []Form{}},
	{Name: "update", Doc: "update %x %y offset=o: %x with the region (geometry of %y's type, offset) replaced by %y",
		Kind: KindMemory, Args: "x y", Takes: All, DType: DTypeFirst, Shape: ShapeFirst, Pure: Pure, ATen: []Form{}},
	{Name: "resize", Doc: "resize %x: u8[new] with %x's bytes as far as they go, %x: u8[old]",
		Kind: KindMemory, Args: "x", Takes: Ints, DType: DTypeFirst, Shape: ShapeBytes, Pure: Fresh, ATen: []Form{}},

	{Name: "call", Doc: "any operator of PyTorch by its full name, with its arguments as in its schema",
		Kind: KindCall, Args: "...", Takes: All, DType: DTypeGiven, Shape: ShapeGiven, Pure: ByFlags, ATen: []Form{}},

	// Elementwise, one operand.
	{Name: "neg",
		Kind: KindElementwise, Args: "x", Takes: Reals | Complexes, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::neg", "0"),
		Kernel: &Instr{Name: "neg", Number: 16, Group: GroupCompute, Operands: 1, Takes: NumberRegs, Cost: CostSimple,
			CUDA: Text{Float: "-$a", Whole: "(long long)(0ull - (unsigned long long)$a)"},
			CPU:  CPU{Loop: Text{Float: "-U<T>(a)"}}},
		Meaning: Meaning{
			Float:   func(x float64) float64 { return -x },
			Complex: func(x complex128) complex128 { return complex(-real(x), -imag(x)) },
			Int:     func(x int64, _ Integer) int64 { return -x }}},
	{Name: "abs",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeReal, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::abs", "0"),
		Kernel: &Instr{Name: "abs", Number: 17, Group: GroupCompute, Operands: 1, Takes: NumberRegs, Cost: CostSimple,
			CUDA: Text{Float: "fabs$f($a)",
				Whole: "(long long)($a < 0 ? 0ull - (unsigned long long)$a : (unsigned long long)$a)"},
			CPU: CPU{Loop: Text{Float: "Magnitude(a)"}}},
		Meaning: Meaning{Float: math.Abs, Int: absInt}},
	{Name: "sqrt",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen:    one("aten::sqrt", "0"),
		Kernel:  function(Instr{Name: "sqrt", Number: 18, Operands: 1, Cost: CostDivide}, "sqrt", "a.sqrt()"),
		Meaning: Meaning{Float: math.Sqrt, Complex: cmplx.Sqrt}},
	{Name: "rsqrt",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen:   one("aten::rsqrt", "0"),
		Kernel: function(Instr{Name: "rsqrt", Number: 19, Operands: 1, Cost: CostDivide}, "rsqrt", "V(1) / a.sqrt()"),
		Meaning: Meaning{
			Float:   func(x float64) float64 { return 1 / math.Sqrt(x) },
			Complex: func(x complex128) complex128 { return 1 / cmplx.Sqrt(x) }}},
	{Name: "exp",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::exp", "0"), Kernel: written("exp", 20, "Exp"),
		Meaning: Meaning{Float: math.Exp, Complex: cmplx.Exp}},
	{Name: "log",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::log", "0"), Kernel: written("log", 21, "Log"),
		Meaning: Meaning{Float: log, Complex: cmplx.Log}},
	{Name: "sin",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::sin", "0"), Kernel: unary("sin", 22),
		Meaning: Meaning{Float: math.Sin, Complex: cmplx.Sin}},
	{Name: "cos",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::cos", "0"), Kernel: unary("cos", 23),
		Meaning: Meaning{Float: math.Cos, Complex: cmplx.Cos}},
	{Name: "tanh",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::tanh", "0"), Kernel: written("tanh", 24, "Tanh"),
		Meaning: Meaning{Float: math.Tanh, Complex: cmplx.Tanh}},
	{Name: "sigmoid",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::sigmoid", "0"),
		Kernel: &Instr{Name: "sigmoid", Number: 25, Group: GroupCompute, Operands: 1, Takes: FloatRegs, Cost: CostFunction,
			CUDA: Text{Float: "@sigmoid($a)"}, CPU: CPU{Vec: "V(1) / (V(1) + (V(0) - a).exp())", F32: "Sigmoid"}},
		Meaning: Meaning{
			Float:   func(x float64) float64 { return 1 / (1 + math.Exp(-x)) },
			Complex: func(x complex128) complex128 { return 1 / (1 + cmplx.Exp(-x)) }}},
	{Name: "relu",
		Kind: KindElementwise, Args: "x", Takes: Reals, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::relu", "0"),
		Kernel: &Instr{Name: "relu", Number: 26, Group: GroupCompute, Operands: 1, Takes: NumberRegs, Keeps: true,
			Cost: CostSimple, CUDA: Text{Float: "@relu($a)"}, CPU: CPU{Loop: Text{Float: "a < T(0) ? T(0) : a"}}},
		Meaning: Meaning{Float: relu, Int: reluInt}},
	{Name: "reciprocal",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::reciprocal", "0"),
		Kernel: &Instr{Name: "reciprocal", Number: 27, Group: GroupCompute, Operands: 1, Takes: FloatRegs, Cost: CostDivide,
			CUDA: Text{Float: "1 / $a"}, CPU: CPU{Loop: Text{Float: "T(1) / a"}}},
		Meaning: Meaning{
			Float:   func(x float64) float64 { return 1 / x },
			Complex: func(x complex128) complex128 { return 1 / x }}},
	{Name: "floor",
		Kind: KindElementwise, Args: "x", Takes: Reals, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::floor", "0"), Identity: Ints, Kernel: rounding("floor", 28, "floor", "a.floor()"),
		Meaning: Meaning{Float: math.Floor, Int: sameInt}},
	{Name: "ceil",
		Kind: KindElementwise, Args: "x", Takes: Reals, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::ceil", "0"), Identity: Ints, Kernel: rounding("ceil", 29, "ceil", "a.ceil()"),
		Meaning: Meaning{Float: math.Ceil, Int: sameInt}},
	{Name: "sign",
		Kind: KindElementwise, Args: "x", Takes: Bools | Reals, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::sign", "0"), Identity: Bools,
		Kernel: &Instr{Name: "sign", Number: 30, Group: GroupCompute, Operands: 1, Takes: NumberRegs, Cost: CostSimple,
			CUDA: Text{Float: "@sign($a)"}, CPU: CPU{Loop: Text{Float: "(a > T(0)) - (a < T(0))"}}},
		Meaning: Meaning{Float: sign, Int: signInt}},
	{Name: "erf",
		Kind: KindElementwise, Args: "x", Takes: Bools | Reals, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::erf", "0"), Kernel: written("erf", 31, "Erf"),
		Meaning: Meaning{Float: math.Erf}},
	{Name: "erfc",
		Kind: KindElementwise, Args: "x", Takes: Bools | Reals, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::erfc", "0"), Kernel: unary("erfc", 40),
		Meaning: Meaning{Float: math.Erfc}},
	{Name: "exp2",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::exp2", "0"), Kernel: unary("exp2", 32),
		Meaning: Meaning{
			Float:   math.Exp2,
			Complex: func(x complex128) complex128 { return cmplx.Exp(x * math.Ln2) }}},
	{Name: "log2",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::log2", "0"), Kernel: unary("log2", 33),
		Meaning: Meaning{Float: math.Log2, Complex: log2Complex}},
	{Name: "log1p",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::log1p", "0"), Kernel: unary("log1p", 34),
		Meaning: Meaning{
			Float:   math.Log1p,
			Complex: func(x complex128) complex128 { return cmplx.Log(1 + x) }}},
	{Name: "expm1",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeFloat, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::expm1", "0"), Kernel: unary("expm1", 35),
		Meaning: Meaning{
			Float:   math.Expm1,
			Complex: func(x complex128) complex128 { return cmplx.Exp(x) - 1 }}},
	{Name: "trunc",
		Kind: KindElementwise, Args: "x", Takes: Reals, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::trunc", "0"), Identity: Ints, Kernel: rounding("trunc", 36, "trunc", "a.trunc()"),
		Meaning: Meaning{Float: math.Trunc, Int: sameInt}},
	{Name: "round",
		Kind: KindElementwise, Args: "x", Takes: Reals, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::round", "0"), Identity: Ints, Kernel: rounding("nearest", 37, "rint", "a.round()"),
		Meaning: Meaning{Float: math.RoundToEven, Int: sameInt}},
	{Name: "isnan", Go: "IsNaN",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeBool, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::isnan", "0"),
		Kernel: &Instr{Name: "isnan", Go: "IsNaN", Number: 38, Group: GroupCompute, Operands: 1,
			Takes: FloatRegs, Truth: true, Cost: CostSimple, CUDA: Text{Float: "$a != $a"},
			CPU: CPU{Loop: Text{Float: "a != a"}}}},
	{Name: "logical_not",
		Kind: KindElementwise, Args: "x", Takes: Numbers, DType: DTypeBool, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::logical_not", "0"), Logical: true, Kernel: notInstr},
	{Name: "bit_not",
		Kind: KindElementwise, Args: "x", Takes: Bools | Ints, DType: DTypePromoted, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::bitwise_not", "0"), Kernel: notInstr,
		Meaning: Meaning{Int: notInt}},
	{Name: "cast", Doc: "the result type's dtype",
		Kind: KindElementwise, Args: "x", Takes: All, DType: DTypeGiven, Shape: ShapeFirst, Pure: Pure,
		ATen:   one("aten::_to_copy", "0 dtype"+factory+"nonblock preserve"),
		Kernel: &Instr{Name: "cast", Number: 7, Group: GroupConvert, Operands: 1, Takes: AnyRegs, Cost: CostSimple}},

	// Elementwise, two operands.
	{Name: "add",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen:     []Form{{"aten::add.Tensor", "0 1 one"}, {"aten::add.Scalar", "0 1# one"}},
		Commutes: Bools | Reals, OnBool: orInstr, Kernel: arithmetic("add", 48, "+"),
		Meaning: Meaning{
			Float2:   func(x, y float64) float64 { return x + y },
			Complex2: func(x, y complex128) complex128 { return x + y },
			Int2:     whole(func(x, y int64) int64 { return x + y })}},
	{Name: "sub",
		Kind: KindElementwise, Args: "x y", Takes: Reals | Complexes, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: []Form{{"aten::sub.Tensor", "0 1 one"}, {"aten::sub.Scalar", "0 1# one"},
			{"aten::rsub.Tensor", "1 0 one"}, {"aten::rsub.Scalar", "1 0# one"}},
		Kernel: arithmetic("sub", 49, "-"),
		Meaning: Meaning{
			Float2:   func(x, y float64) float64 { return x - y },
			Complex2: func(x, y complex128) complex128 { return x - y },
			Int2:     whole(func(x, y int64) int64 { return x - y })}},
	{Name: "mul",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen:       []Form{{"aten::mul.Tensor", "0 1"}, {"aten::mul.Scalar", "0 1#"}},
		WideNumber: true, Commutes: Bools | Reals, OnBool: andInstr, Kernel: arithmetic("mul", 50, "*"),
		Meaning: Meaning{
			Float2:   func(x, y float64) float64 { return x * y },
			Complex2: func(x, y complex128) complex128 { return x * y },
			Int2:     whole(func(x, y int64) int64 { return x * y })}},
	{Name: "div", Doc: "true division",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypeFloat, Shape: ShapeBroadcast, Pure: Pure,
		ATen:       []Form{{"aten::div.Tensor", "0 1"}, {"aten::div.Scalar", "0 1#"}},
		WideNumber: true,
		Kernel: &Instr{Name: "div", Number: 51, Group: GroupCompute, Operands: 2, Takes: FloatRegs, Cost: CostDivide,
			CUDA: Text{Float: "$a / $b"}, CPU: CPU{Loop: Text{Float: "a / b"}, Brain: true}},
		Meaning: Meaning{
			Float2:   func(x, y float64) float64 { return x / y },
			Complex2: func(x, y complex128) complex128 { return x / y }}},
	{Name: "pow",
		Kind: KindElementwise, Args: "x y", Takes: Reals | Complexes, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: []Form{{"aten::pow.Tensor_Scalar", "0 1#"}, {"aten::pow.Scalar", "0# 1"},
			{"aten::pow.Tensor_Tensor", "0 1"}},
		Kernel:  binary("pow", 52),
		Meaning: Meaning{Float2: pow, Complex2: powComplex, Int2: powInt}},
	{Name: "maximum",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::maximum", "0 1"), Kernel: pick("maximum", 53, ">"),
		Meaning: Meaning{Float2: nanFirst(math.Max), Int2: maxInt}},
	{Name: "minimum",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::minimum", "0 1"), Kernel: pick("minimum", 54, "<"),
		Meaning: Meaning{Float2: nanFirst(math.Min), Int2: minInt}},
	{Name: "eq",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::eq"), Commutes: Numbers, Kernel: compare("eq", 55, "=="),
		Meaning: Meaning{Order: func(o Ordering) bool { return o == Equal }}},
	{Name: "ne",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::ne"), Commutes: Numbers, Kernel: compare("ne", 56, "!="),
		Meaning: Meaning{Order: func(o Ordering) bool { return o != Equal }}},
	{Name: "lt",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::lt"), Kernel: compare("lt", 57, "<"),
		Meaning: Meaning{Order: func(o Ordering) bool { return o == Less }}},
	{Name: "le",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::le"), Kernel: compare("le", 58, "<="),
		Meaning: Meaning{Order: func(o Ordering) bool { return o == Less || o == Equal }}},
	{Name: "gt",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::gt"), Kernel: compare("gt", 59, ">"),
		Meaning: Meaning{Order: func(o Ordering) bool { return o == Greater }}},
	{Name: "ge",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::ge"), Kernel: compare("ge", 60, ">="),
		Meaning: Meaning{Order: func(o Ordering) bool { return o == Greater || o == Equal }}},
	{Name: "logical_and",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::logical_and", "0 1"), Logical: true, Commutes: Numbers, Kernel: andInstr,
		Meaning: Meaning{Logic: func(x, y bool) bool { return x && y }}},
	{Name: "logical_or",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::logical_or", "0 1"), Logical: true, Commutes: Numbers, Kernel: orInstr,
		Meaning: Meaning{Logic: func(x, y bool) bool { return x || y }}},
	{Name: "logical_xor",
		Kind: KindElementwise, Args: "x y", Takes: Numbers, DType: DTypeBool, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::logical_xor", "0 1"), Logical: true, Commutes: Numbers, Kernel: xorInstr,
		Meaning: Meaning{Logic: func(x, y bool) bool { return x != y }}},
	{Name: "bit_and",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Ints, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: withNumbers("aten::bitwise_and"), Commutes: Bools | Ints, Kernel: andInstr,
		Meaning: Meaning{Int2: whole(func(x, y int64) int64 { return x & y })}},
	{Name: "bit_or",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Ints, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: withNumbers("aten::bitwise_or"), Commutes: Bools | Ints, Kernel: orInstr,
		Meaning: Meaning{Int2: whole(func(x, y int64) int64 { return x | y })}},
	{Name: "bit_xor",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Ints, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: withNumbers("aten::bitwise_xor"), Commutes: Bools | Ints, Kernel: xorInstr,
		Meaning: Meaning{Int2: whole(func(x, y int64) int64 { return x ^ y })}},
	{Name: "atan2",
		Kind: KindElementwise, Args: "x y", Takes: Bools | Reals, DType: DTypeFloat, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::atan2", "0 1"), Kernel: binary("atan2", 64),
		Meaning: Meaning{Float2: math.Atan2}},
	{Name: "fmod",
		Kind: KindElementwise, Args: "x y", Takes: Reals, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: overloads("aten::fmod"), Divides: true,
		Kernel: &Instr{Name: "fmod", Number: 65, Group: GroupCompute, Operands: 2, Takes: NumberRegs, Cost: CostFunction,
			CUDA: Text{Float: "fmod$f($a, $b)", Whole: "@whole_fmod($a, $b)"},
			CPU:  CPU{Loop: Text{Whole: "WholeFmod(a, b)"}, Vec: "a.fmod(b)"}},
		Meaning: Meaning{Float2: math.Mod, Int2: fmodInt}},
	{Name: "remainder",
		Kind: KindElementwise, Args: "x y", Takes: Reals, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: withNumbers("aten::remainder"), Divides: true,
		Kernel: &Instr{Name: "remainder", Number: 66, Group: GroupCompute, Operands: 2, Takes: NumberRegs, Cost: CostFunction,
			CUDA: Text{Float: "@remainder_of($a, $b)"},
			CPU:  CPU{Loop: Text{Whole: "WholeRemainder(a, b)"}, Vec: "RemainderOf(a, b)"}},
		Meaning: Meaning{Float2: remainder, Int2: remainderInt}},
	{Name: "floor_divide", Doc: "floor_divide %x %y: the quotient of integers, rounded down",
		Kind: KindElementwise, Args: "x y", Takes: Ints, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::floor_divide", "0 1"), Divides: true,
		Kernel: &Instr{Name: "floor_divide", Number: 69, Group: GroupCompute, Operands: 2, Takes: RegI64, Cost: CostFunction,
			CUDA: Text{Whole: "@floor_quotient($a, $b)"}, CPU: CPU{Loop: Text{Whole: "FloorQuotient(a, b)"}}},
		Meaning: Meaning{Int2: floorDivideInt}},

	// Elementwise, three operands.
	{Name: "fma", Doc: "fma %a %b %c: a b + c, rounded once",
		Kind: KindElementwise, Args: "x y z", Takes: Floats, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::addcmul", "2 0 1 one"),
		// It is rounded once where the CPU capability has such an instruction, as in ATen's kernels.
		Kernel: function(Instr{Name: "fma", Number: 67, Operands: 3, Cost: CostSimple}, "fma", "at::vec::fmadd(a, b, c)")},
	{Name: "where", Doc: "where %cond %a %b",
		Kind: KindElementwise, Args: "c x y", Takes: Numbers, DType: DTypePromoted, Shape: ShapeBroadcast, Pure: Pure,
		ATen: one("aten::where.self", "0 1 2"),
		Kernel: &Instr{Name: "where", Number: 68, Group: GroupCompute, Operands: 3, Condition: true, Takes: AnyRegs,
			Keeps: true, Cost: CostSimple, CUDA: Text{Float: "$a ? $b : $c"}, CPU: CPU{Loops: "WhereOf"}}},

	// Fill: the result type's sizes with one number.
	{Name: "fill", Doc: "fill %x %number: like %x",
		Kind: KindFill, Args: "x number", Takes: Numbers, DType: DTypeFirst, Shape: ShapeFirst, Pure: Pure,
		ATen: []Form{{"aten::full_like", "0 1# asdtype" + factory + "preserve"}, {"aten::fill.Scalar", "0 1#"}}},

	// Copies.
	{Name: "copy", Doc: "copy %x: the same elements in new memory of the result type's layout",
		Kind: KindCopy, Args: "x", Takes: All, DType: DTypeFirst, Shape: ShapeFirst, Pure: Pure,
		ATen: one("aten::clone", "0 memfmt")},

	// Reductions: dims (list of ints, empty = all) and keepdim.
	{Name: "sum",
		Kind: KindReduce, Args: "x dims keepdim", Takes: Numbers, DType: DTypeSum, Shape: ShapeReduce, Pure: Pure,
		ATen: []Form{{"aten::sum.dim_IntList", "0 dims keepdim asdtype"}, {"aten::sum", "0 asdtype all"}},
		Kernel: &Instr{Name: "sum", Number: 9, Group: GroupReduce, Operands: 1, Takes: NumberRegs, Cost: CostSimple,
			Combine: "add", Start: IdentityZero}},
	{Name: "amax",
		Kind: KindReduce, Args: "x dims keepdim", Takes: Bools | Reals, DType: DTypeFirst, Shape: ShapeReduce, Pure: Pure,
		ATen: one("aten::amax", "0 dims keepdim"),
		Kernel: &Instr{Name: "max", Number: 10, Group: GroupReduce, Operands: 1, Takes: AnyRegs, Cost: CostSimple,
			Combine: "maximum", Start: IdentityLowest}},
	{Name: "amin",
		Kind: KindReduce, Args: "x dims keepdim", Takes: Bools | Reals, DType: DTypeFirst, Shape: ShapeReduce, Pure: Pure,
		ATen: one("aten::amin", "0 dims keepdim"),
		Kernel: &Instr{Name: "min", Number: 11, Group: GroupReduce, Operands: 1, Takes: AnyRegs, Cost: CostSimple,
			Combine: "minimum", Start: IdentityHighest}},
	{Name: "mean",
		Kind: KindReduce, Args: "x dims keepdim", Takes: Floats | Complexes, DType: DTypeFirst, Shape: ShapeReduce,
		Pure: Pure,
		ATen: []Form{{"aten::mean.dim", "0 dims keepdim asdtype"}, {"aten::mean", "0 asdtype all"}}},
}
