// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

// Numbers of csrc/abi/mycelya.h that messages carry. worker's tests hold them against the header.
const (
	// ABIVersion is MYCELYA_ABI_VERSION.
	ABIVersion = 11

	// Kinds of numbers, MYC_N_*.
	NumberF64  = 1
	NumberI64  = 2
	NumberBool = 3
	NumberC128 = 4

	// Kinds of lists, MYC_L_*.
	ListTensors    = 1
	ListOptTensors = 2
	ListInts       = 3
	ListFloats     = 4
	ListBools      = 5
	ListScalars    = 6

	// Kinds of errors, MYC_OK and MYC_E_*.
	OK                = 0
	ErrRuntime        = 1
	ErrIndex          = 2
	ErrValue          = 3
	ErrType           = 4
	ErrNotImplemented = 5
	ErrMemory         = 6
	ErrLost           = 7
	ErrLinalg         = 8

	dtypeC128 = 11
)

// Bytes of one element by dtype number; 0: not a dtype.
var dtypeSize = [21]uint8{
	0, 1, 1, 2, 4, 8, // u8 i8 i16 i32 i64
	2, 4, 8, // f16 f32 f64
	4, 8, 16, // c32 c64 c128
	1, 2, // bool bf16
	1, 1, 1, 1, // float8
	2, 4, 8, // u16 u32 u64
}

// DTypeSize is the number of bytes of one element, or 0 if d is not a dtype.
func DTypeSize(d uint32) int {
	if d >= uint32(len(dtypeSize)) {
		return 0
	}
	return int(dtypeSize[d])
}
