// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

// Numbers of csrc/abi/mycelya.h, part 1.
const (
	wRecord = 1 + iota
	wNone
	wTensor
	wNumber
	wScalar
	wSize
	wInt
	wFloat
	wBool
	wDType
	wLayout
	wDevice
	wMemFmt
	wStr
	wGen
	wList
)

const (
	rRNG     = 1
	rEffect  = 2
	rDynamic = 4

	nF64  = 1
	nI64  = 2
	nBool = 3
	nC128 = 4

	lTensors    = 1
	lOptTensors = 2
	lScalars    = 6

	dZero  = 0
	dOne   = 1
	dOther = 2

	tFirst  = 1
	tSame   = 2
	tContig = 4
	tOff0   = 8
	tWhole  = 16
	tWrite  = 32

	classesPerWord = 32
)

// Reasons are the names of the causes of a cut, by MYC_CUT_*.
var Reasons = [...]string{"none", "read", "sync", "step", "upload", "size", "flush", "exit", "shape", "event", "repeat", "early"}
