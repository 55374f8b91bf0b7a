// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package graphs

import (
	"bytes"

	"github.com/mycelya/mycelya/ir"
)

// Same reports whether two storages hold the same elements. All NaNs are equal, because IEEE arithmetic does not define
// their sign and payload.
func Same(d ir.DType, a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	if d.Is(ir.Complexes) {
		d = d.Real()
	}
	for i := 0; i < len(a); i += d.Size() {
		x, y := a[i:i+d.Size()], b[i:i+d.Size()]
		if !bytes.Equal(x, y) && !(isNaN(d, x) && isNaN(d, y)) {
			return false
		}
	}
	return true
}

// mantissa is the number of bits after a float's exponent.
func mantissa(d ir.DType) int {
	switch d {
	case ir.F16:
		return 10
	case ir.BF16:
		return 7
	case ir.F32:
		return 23
	case ir.F64:
		return 52
	}
	return 0
}

// isNaN reports whether these bytes, lowest first, are a NaN: all bits of the exponent are 1, and the mantissa is not
// 0.
func isNaN(d ir.DType, bits []byte) bool {
	if !d.Is(ir.Floats) {
		return false
	}
	var v uint64
	for i := len(bits) - 1; i >= 0; i-- {
		v = v<<8 | uint64(bits[i])
	}
	m := mantissa(d)
	exponent := uint64(1)<<(8*d.Size()-1-m) - 1
	return v>>m&exponent == exponent && v&(uint64(1)<<m-1) != 0
}
