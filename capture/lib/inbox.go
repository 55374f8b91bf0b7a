// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

/*
#cgo CFLAGS: -I${SRCDIR}/../../csrc/abi
#include "inbox.h"
*/
import "C"

import (
	"sync/atomic"
	"unsafe"

	"github.com/mycelya/mycelya/runtime"
)

// inbox is a runtime.Inbox that C's threads fill.
type inbox struct{ c *C.inbox }

func newInbox(index int32) runtime.Inbox {
	if c := C.inbox_of(C.int32_t(index)); c != nil {
		return inbox{c}
	}
	return runtime.NewInbox()
}

func (b inbox) Open(open bool) {
	var yes C.int32_t
	if open {
		yes = 1
	}
	C.inbox_open(b.c, yes)
}

func (b inbox) Take() (*runtime.Trace, func()) {
	var t C.myc_trace
	if C.inbox_take(b.c, &t) == 0 {
		return nil, nil
	}
	return trace(&t), release(&t)
}

func (b inbox) Wait() { C.inbox_wait(b.c) }
func (b inbox) Ring() { C.inbox_ring(b.c) }

func (b inbox) Credits() *runtime.Credits { return (*runtime.Credits)(unsafe.Pointer(&b.c.on_way)) }

// release says that the arrays of a trace are no longer used.
func release(t *C.myc_trace) func() {
	inUse := (*uint32)(unsafe.Pointer(t.in_use))
	return func() { atomic.StoreUint32(inUse, 0) }
}
