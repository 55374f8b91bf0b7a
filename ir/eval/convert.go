// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"fmt"
	"math"
	"math/cmplx"

	"github.com/mycelya/mycelya/ir"
)

// fromHalf is the value of IEEE binary16 bits.
func fromHalf(h uint16) float64 {
	sign := 1.0
	if h>>15 != 0 {
		sign = -1
	}
	exp, frac := int(h>>10&31), float64(h&1023)
	switch exp {
	case 0: // subnormal: units of 2^-24
		return sign * math.Ldexp(frac, -24)
	case 31:
		if frac != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+frac, exp-25)
}

// toHalf rounds to IEEE binary16, ties to even, by way of f32 as PyTorch does.
func toHalf(v float64) uint16 {
	x := float64(float32(v))
	sign := uint16(math.Float64bits(x) >> 63 << 15)
	x = math.Abs(x)
	switch {
	case x != x:
		return sign | 0x7e00
	case x >= 65520: // half way between the largest value and the next power
		return sign | 0x7c00
	case x < 0x1p-14:
		return sign | uint16(math.RoundToEven(x*0x1p24)) // a carry makes the smallest normal number
	}
	frac, exp := math.Frexp(x) // x = frac * 2^exp, frac in [0.5, 1)
	mant := uint16(math.RoundToEven(frac * 2048))
	return sign | (uint16(exp+13)<<10 + mant) // mant in [1024, 2048]: its leading bit adds one to the exponent
}

// toBrain rounds to bfloat16, ties to even, by way of f32.
func toBrain(v float64) uint16 {
	if v != v {
		return 0x7fc0
	}
	b := math.Float32bits(float32(v))
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// fit rounds or wraps an element, which has the dtype's kind, to the dtype.
func fit(d ir.DType, e elem) elem {
	switch d {
	case ir.Bool:
		if e.i != 0 {
			e.i = 1
		}
	case ir.U8:
		e.i = int64(uint8(e.i))
	case ir.I8:
		e.i = int64(int8(e.i))
	case ir.I16:
		e.i = int64(int16(e.i))
	case ir.U16:
		e.i = int64(uint16(e.i))
	case ir.I32:
		e.i = int64(int32(e.i))
	case ir.U32:
		e.i = int64(uint32(e.i))
	case ir.F16, ir.BF16, ir.F32:
		e.f = fitFloat(d, e.f)
	case ir.C64:
		e.c = complex(fitFloat(ir.F32, real(e.c)), fitFloat(ir.F32, imag(e.c)))
	}
	return e
}

func fitFloat(d ir.DType, v float64) float64 {
	switch d {
	case ir.F16:
		return fromHalf(toHalf(v))
	case ir.BF16:
		return float64(math.Float32frombits(uint32(toBrain(v)) << 16))
	case ir.F32:
		return float64(float32(v))
	}
	return v
}

// convert takes an element from one dtype to another as a cast does.
func convert(e elem, from, to ir.DType) elem {
	switch {
	case from == to:
		return e
	case to == ir.Bool:
		return elem{i: btoi(truth(e, from))}
	case to.Is(ir.Complexes):
		if !from.Is(ir.Complexes) {
			e = elem{c: complex(toFloat(e, from), 0)}
		}
		return fit(to, e)
	}
	if from.Is(ir.Complexes) {
		e, from = elem{f: real(e.c)}, from.Real()
	}
	switch {
	case to.Is(ir.Floats):
		return fit(to, elem{f: toFloat(e, from)})
	case from.Is(ir.Floats):
		return fit(to, elem{i: toInt(e.f, to)})
	}
	return fit(to, e)
}

// toFloat is the nearest f64 to a number that is not complex.
func toFloat(e elem, from ir.DType) float64 {
	switch {
	case from.Is(ir.Floats):
		return e.f
	case from == ir.U64:
		return float64(uint64(e.i))
	}
	return float64(e.i)
}

// toInt truncates. C++ does not define the result for a value that does not fit; here it is the result of x86's
// conversion to 32 or 64 bits.
func toInt(v float64, to ir.DType) int64 {
	switch {
	case (to == ir.I32 || to == ir.I16 || to == ir.I8) && !(v > math.MinInt32-1 && v < math.MaxInt32+1):
		return math.MinInt32
	case to == ir.U64 && v >= 0x1p63 && v < 0x1p64:
		return int64(uint64(v-0x1p63) | 1<<63)
	case v >= -0x1p63 && v < 0x1p63:
		return int64(v)
	}
	return math.MinInt64
}

func truth(e elem, d ir.DType) bool {
	switch {
	case d.Is(ir.Complexes):
		return e.c != 0
	case d.Is(ir.Floats):
		return e.f != 0
	}
	return e.i != 0
}

func btoi(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// checkedConvert takes a Python number to the dtype of a tensor that it fills; unlike a cast it refuses to overflow.
func checkedConvert(e elem, from, to ir.DType) (elem, error) {
	out := convert(e, from, to)
	refuse := func() (elem, error) {
		return elem{}, fmt.Errorf("the number cannot be converted to %s without overflow", to)
	}
	if from.Is(ir.Complexes) && !to.Is(ir.Complexes) {
		if imag(e.c) != 0 && to != ir.Bool {
			return refuse()
		}
		e, from = elem{f: real(e.c)}, ir.F64
	}
	lo, hi := intRange(to)
	switch {
	case to.Is(ir.Complexes) && cmplx.IsInf(out.c) && !cmplx.IsInf(convert(e, from, ir.C128).c):
		return refuse()
	case to.Is(ir.Floats) && math.IsInf(out.f, 0) && !math.IsInf(toFloat(e, from), 0):
		return refuse()
	case !to.Is(ir.Ints):
	case from.Is(ir.Floats):
		if v := e.f; v != v || v < lo || v > hi {
			return refuse()
		}
	case to != ir.U64 && (float64(e.i) < lo || float64(e.i) > hi) && to != ir.I64:
		return refuse()
	}
	return out, nil
}

// intRange is the range of numbers that may fill an integer tensor. An unsigned tensor accepts a negative number if its
// magnitude fits, and wraps it.
func intRange(d ir.DType) (lo, hi float64) {
	width := 8 * d.Size()
	if d.Signed() {
		return -math.Ldexp(1, width-1), math.Ldexp(1, width-1) - 1
	}
	hi = math.Ldexp(1, width) - 1
	return -hi, hi
}
