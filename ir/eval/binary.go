// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"errors"
	"math"
	"math/cmplx"

	"github.com/mycelya/mycelya/ir"
)

var (
	errZeroDivision  = errors.New("integer division or modulo by zero")
	errNegativePower = errors.New("integers to negative integer powers are not allowed")
)

// fused is a b + c, rounded once to d. Beside f64, products are exact in f64, and a sum that is rounded there to the odd one of its
// neighbours is rounded to d as if it had not been rounded before.
func fused(a, b, c float64, d ir.DType) float64 {
	if d == ir.F64 {
		return math.FMA(a, b, c)
	}
	product := a * b
	sum := product + c
	rest := sum - product
	rest = (product - (sum - rest)) + (c - rest) // what the rounding has left
	if rest != 0 && math.Abs(rest) <= math.MaxFloat64 && math.Float64bits(sum)&1 == 0 {
		return math.Nextafter(sum, math.Inf(int(math.Copysign(1, rest))))
	}
	return sum
}

// binaryFunc is the meaning of an op with two operands for elements of dtype d; nil if it has none. The result still
// has to be rounded.
func binaryFunc(op ir.Op, d ir.DType) func(a, b elem) (elem, error) {
	if f := truthFunc(op); f != nil {
		return func(a, b elem) (elem, error) { return elem{i: btoi(f(truth(a, d), truth(b, d)))}, nil }
	}
	if f := orderFunc(op); f != nil {
		return func(a, b elem) (elem, error) { return elem{i: btoi(f(compare(a, b, d)))}, nil }
	}
	switch {
	case d.Is(ir.Complexes):
		if f := complexBinary(op); f != nil {
			return func(a, b elem) (elem, error) { return elem{c: f(a.c, b.c)}, nil }
		}
	case d.Is(ir.Floats):
		if f := floatBinary(op); f != nil {
			return func(a, b elem) (elem, error) { return elem{f: f(a.f, b.f)}, nil }
		}
	default:
		if f := intBinary(op, d); f != nil {
			return func(a, b elem) (elem, error) {
				v, err := f(a.i, b.i)
				return elem{i: v}, err
			}
		}
	}
	return nil
}

func truthFunc(op ir.Op) func(a, b bool) bool {
	switch op {
	case ir.OpLogicalAnd:
		return func(a, b bool) bool { return a && b }
	case ir.OpLogicalOr:
		return func(a, b bool) bool { return a || b }
	case ir.OpLogicalXor:
		return func(a, b bool) bool { return a != b }
	}
	return nil
}

// Outcomes of a comparison.
const (
	less = iota - 1
	equal
	greater
	unordered // one is NaN, or they are different complex numbers
)

func orderFunc(op ir.Op) func(order int) bool {
	switch op {
	case ir.OpEq:
		return func(o int) bool { return o == equal }
	case ir.OpNe:
		return func(o int) bool { return o != equal }
	case ir.OpLt:
		return func(o int) bool { return o == less }
	case ir.OpLe:
		return func(o int) bool { return o == less || o == equal }
	case ir.OpGt:
		return func(o int) bool { return o == greater }
	case ir.OpGe:
		return func(o int) bool { return o == greater || o == equal }
	}
	return nil
}

func compare(a, b elem, d ir.DType) int {
	switch {
	case d.Is(ir.Complexes):
		if a.c == b.c {
			return equal
		}
		return unordered
	case d.Is(ir.Floats):
		return order(a.f, b.f)
	case d == ir.U64:
		return order(uint64(a.i), uint64(b.i))
	}
	return order(a.i, b.i)
}

func order[T int64 | uint64 | float64](a, b T) int {
	switch {
	case a < b:
		return less
	case a > b:
		return greater
	case a == b:
		return equal
	}
	return unordered
}

func floatBinary(op ir.Op) func(a, b float64) float64 {
	switch op {
	case ir.OpAdd:
		return func(a, b float64) float64 { return a + b }
	case ir.OpSub:
		return func(a, b float64) float64 { return a - b }
	case ir.OpMul:
		return func(a, b float64) float64 { return a * b }
	case ir.OpDiv:
		return func(a, b float64) float64 { return a / b }
	case ir.OpPow:
		return pow
	case ir.OpMaximum:
		return nanFirst(math.Max)
	case ir.OpMinimum:
		return nanFirst(math.Min)
	case ir.OpAtan2:
		return math.Atan2
	case ir.OpFmod:
		return math.Mod // the sign of a
	case ir.OpRemainder:
		return func(a, b float64) float64 { // the sign of b
			m := math.Mod(a, b)
			if m != 0 && (m < 0) != (b < 0) {
				m += b
			}
			return m
		}
	}
	return nil
}

// nanFirst makes NaN win over infinities.
func nanFirst(f func(a, b float64) float64) func(a, b float64) float64 {
	return func(a, b float64) float64 {
		if a != a || b != b {
			return math.NaN()
		}
		return f(a, b)
	}
}

func intBinary(op ir.Op, d ir.DType) func(a, b int64) (int64, error) {
	simple := func(f func(a, b int64) int64) func(a, b int64) (int64, error) {
		return func(a, b int64) (int64, error) { return f(a, b), nil }
	}
	divides := func(f func(a, b int64) int64) func(a, b int64) (int64, error) {
		return func(a, b int64) (int64, error) {
			if b == 0 {
				return 0, errZeroDivision
			}
			return f(a, b), nil
		}
	}
	pick := func(want int) func(a, b int64) (int64, error) {
		return simple(func(a, b int64) int64 {
			if compare(elem{i: a}, elem{i: b}, d) == want {
				return a
			}
			return b
		})
	}
	switch op {
	case ir.OpAdd:
		return simple(func(a, b int64) int64 { return a + b }) // of bools: or
	case ir.OpSub:
		return simple(func(a, b int64) int64 { return a - b })
	case ir.OpMul:
		return simple(func(a, b int64) int64 { return a * b }) // of bools: and
	case ir.OpPow:
		return simple(func(a, b int64) int64 { return intPow(a, b, d) })
	case ir.OpMaximum:
		return pick(greater)
	case ir.OpMinimum:
		return pick(less)
	case ir.OpBitAnd:
		return simple(func(a, b int64) int64 { return a & b })
	case ir.OpBitOr:
		return simple(func(a, b int64) int64 { return a | b })
	case ir.OpBitXor:
		return simple(func(a, b int64) int64 { return a ^ b })
	case ir.OpFmod, ir.OpRemainder:
		if d == ir.U64 {
			return divides(func(a, b int64) int64 { return int64(uint64(a) % uint64(b)) })
		}
		return divides(func(a, b int64) int64 {
			m := a % b
			if op == ir.OpRemainder && m != 0 && (m < 0) != (b < 0) {
				m += b
			}
			return m
		})
	}
	return nil
}

// intPow multiplies with wraparound. To a negative power only 1 and -1 have an integer result; the rest is 0.
func intPow(a, b int64, d ir.DType) int64 {
	if b < 0 && d.Signed() {
		switch {
		case a == 1 || (a == -1 && b%2 == 0):
			return 1
		case a == -1:
			return -1
		}
		return 0
	}
	r := int64(1)
	for n := uint64(b); n != 0; n >>= 1 {
		if n&1 != 0 {
			r *= a
		}
		a *= a
	}
	return r
}

func complexBinary(op ir.Op) func(a, b complex128) complex128 {
	switch op {
	case ir.OpAdd:
		return func(a, b complex128) complex128 { return a + b }
	case ir.OpSub:
		return func(a, b complex128) complex128 { return a - b }
	case ir.OpMul:
		return func(a, b complex128) complex128 { return a * b }
	case ir.OpDiv:
		return func(a, b complex128) complex128 { return a / b }
	case ir.OpPow:
		return complexPow
	}
	return nil
}

func complexPow(a, b complex128) complex128 {
	if a == 0 {
		if real(b) == 0 {
			return cmplx.NaN() // unlike the power of a real 0
		}
		return cmplx.Pow(a, b)
	}
	r, phase := cmplx.Polar(a)
	turn := real(b)*phase + imag(b)*log(r)
	return cmplx.Rect(pow(r, real(b))*math.Exp(-imag(b)*phase), turn)
}

// powNumber is x to the power of a Python number. PyTorch computes some powers in other ways than the rest, which shows
// at infinities, at -0 and in the last bits; nil stands for the general way.
func powNumber(d ir.DType, power elem, from ir.DType) func(x elem) elem {
	if from.Is(ir.Complexes) {
		return nil
	}
	p := toFloat(power, from)
	switch {
	case p == 0:
		return func(elem) elem { return elem{i: 1, f: 1, c: 1} }
	case p == 1:
		return func(x elem) elem { return x }
	case !d.Is(ir.Floats) || d == ir.F16: // f16 has the general way only
		return nil
	}
	float := func(f func(x float64) float64) func(elem) elem {
		return func(x elem) elem { return elem{f: f(x.f)} }
	}
	square := func(x float64) float64 { return fitFloat(d, x*x) }
	switch p {
	case 0.5:
		return float(math.Sqrt)
	case 2:
		return float(square)
	case 3:
		return float(func(x float64) float64 { return square(x) * x })
	case -0.5:
		return float(func(x float64) float64 { return 1 / math.Sqrt(x) })
	case -1:
		return float(func(x float64) float64 { return 1 / x })
	case -2:
		return float(func(x float64) float64 { return 1 / square(x) })
	}
	return nil
}
