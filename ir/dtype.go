// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "math"

// Classes is a set of kinds of dtype.
type Classes uint8

const (
	Bools Classes = 1 << iota
	Ints
	Floats    // f16, bf16, f32, f64
	Complexes // c32, c64, c128
	Floats8   // stored only: no arithmetic

	Reals   = Ints | Floats
	Numbers = Bools | Ints | Floats | Complexes
	All     = Numbers | Floats8
)

// Class is the kind of a valid dtype, 0 for an invalid one.
func (d DType) Class() Classes {
	switch d {
	case Bool:
		return Bools
	case U8, I8, I16, I32, I64, U16, U32, U64:
		return Ints
	case F16, BF16, F32, F64:
		return Floats
	case C32, C64, C128:
		return Complexes
	case F8E5M2, F8E4M3FN, F8E5M2FNUZ, F8E4M3FNUZ:
		return Floats8
	}
	return 0
}

// Is says whether the dtype is of one of the kinds.
func (d DType) Is(c Classes) bool { return d.Class()&c != 0 }

// Signed says whether an integer dtype has a sign.
func (d DType) Signed() bool { return d == I8 || d == I16 || d == I32 || d == I64 }

// Holds says whether an integer dtype, or that of truth, has a number.
func (d DType) Holds(n int64) bool {
	bits := 8 * d.Size()
	if d == Bool {
		bits = 1
	}
	if d.Signed() {
		return n<<(64-bits)>>(64-bits) == n
	}
	return n >= 0 && (bits == 64 || n>>bits == 0)
}

// Reaches says whether a number is not beyond the largest of a float dtype. Infinities are not.
func (d DType) Reaches(v float64) bool {
	most := math.MaxFloat64
	switch d {
	case F16:
		most = 65504
	case BF16:
		most = 0x1.fep127
	case F32:
		most = math.MaxFloat32
	}
	return !(math.Abs(v) > most) || math.IsInf(v, 0)
}

// Exactly says whether a 16-bit float has a number as it is; of any other dtype nobody asks.
func (d DType) Exactly(v float64) bool {
	bits, least := 0, 0.0
	switch d {
	case F16:
		bits, least = 11, 0x1p-24
	case BF16:
		bits, least = 8, 0x1p-133
	default:
		return true
	}
	if v == 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return true
	}
	fraction, _ := math.Frexp(v)
	digits := math.Ldexp(fraction, bits)
	return digits == math.Trunc(digits) && math.Mod(v, least) == 0 && d.Reaches(v)
}

// Real is the dtype of the parts of a complex dtype, and any other dtype itself.
func (d DType) Real() DType {
	switch d {
	case C32:
		return F16
	case C64:
		return F32
	case C128:
		return F64
	}
	return d
}

// Complex is the complex dtype that a floating one becomes when it meets a complex number; bf16 has none of its width.
func (d DType) Complex() DType {
	switch d {
	case F16:
		return C32
	case BF16, F32:
		return C64
	case F64:
		return C128
	}
	return d
}

// Promote is the dtype in which values of both dtypes meet, by ATen's table; false if ATen refuses the pair.
func Promote(a, b DType) (DType, bool) {
	if a == b {
		return a, a.Valid()
	}
	if !a.Is(Numbers) || !b.Is(Numbers) {
		return Invalid, false
	}
	if a.Class() > b.Class() { // the kinds are declared in the order in which they win
		a, b = b, a
	}
	wide := func(d DType) bool { return d == U16 || d == U32 || d == U64 } // ATen promotes these to floats only
	if wide(a) || wide(b) {
		return b, b.Is(Floats)
	}
	if a.Class() != b.Class() {
		if a.Is(Floats) { // b is complex
			return Promote(a.Complex(), b)
		}
		return b, true
	}
	switch {
	case a.Is(Ints):
		if !a.Signed() {
			a, b = b, a
		}
		if b == U8 { // a is signed
			return max(a, I16), true
		}
		return max(a, b), true
	case a.Is(Floats):
		if a == F64 || b == F64 {
			return F64, true
		}
		return F32, true // two different ones of f16, bf16, f32
	}
	return max(a, b), true
}
