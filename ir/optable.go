// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"strings"
)

// Kind groups ops by what a pass or a printer of programs must do with them.
type Kind uint8

const (
	KindLeaf        Kind = iota + 1 // no operands
	KindMemory                      // about storages, not about elements
	KindCall                        // an operator of PyTorch
	KindElementwise                 // operands broadcast; one element of the result from one of each
	KindFill                        // one number everywhere
	KindCopy                        // the same elements in new memory
	KindReduce                      // some dims folded
)

// DTypeRule says what dtype the result of an op has. "Promoted" is ATen's type promotion over all operands, the
// condition of where left out.
type DTypeRule uint8

const (
	DTypeGiven    DTypeRule = iota + 1 // any: the result type says
	DTypeNumber                        // f64, i64, b8 or c128
	DTypeFirst                         // operand 0's
	DTypePromoted                      // promoted
	DTypeFloat                         // promoted; bool and ints give the default dtype, f32 unless the user changed it
	DTypeReal                          // promoted; complex gives its parts' dtype
	DTypeBool                          // b8
	DTypeSum                           // operand 0's; bool and ints give i64
)

// ShapeRule says what sizes the result of an op has.
type ShapeRule uint8

const (
	ShapeGiven     ShapeRule = iota + 1 // any: the result type says
	ShapeScalar                         // rank 0
	ShapeFirst                          // operand 0's
	ShapeBroadcast                      // the operands' broadcast
	ShapeReduce                         // operand 0's with the dims folded
	ShapeBytes                          // rank 1, u8: any number of bytes
)

// Purity says when two nodes with equal operands are one.
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
//	dims      the dims of a reduction; absent or empty folds all
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

// OpInfo is the row of an op. A zero cell is a mistake.
type OpInfo struct {
	Op    Op
	Name  string // in the text form
	Kind  Kind
	Args  string // argument words in order: x y c operands, number, dims, keepdim; "-" none, "..." any
	Takes Classes
	DType DTypeRule
	Shape ShapeRule
	Pure  Purity
	ATen  []Form // the first that fits is emitted; empty, not nil, if there is none
}

// one is the usual single form with operands in order.
func one(name, args string) []Form { return []Form{{name, args}} }

// overloads is the usual pair of overloads; aten lacks neither.
func overloads(name string) []Form {
	return []Form{{name + ".Scalar", "0 1#"}, {name + ".Tensor", "0 1"}}
}

// withNumbers has the three overloads of the bitwise ops.
func withNumbers(name string) []Form {
	return []Form{{name + ".Scalar", "0 1#"}, {name + ".Scalar_Tensor", "0# 1"}, {name + ".Tensor", "0 1"}}
}

var none = []Form{}

const factory = " layout device pin "

// opRows is the table; its order is that of the constants.
var opRows = [...]OpInfo{
	{OpInput, "input", KindLeaf, "-", All, DTypeGiven, ShapeGiven, Pure, none},
	{OpParam, "param", KindLeaf, "-", Numbers, DTypeNumber, ShapeScalar, Pure, none},
	{OpScalar, "scalar", KindLeaf, "-", All, DTypeGiven, ShapeScalar, Pure, none},
	{OpConst, "const", KindLeaf, "-", Bools | Ints | Floats, DTypeNumber, ShapeScalar, Pure, none},

	{OpEmpty, "empty", KindMemory, "-", All, DTypeGiven, ShapeGiven, Fresh, none},
	{OpView, "view", KindMemory, "x", All, DTypeGiven, ShapeGiven, Pure, none},
	{OpUpdate, "update", KindMemory, "x y", All, DTypeFirst, ShapeFirst, Pure, none},
	{OpResize, "resize", KindMemory, "x", Ints, DTypeFirst, ShapeBytes, Fresh, none},

	{OpCall, "call", KindCall, "...", All, DTypeGiven, ShapeGiven, ByFlags, none},

	{OpNeg, "neg", KindElementwise, "x", Reals | Complexes, DTypePromoted, ShapeFirst, Pure, one("aten::neg", "0")},
	{OpAbs, "abs", KindElementwise, "x", Numbers, DTypeReal, ShapeFirst, Pure, one("aten::abs", "0")},
	{OpSqrt, "sqrt", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::sqrt", "0")},
	{OpRsqrt, "rsqrt", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::rsqrt", "0")},
	{OpExp, "exp", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::exp", "0")},
	{OpLog, "log", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::log", "0")},
	{OpSin, "sin", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::sin", "0")},
	{OpCos, "cos", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::cos", "0")},
	{OpTanh, "tanh", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::tanh", "0")},
	{OpSigmoid, "sigmoid", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::sigmoid", "0")},
	{OpRelu, "relu", KindElementwise, "x", Reals, DTypePromoted, ShapeFirst, Pure, one("aten::relu", "0")},
	{OpReciprocal, "reciprocal", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::reciprocal", "0")},
	{OpFloor, "floor", KindElementwise, "x", Reals, DTypePromoted, ShapeFirst, Pure, one("aten::floor", "0")},
	{OpCeil, "ceil", KindElementwise, "x", Reals, DTypePromoted, ShapeFirst, Pure, one("aten::ceil", "0")},
	{OpSign, "sign", KindElementwise, "x", Bools | Reals, DTypePromoted, ShapeFirst, Pure, one("aten::sign", "0")},
	{OpErf, "erf", KindElementwise, "x", Bools | Reals, DTypeFloat, ShapeFirst, Pure, one("aten::erf", "0")},
	{OpExp2, "exp2", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::exp2", "0")},
	{OpLog2, "log2", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::log2", "0")},
	{OpLog1p, "log1p", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::log1p", "0")},
	{OpExpm1, "expm1", KindElementwise, "x", Numbers, DTypeFloat, ShapeFirst, Pure, one("aten::expm1", "0")},
	{OpTrunc, "trunc", KindElementwise, "x", Reals, DTypePromoted, ShapeFirst, Pure, one("aten::trunc", "0")},
	{OpRound, "round", KindElementwise, "x", Reals, DTypePromoted, ShapeFirst, Pure, one("aten::round", "0")},
	{OpIsNaN, "isnan", KindElementwise, "x", Numbers, DTypeBool, ShapeFirst, Pure, one("aten::isnan", "0")},
	{OpLogicalNot, "logical_not", KindElementwise, "x", Numbers, DTypeBool, ShapeFirst, Pure, one("aten::logical_not", "0")},
	{OpBitNot, "bit_not", KindElementwise, "x", Bools | Ints, DTypePromoted, ShapeFirst, Pure, one("aten::bitwise_not", "0")},
	{OpCast, "cast", KindElementwise, "x", All, DTypeGiven, ShapeFirst, Pure,
		one("aten::_to_copy", "0 dtype"+factory+"nonblock preserve")},

	{OpAdd, "add", KindElementwise, "x y", Numbers, DTypePromoted, ShapeBroadcast, Pure,
		[]Form{{"aten::add.Tensor", "0 1 one"}, {"aten::add.Scalar", "0 1# one"}}},
	{OpSub, "sub", KindElementwise, "x y", Reals | Complexes, DTypePromoted, ShapeBroadcast, Pure,
		[]Form{{"aten::sub.Tensor", "0 1 one"}, {"aten::sub.Scalar", "0 1# one"},
			{"aten::rsub.Tensor", "1 0 one"}, {"aten::rsub.Scalar", "1 0# one"}}},
	{OpMul, "mul", KindElementwise, "x y", Numbers, DTypePromoted, ShapeBroadcast, Pure,
		[]Form{{"aten::mul.Tensor", "0 1"}, {"aten::mul.Scalar", "0 1#"}}},
	{OpDiv, "div", KindElementwise, "x y", Numbers, DTypeFloat, ShapeBroadcast, Pure,
		[]Form{{"aten::div.Tensor", "0 1"}, {"aten::div.Scalar", "0 1#"}}},
	{OpPow, "pow", KindElementwise, "x y", Reals | Complexes, DTypePromoted, ShapeBroadcast, Pure,
		[]Form{{"aten::pow.Tensor_Scalar", "0 1#"}, {"aten::pow.Scalar", "0# 1"}, {"aten::pow.Tensor_Tensor", "0 1"}}},
	{OpMaximum, "maximum", KindElementwise, "x y", Bools | Reals, DTypePromoted, ShapeBroadcast, Pure, one("aten::maximum", "0 1")},
	{OpMinimum, "minimum", KindElementwise, "x y", Bools | Reals, DTypePromoted, ShapeBroadcast, Pure, one("aten::minimum", "0 1")},
	{OpEq, "eq", KindElementwise, "x y", Numbers, DTypeBool, ShapeBroadcast, Pure, overloads("aten::eq")},
	{OpNe, "ne", KindElementwise, "x y", Numbers, DTypeBool, ShapeBroadcast, Pure, overloads("aten::ne")},
	{OpLt, "lt", KindElementwise, "x y", Bools | Reals, DTypeBool, ShapeBroadcast, Pure, overloads("aten::lt")},
	{OpLe, "le", KindElementwise, "x y", Bools | Reals, DTypeBool, ShapeBroadcast, Pure, overloads("aten::le")},
	{OpGt, "gt", KindElementwise, "x y", Bools | Reals, DTypeBool, ShapeBroadcast, Pure, overloads("aten::gt")},
	{OpGe, "ge", KindElementwise, "x y", Bools | Reals, DTypeBool, ShapeBroadcast, Pure, overloads("aten::ge")},
	{OpLogicalAnd, "logical_and", KindElementwise, "x y", Numbers, DTypeBool, ShapeBroadcast, Pure, one("aten::logical_and", "0 1")},
	{OpLogicalOr, "logical_or", KindElementwise, "x y", Numbers, DTypeBool, ShapeBroadcast, Pure, one("aten::logical_or", "0 1")},
	{OpLogicalXor, "logical_xor", KindElementwise, "x y", Numbers, DTypeBool, ShapeBroadcast, Pure, one("aten::logical_xor", "0 1")},
	{OpBitAnd, "bit_and", KindElementwise, "x y", Bools | Ints, DTypePromoted, ShapeBroadcast, Pure, withNumbers("aten::bitwise_and")},
	{OpBitOr, "bit_or", KindElementwise, "x y", Bools | Ints, DTypePromoted, ShapeBroadcast, Pure, withNumbers("aten::bitwise_or")},
	{OpBitXor, "bit_xor", KindElementwise, "x y", Bools | Ints, DTypePromoted, ShapeBroadcast, Pure, withNumbers("aten::bitwise_xor")},
	{OpAtan2, "atan2", KindElementwise, "x y", Bools | Reals, DTypeFloat, ShapeBroadcast, Pure, one("aten::atan2", "0 1")},
	{OpFmod, "fmod", KindElementwise, "x y", Reals, DTypePromoted, ShapeBroadcast, Pure, overloads("aten::fmod")},
	{OpRemainder, "remainder", KindElementwise, "x y", Reals, DTypePromoted, ShapeBroadcast, Pure, withNumbers("aten::remainder")},

	{OpFma, "fma", KindElementwise, "x y z", Floats, DTypePromoted, ShapeBroadcast, Pure, one("aten::addcmul", "2 0 1 one")},
	{OpWhere, "where", KindElementwise, "c x y", Numbers, DTypePromoted, ShapeBroadcast, Pure, one("aten::where.self", "0 1 2")},

	{OpFill, "fill", KindFill, "x number", Numbers, DTypeFirst, ShapeFirst, Pure,
		[]Form{{"aten::full_like", "0 1# asdtype" + factory + "preserve"}, {"aten::fill.Scalar", "0 1#"}}},
	{OpCopy, "copy", KindCopy, "x", All, DTypeFirst, ShapeFirst, Pure, one("aten::clone", "0 memfmt")},

	{OpSum, "sum", KindReduce, "x dims keepdim", Numbers, DTypeSum, ShapeReduce, Pure,
		[]Form{{"aten::sum.dim_IntList", "0 dims keepdim asdtype"}, {"aten::sum", "0 asdtype all"}}},
	{OpAmax, "amax", KindReduce, "x dims keepdim", Bools | Reals, DTypeFirst, ShapeReduce, Pure, one("aten::amax", "0 dims keepdim")},
	{OpAmin, "amin", KindReduce, "x dims keepdim", Bools | Reals, DTypeFirst, ShapeReduce, Pure, one("aten::amin", "0 dims keepdim")},
	{OpMean, "mean", KindReduce, "x dims keepdim", Floats | Complexes, DTypeFirst, ShapeReduce, Pure,
		[]Form{{"aten::mean.dim", "0 dims keepdim asdtype"}, {"aten::mean", "0 asdtype all"}}},
}

// index holds the look-ups derived from opRows; nothing changes it after it is made.
type index struct {
	byName map[string]Op
	byATen map[string]form
}

type form struct {
	op    Op
	words []string
}

var ops = makeIndex()

func makeIndex() index {
	x := index{byName: map[string]Op{}, byATen: map[string]form{}}
	for i := range opRows {
		r := &opRows[i]
		x.byName[r.Name] = r.Op
		for _, f := range r.ATen {
			x.byATen[f.Name] = form{r.Op, strings.Fields(f.Args)}
		}
	}
	return x
}

// Info returns the row of an op. An op without a row is a mistake of the caller.
func Info(op Op) *OpInfo {
	if op == OpInvalid || int(op) > len(opRows) {
		panic(fmt.Sprintf("BUG: op %d has no row in the op table", op))
	}
	return &opRows[op-1]
}

// String is the op's name in the text form.
func (op Op) String() string {
	if op == OpInvalid || int(op) > len(opRows) {
		return fmt.Sprintf("op(%d)", uint16(op))
	}
	return opRows[op-1].Name
}

// Own says whether the op is one of our own compute ops, with a meaning in ir/eval.
func (op Op) Own() bool { return op >= opOwn && op < NumOps }

// ByName finds an op by its name in the text form.
func ByName(name string) (Op, bool) {
	op, ok := ops.byName[name]
	return op, ok
}

// ByATen finds the own op of which the operator is a form. Its arguments decide whether the op applies: see FromATen.
func ByATen(fullname string) (Op, bool) {
	f, ok := ops.byATen[fullname]
	return f.op, ok
}

// Arity is the number of operands, -1 if any number.
func (r *OpInfo) Arity() int {
	switch r.Args {
	case "-":
		return 0
	case "...":
		return -1
	}
	n := 0
	for w := range strings.SplitSeq(r.Args, " ") {
		if w != "dims" && w != "keepdim" {
			n++
		}
	}
	return n
}

// ATenCall is the operator that takes tensors for all operands, "" if the op has none.
func (r *OpInfo) ATenCall() string {
	for _, f := range r.ATen {
		if r.Kind == KindFill || !strings.Contains(f.Args, "#") {
			return f.Name
		}
	}
	return ""
}
