// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package runtime is the client's session with a worker: it takes closed traces, uploads and reads in order, finds or
// compiles the program of each trace, sends messages, and returns the worker's answers. It decodes a trace only if it
// has no program for it. It keeps tensor data only until they are sent. It waits for the worker only if its caller
// asked it to wait, or is too far ahead.
package runtime

import (
	"fmt"
	"math/bits"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime/provider"
)

// Error is a failure that is shown to the user, in whole sentences.
type Error struct {
	Kind Kind
	Text string
	Lost uint64 // the smallest id of the storages that were not made because of the failure; 0: not known
}

func (e *Error) Error() string { return e.Text }

// Paths has the paths of the package's parts, and the provider and the device of the worker; see myc_config.
type Paths struct {
	provider.Paths
	Provider string
	// Request is what the machine asks of its provider. Its Session is the machine's name, "" for that of a bare
	// "mycelya".
	Request provider.Request
}

// View is a strided window on a storage, sizes and strides in elements.
type View struct {
	Storage uint64
	DType   ir.DType
	Sizes   []int64
	Strides []int64
	Offset  int64
	Ahead   bool // of a read: no caller waits for it yet
}

// Bytes is the number of bytes of a view's elements, without gaps between them.
func (v *View) Bytes() (uint64, error) {
	n := uint64(1)
	if !v.DType.Valid() {
		return 0, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: a read of dtype %d, which does not exist.", v.DType)}
	}
	for _, size := range append([]int64{int64(v.DType.Size())}, v.Sizes...) {
		hi, lo := bits.Mul64(n, uint64(size))
		if size < 0 || hi != 0 || lo > 1<<48 && lo != 0 {
			return 0, &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: a read of %v elements of %s.", v.Sizes, v.DType)}
		}
		n = lo
	}
	return n, nil
}
