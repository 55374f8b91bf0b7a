// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"errors"
	"math"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

var errNegativePower = errors.New("integers to negative integer powers are not allowed")

// fused is a*b + c, rounded once to d. For dtypes other than f64, the product is exact in f64. The sum is rounded to
// odd in f64, so that the second rounding, to d, gives the same result as a single rounding.
func fused(a, b, c float64, d ir.DType) float64 {
	if d == ir.F64 {
		return math.FMA(a, b, c)
	}
	product := a * b
	sum := product + c
	rest := sum - product
	rest = (product - (sum - rest)) + (c - rest) // the rounding error
	if rest != 0 && math.Abs(rest) <= math.MaxFloat64 && math.Float64bits(sum)&1 == 0 {
		return math.Nextafter(sum, math.Inf(int(math.Copysign(1, rest))))
	}
	return sum
}

// binaryFunc is the meaning of an op with two operands for elements of dtype d; nil if it has none. The result still
// has to be rounded.
func binaryFunc(op ir.Op, d ir.DType) func(a, b elem) (elem, error) {
	m := ir.Info(op).Meaning
	switch {
	case m.Logic != nil:
		return func(a, b elem) (elem, error) { return elem{i: btoi(m.Logic(truth(a, d), truth(b, d)))}, nil }
	case m.Order != nil:
		return func(a, b elem) (elem, error) { return elem{i: btoi(m.Order(compare(a, b, d)))}, nil }
	case d.Is(ir.Complexes):
		if f := m.Complex2; f != nil {
			return func(a, b elem) (elem, error) { return elem{c: f(a.c, b.c)}, nil }
		}
	case d.Is(ir.Floats):
		if f := m.Float2; f != nil {
			return func(a, b elem) (elem, error) { return elem{f: f(a.f, b.f)}, nil }
		}
	default:
		if f, w := m.Int2, integer(d); f != nil {
			return func(a, b elem) (elem, error) {
				v, err := f(a.i, b.i, w)
				return elem{i: v}, err
			}
		}
	}
	return nil
}

func compare(a, b elem, d ir.DType) catalogue.Ordering {
	switch {
	case d.Is(ir.Complexes):
		if a.c == b.c {
			return catalogue.Equal
		}
	case d.Is(ir.Floats):
		switch {
		case a.f < b.f:
			return catalogue.Less
		case a.f > b.f:
			return catalogue.Greater
		case a.f == b.f:
			return catalogue.Equal
		}
	default:
		return integer(d).Compare(a.i, b.i)
	}
	return catalogue.Unordered
}

// powNumber is x to the power of a Python number. PyTorch computes some powers by other formulas, with other results at
// infinities, at -0 and in the last bits. nil stands for the general formula.
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
	case !d.Is(ir.Floats) || d == ir.F16: // f16 has the general formula only
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
