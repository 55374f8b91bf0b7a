// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import "github.com/mycelya/mycelya/catalogue"

// DTypeSize is the number of bytes of one element, or 0 if d is not a dtype.
func DTypeSize(d uint32) int {
	row := catalogue.DTypeOf(uint64(d))
	if row == nil {
		return 0
	}
	return row.Size
}

// numberParams is the number of parameters that hold a Python number, or 0 if there is no such kind.
func numberParams(kind uint64) uint32 {
	if kind == 0 || kind > uint64(len(catalogue.NumberKinds)) {
		return 0
	}
	return uint32(catalogue.NumberKinds[kind-1].Params)
}

// elementParams is the number of parameters that hold an element of a dtype, or 0 if there is no such dtype.
func elementParams(dtype uint64) uint32 {
	row := catalogue.DTypeOf(dtype)
	if row == nil {
		return 0
	}
	return uint32(max(1, row.Size/8))
}
