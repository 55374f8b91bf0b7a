// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "math"

// Class is the kind of a valid dtype, 0 for an invalid one.
func (d DType) Class() Classes {
	if !d.Valid() {
		return 0
	}
	return 1 << (dtypes[d].Class - 1)
}

// Is reports whether the dtype is of one of the kinds.
func (d DType) Is(c Classes) bool { return d.Class()&c != 0 }

// Signed reports whether an integer dtype has a sign.
func (d DType) Signed() bool { return dtypes[d].Signed }

// Holds reports whether an integer dtype, or bool, represents a number.
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

// Reaches reports whether the magnitude of a number is at most the largest of a float dtype, or infinite.
func (d DType) Reaches(v float64) bool {
	most := math.MaxFloat64
	if d.Is(Floats) {
		most = dtypes[d].Largest
	}
	return !(math.Abs(v) > most) || math.IsInf(v, 0)
}

// Stored reports whether PyTorch supports little more than copies for a dtype.
func (d DType) Stored() bool { return d == U16 || d == U32 || d == U64 }

// Normal is the largest n for which a float dtype has 2^n and 2^-n as normal numbers, 0 for any other dtype.
func (d DType) Normal() int {
	_, exponent := math.Frexp(dtypes[d].Largest)
	return max(exponent-2, 0)
}

// Exactly reports whether a 16-bit float represents a number exactly. For any other dtype it is true.
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
func (d DType) Real() DType { return d.pair(Complexes) }

// Complex is the complex dtype that a float dtype becomes beside a complex number, and any other dtype itself.
func (d DType) Complex() DType { return d.pair(Floats) }

// pair is the other dtype of a pair of a float and a complex one, and d itself if d is not of the kind c.
func (d DType) pair(c Classes) DType {
	if !d.Is(c) {
		return d
	}
	other, ok := ParseDType(dtypes[d].Pair)
	if !ok {
		panic("BUG: dtype " + d.String() + " has no pair")
	}
	return other
}

// Promote is the dtype to which two dtypes promote, by ATen's table; false if ATen refuses the pair.
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
	wide := DType.Stored // ATen promotes these to floats only
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
		return F32, true // two different dtypes of f16, bf16, f32
	}
	return max(a, b), true
}
