// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// Op names an operation. Everything about an op stands in its row of the op table (optable.go).
type Op uint16

const (
	OpInvalid Op = iota

	// Leaves.
	OpInput  // input k: the content of the storage bound to slot k
	OpParam  // param k: a Python number held by parameter slot k; weakest in type promotion. Type f64[], i64[], b8[] or c128[]
	OpScalar // scalar k: a 0-dim CPU tensor whose element is parameter slot k
	OpConst  // const 0.5: a Python number that is the same in every call; as param in all else

	// Memory.
	OpEmpty  // empty: uninitialised content
	OpView   // view %x offset=o: the elements of %x's storage at the result type's sizes and strides
	OpUpdate // update %x %y offset=o: %x with the region (geometry of %y's type, offset) replaced by %y
	OpResize // resize %x: u8[new] with %x's bytes as far as they go, %x: u8[old]

	// OpCall is any operator of PyTorch by its full name, with its arguments as in its schema.
	OpCall

	// Own compute ops follow: one row each in the op table.
	opOwn
)

const (
	// Elementwise, one operand.
	OpNeg Op = opOwn + iota
	OpAbs
	OpSqrt
	OpRsqrt
	OpExp
	OpLog
	OpSin
	OpCos
	OpTanh
	OpSigmoid
	OpRelu
	OpReciprocal
	OpFloor
	OpCeil
	OpSign
	OpErf
	OpExp2
	OpLog2
	OpLog1p
	OpExpm1
	OpTrunc
	OpRound
	OpIsNaN
	OpLogicalNot
	OpBitNot
	OpCast // the result type's dtype

	// Elementwise, two operands.
	OpAdd
	OpSub
	OpMul
	OpDiv // true division
	OpPow
	OpMaximum
	OpMinimum
	OpEq
	OpNe
	OpLt
	OpLe
	OpGt
	OpGe
	OpLogicalAnd
	OpLogicalOr
	OpLogicalXor
	OpBitAnd
	OpBitOr
	OpBitXor
	OpAtan2
	OpFmod
	OpRemainder

	// Elementwise, three operands.
	OpFma   // fma %a %b %c: a b + c, rounded once
	OpWhere // where %cond %a %b

	// Fill: the result type's sizes with one number.
	OpFill // fill %x %number: like %x

	// Copies.
	OpCopy // copy %x: the same elements in new memory of the result type's layout

	// Reductions: dims (list of ints, empty = all) and keepdim.
	OpSum
	OpAmax
	OpAmin
	OpMean

	NumOps
)
