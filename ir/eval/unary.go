// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"math"
	"math/cmplx"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// integer is a dtype of integers or truth values as the catalogue's references take it.
func integer(d ir.DType) catalogue.Integer {
	if d == ir.Bool {
		return catalogue.Integer{Bits: 1}
	}
	return catalogue.Integer{Bits: 8 * d.Size(), Signed: d.Signed()}
}

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
	m := ir.Info(op).Meaning
	switch {
	case d.Is(ir.Complexes):
		if op == ir.OpAbs { // the result is real
			return func(x elem) elem { return elem{f: cmplx.Abs(x.c)} }
		}
		if f := m.Complex; f != nil {
			return func(x elem) elem { return elem{c: f(x.c)} }
		}
	case d.Is(ir.Floats):
		if f := m.Float; f != nil {
			return func(x elem) elem { return elem{f: f(x.f)} }
		}
	default:
		if f, w := m.Int, integer(d); f != nil {
			return func(x elem) elem { return elem{i: f(x.i, w)} }
		}
	}
	return nil
}
