// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
)

// reduce combines the elements of x along dims; no dims means all. It visits the kept dims in row-major order. dst
// already has the result's sizes. Floats accumulate in f64.
func reduce(op ir.Op, x *Tensor, dims []int64, dst *Tensor) error {
	var reduced [32]bool
	for _, d := range dims {
		if d < 0 || d >= int64(len(x.Sizes)) {
			return fmt.Errorf("dim %d is not one of a rank %d operand", d, len(x.Sizes))
		}
		reduced[d] = true
	}
	var keptSizes, keptStrides, sizes, strides []int64
	for i, n := range x.Sizes {
		if len(dims) == 0 || reduced[i] {
			sizes, strides = append(sizes, n), append(strides, x.Strides[i])
		} else {
			keptSizes, keptStrides = append(keptSizes, n), append(keptStrides, x.Strides[i])
		}
	}
	count := product(sizes)
	if product(keptSizes) != dst.Numel() {
		return fmt.Errorf("sizes %v reduced over %v do not give %v", x.Sizes, dims, dst.Sizes)
	}
	if count == 0 && (op == ir.OpAmax || op == ir.OpAmin) {
		return fmt.Errorf("%s of no elements", op)
	}
	wide := x.DType // in which to accumulate
	switch {
	case op == ir.OpAmax || op == ir.OpAmin:
	case wide.Is(ir.Floats):
		wide = ir.F64
	case wide.Is(ir.Complexes):
		wide = ir.C128
	default:
		wide = ir.I64
	}
	step := combineFunc(op, wide)
	if step == nil {
		return fmt.Errorf("%s of %s has no meaning", op, x.DType)
	}
	results := make([]elem, 0, dst.Numel())
	each(keptSizes, keptStrides, x.Offset, func(start int64) {
		var acc elem
		first := true
		each(sizes, strides, start, func(pos int64) {
			e := convert(x.load(pos), x.DType, wide)
			if first && (op == ir.OpAmax || op == ir.OpAmin) {
				acc = e
			} else {
				acc = step(acc, e)
			}
			first = false
		})
		if op == ir.OpMean {
			acc.f /= float64(count)
			acc.c = complex(real(acc.c)/float64(count), imag(acc.c)/float64(count))
		}
		results = append(results, acc)
	})
	return dst.put(results, wide)
}

// combineFunc combines an accumulated element with the next one.
func combineFunc(op ir.Op, d ir.DType) func(a, b elem) elem {
	if op == ir.OpSum || op == ir.OpMean {
		return func(a, b elem) elem { return elem{i: a.i + b.i, f: a.f + b.f, c: a.c + b.c} }
	}
	pair := ir.OpMaximum
	if op == ir.OpAmin {
		pair = ir.OpMinimum
	}
	f := binaryFunc(pair, d)
	if f == nil || d.Is(ir.Complexes) {
		return nil
	}
	return func(a, b elem) elem {
		e, _ := f(a, b) // neither fails
		return e
	}
}

// put converts results, in row-major order, and stores them.
func (t *Tensor) put(results []elem, from ir.DType) error {
	i := 0
	t.each(func(pos int64) {
		t.store(pos, convert(results[i], from, t.DType))
		i++
	})
	return nil
}
