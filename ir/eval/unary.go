// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"math"
	"math/cmplx"

	"github.com/mycelya/mycelya/ir"
)

// unaryFunc is the meaning of an op with one operand for elements of dtype d; nil if it has none. The result still has
// to be rounded.
func unaryFunc(op ir.Op, d ir.DType) func(elem) elem {
	switch op {
	case ir.OpIsNaN:
		return func(x elem) elem {
			return elem{i: btoi(math.IsNaN(x.f) || math.IsNaN(real(x.c)) || math.IsNaN(imag(x.c)))}
		}
	case ir.OpLogicalNot:
		return func(x elem) elem { return elem{i: btoi(!truth(x, d))} }
	}
	switch {
	case d.Is(ir.Complexes):
		if op == ir.OpAbs {
			return func(x elem) elem { return elem{f: cmplx.Abs(x.c)} }
		}
		if f := complexUnary(op); f != nil {
			return func(x elem) elem { return elem{c: f(x.c)} }
		}
	case d.Is(ir.Floats):
		if f := floatUnary(op); f != nil {
			return func(x elem) elem { return elem{f: f(x.f)} }
		}
	default:
		if f := intUnary(op, d); f != nil {
			return func(x elem) elem { return elem{i: f(x.i)} }
		}
	}
	return nil
}

// floatUnary computes in f64. Rounded to f32 that is exactly what f32 arithmetic gives for neg to sqrt, 1/x and the
// roundings, since 53 bits are more than twice 24 bits plus two.
func floatUnary(op ir.Op) func(float64) float64 {
	switch op {
	case ir.OpNeg:
		return func(x float64) float64 { return -x }
	case ir.OpAbs:
		return math.Abs
	case ir.OpSqrt:
		return math.Sqrt
	case ir.OpRsqrt:
		return func(x float64) float64 { return 1 / math.Sqrt(x) }
	case ir.OpExp:
		return math.Exp
	case ir.OpLog:
		return log
	case ir.OpSin:
		return math.Sin
	case ir.OpCos:
		return math.Cos
	case ir.OpTanh:
		return math.Tanh
	case ir.OpSigmoid:
		return func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }
	case ir.OpRelu:
		return func(x float64) float64 {
			if x < 0 { // -0 and NaN stay
				return 0
			}
			return x
		}
	case ir.OpReciprocal:
		return func(x float64) float64 { return 1 / x }
	case ir.OpFloor:
		return math.Floor
	case ir.OpCeil:
		return math.Ceil
	case ir.OpSign:
		return func(x float64) float64 {
			switch {
			case x > 0:
				return 1
			case x < 0:
				return -1
			}
			return 0 // of NaN too
		}
	case ir.OpErf:
		return math.Erf
	case ir.OpExp2:
		return math.Exp2
	case ir.OpLog2:
		return math.Log2
	case ir.OpLog1p:
		return math.Log1p
	case ir.OpExpm1:
		return math.Expm1
	case ir.OpTrunc:
		return math.Trunc
	case ir.OpRound:
		return math.RoundToEven
	}
	return nil
}

// log and pow take subnormal numbers apart from the rest: math.Log is off by up to 1 for them on amd64.
func log(x float64) float64 {
	if x > 0 && x < 0x1p-1022 {
		return math.Log(x*0x1p60) - 60*math.Ln2
	}
	return math.Log(x)
}

func pow(x, y float64) float64 {
	if a := math.Abs(x); a > 0 && a < 0x1p-1022 {
		return math.Pow(x*0x1p60, y) * math.Exp2(-60*y)
	}
	return math.Pow(x, y)
}

func intUnary(op ir.Op, d ir.DType) func(int64) int64 {
	switch op {
	case ir.OpNeg:
		return func(x int64) int64 { return -x }
	case ir.OpAbs:
		if d.Signed() {
			return func(x int64) int64 { return max(x, -x) } // the smallest integer is its own negation
		}
		return func(x int64) int64 { return x }
	case ir.OpRelu:
		if d.Signed() {
			return func(x int64) int64 { return max(x, 0) }
		}
		return func(x int64) int64 { return x }
	case ir.OpSign:
		return func(x int64) int64 {
			if x < 0 && d.Signed() {
				return -1
			}
			return btoi(x != 0)
		}
	case ir.OpFloor, ir.OpCeil, ir.OpTrunc, ir.OpRound:
		return func(x int64) int64 { return x }
	case ir.OpBitNot:
		if d == ir.Bool {
			return func(x int64) int64 { return 1 - x }
		}
		return func(x int64) int64 { return ^x }
	}
	return nil
}

func complexUnary(op ir.Op) func(complex128) complex128 {
	switch op {
	case ir.OpNeg:
		return func(x complex128) complex128 { return complex(-real(x), -imag(x)) }
	case ir.OpSqrt:
		return cmplx.Sqrt
	case ir.OpRsqrt:
		return func(x complex128) complex128 { return 1 / cmplx.Sqrt(x) }
	case ir.OpExp:
		return cmplx.Exp
	case ir.OpLog:
		return cmplx.Log
	case ir.OpSin:
		return cmplx.Sin
	case ir.OpCos:
		return cmplx.Cos
	case ir.OpTanh:
		return cmplx.Tanh
	case ir.OpSigmoid:
		return func(x complex128) complex128 { return 1 / (1 + cmplx.Exp(-x)) }
	case ir.OpReciprocal:
		return func(x complex128) complex128 { return 1 / x }
	case ir.OpExp2:
		return func(x complex128) complex128 { return cmplx.Exp(x * math.Ln2) }
	case ir.OpLog2:
		return func(x complex128) complex128 {
			l := cmplx.Log(x)
			return complex(real(l)/math.Ln2, imag(l)/math.Ln2)
		}
	case ir.OpLog1p:
		return func(x complex128) complex128 { return cmplx.Log(1 + x) }
	case ir.OpExpm1:
		return func(x complex128) complex128 { return cmplx.Exp(x) - 1 }
	}
	return nil
}
