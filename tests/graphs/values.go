// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package graphs

import (
	"encoding/binary"
	"math"

	"github.com/mycelya/mycelya/ir"
)

// Computed lists the dtypes that ir/eval computes with.
func Computed() []ir.DType {
	var out []ir.DType
	for d := ir.DType(1); d < ir.NumDTypes; d++ {
		if d.Is(ir.Numbers) && d != ir.C32 {
			out = append(out, d)
		}
	}
	return out
}

// Values lists the elements of a dtype at which arithmetic differs from algebra, lowest byte first: both zeros,
// infinities, NaN, subnormal numbers, the limits of a dtype, numbers with more digits than a narrower dtype has, and
// some ordinary ones.
func Values(d ir.DType) [][]byte {
	var out [][]byte
	add := func(bits ...uint64) {
		for _, b := range bits {
			out = append(out, binary.LittleEndian.AppendUint64(nil, b)[:d.Size()])
		}
	}
	switch {
	case d == ir.Bool:
		add(0, 1)
	case d.Is(ir.Ints):
		top := uint64(1) << (8*d.Size() - 1) // the least number with a sign, and the middle without one
		add(0, 1, 2, 3, top-2, top-1, top, top+1, math.MaxUint64-1, math.MaxUint64)
		if d.Size() > 2 {
			add(1<<24 + 1)
		}
		if d.Size() > 4 {
			add(1<<31, 1<<53+1, 1<<62)
		}
	case d.Is(ir.Complexes):
		parts := Values(d.Real())
		for i := range parts {
			out = append(out, append(append([]byte(nil), parts[i]...), parts[(i*5+3)%len(parts)]...))
		}
	default:
		m := mantissa(d)
		sign, one := uint64(1)<<(8*d.Size()-1), uint64(1)<<m
		bias := (sign/one - 1) / 2
		inf := (2*bias + 1) * one
		half, whole := (bias-1)*one, bias*one // 1/2 and 1
		for _, v := range []uint64{0, 1, one - 1, one, half, whole, whole + 1, whole + one/2, whole + one + one/4,
			(bias + uint64(m)) * one, inf - 1, inf} {
			add(v, v|sign)
		}
		add(inf + one/2)
	}
	return out
}
