// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"errors"
	"math"
	"math/cmplx"
)

// The references of own ops that are longer than an expression. Those of floats compute in f64. Rounded to f32 that is
// exactly the result of f32 arithmetic for sums, products, quotients, square roots and roundings: 53 bits are more than
// twice 24 bits plus two.

// ErrZeroDivision is the error of an integer quotient or remainder by 0.
var ErrZeroDivision = errors.New("integer division or modulo by zero")

// log takes subnormal numbers apart from others: math.Log is off by up to 1 for them on amd64.
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

func relu(x float64) float64 {
	if x < 0 { // -0 and NaN stay
		return 0
	}
	return x
}

func sign(x float64) float64 {
	switch {
	case x > 0:
		return 1
	case x < 0:
		return -1
	}
	return 0 // of NaN too
}

// remainder has the sign of y, unlike math.Mod.
func remainder(x, y float64) float64 {
	m := math.Mod(x, y)
	if m != 0 && (m < 0) != (y < 0) {
		m += y
	}
	return m
}

// nanFirst gives NaN if one operand is NaN; math.Max and math.Min prefer infinities.
func nanFirst(f func(x, y float64) float64) func(x, y float64) float64 {
	return func(x, y float64) float64 {
		if x != x || y != y {
			return math.NaN()
		}
		return f(x, y)
	}
}

func log2Complex(x complex128) complex128 {
	l := cmplx.Log(x)
	return complex(real(l)/math.Ln2, imag(l)/math.Ln2)
}

func powComplex(x, y complex128) complex128 {
	if x == 0 {
		if real(y) == 0 {
			return cmplx.NaN() // unlike the power of a real 0
		}
		return cmplx.Pow(x, y)
	}
	r, phase := cmplx.Polar(x)
	turn := real(y)*phase + imag(y)*log(r)
	return cmplx.Rect(pow(r, real(y))*math.Exp(-imag(y)*phase), turn)
}

// whole turns a function that cannot fail into a reference.
func whole(f func(x, y int64) int64) func(x, y int64, d Integer) (int64, error) {
	return func(x, y int64, _ Integer) (int64, error) { return f(x, y), nil }
}

func absInt(x int64, d Integer) int64 {
	if d.Signed {
		return max(x, -x) // the smallest integer is its own negation
	}
	return x
}

func reluInt(x int64, d Integer) int64 {
	if d.Signed {
		return max(x, 0)
	}
	return x
}

func signInt(x int64, d Integer) int64 {
	switch {
	case x < 0 && d.Signed:
		return -1
	case x != 0:
		return 1
	}
	return 0
}

func sameInt(x int64, _ Integer) int64 { return x }

func notInt(x int64, d Integer) int64 {
	if d.Bits == 1 {
		return 1 - x
	}
	return ^x
}

func maxInt(x, y int64, d Integer) (int64, error) {
	if d.Compare(x, y) == Greater {
		return x, nil
	}
	return y, nil
}

func minInt(x, y int64, d Integer) (int64, error) {
	if d.Compare(x, y) == Less {
		return x, nil
	}
	return y, nil
}

func fmodInt(x, y int64, d Integer) (int64, error) {
	switch {
	case y == 0:
		return 0, ErrZeroDivision
	case d.Bits == 64 && !d.Signed:
		return int64(uint64(x) % uint64(y)), nil
	}
	return x % y, nil
}

func remainderInt(x, y int64, d Integer) (int64, error) {
	m, err := fmodInt(x, y, d)
	if d.Signed && m != 0 && (m < 0) != (y < 0) {
		m += y
	}
	return m, err
}

// floorDivideInt is the quotient rounded down.
func floorDivideInt(x, y int64, d Integer) (int64, error) {
	switch {
	case y == 0:
		return 0, ErrZeroDivision
	case d.Bits == 64 && !d.Signed:
		return int64(uint64(x) / uint64(y)), nil
	}
	q := x / y
	if d.Signed && x%y != 0 && (x < 0) != (y < 0) {
		q--
	}
	return q, nil
}

// powInt is x to the power y. For a negative y, PyTorch's kernel returns 0, or a power of ±1 if x is ±1.
func powInt(x, y int64, d Integer) (int64, error) {
	if y < 0 && d.Signed {
		switch {
		case x == 1 || (x == -1 && y%2 == 0):
			return 1, nil
		case x == -1:
			return -1, nil
		}
		return 0, nil
	}
	r := int64(1)
	for n := uint64(y); n != 0; n >>= 1 {
		if n&1 != 0 {
			r *= x
		}
		x *= x
	}
	return r, nil
}

// Compare orders two integers of a dtype.
func (d Integer) Compare(x, y int64) Ordering {
	less := x < y
	if !d.Signed {
		less = uint64(x) < uint64(y)
	}
	switch {
	case x == y:
		return Equal
	case less:
		return Less
	}
	return Greater
}
