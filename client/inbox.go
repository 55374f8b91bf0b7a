// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

/*
#cgo CFLAGS: -I${SRCDIR}/../csrc/abi
#include <stdlib.h>
#include "inbox.h"
*/
import "C"

import (
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime"
)

// inbox is a runtime.Inbox that C's threads fill. The bell is a pipe: its reader waits without a thread, or anything else of Go's
// that the monitor would look after.
type inbox struct {
	c    *C.inbox
	bell *os.File
}

var bells struct { // by index, until the process ends
	sync.Mutex
	ends map[int32][2]*os.File
}

func newInbox(index int32) runtime.Inbox {
	c := C.inbox_of(C.int32_t(index))
	if c == nil {
		return runtime.NewInbox()
	}
	bells.Lock()
	defer bells.Unlock()
	ends, ok := bells.ends[index]
	if !ok {
		r, w, err := os.Pipe()
		if err != nil { // there are no descriptors left
			return runtime.NewInbox()
		}
		if bells.ends == nil {
			bells.ends = map[int32][2]*os.File{}
		}
		ends = [2]*os.File{r, w}
		bells.ends[index] = ends
		C.inbox_hang(c, C.int32_t(w.Fd()))
	}
	return inbox{c, ends[0]}
}

func (b inbox) Open(open bool) {
	var yes C.int32_t
	if open {
		yes = 1
	}
	C.inbox_open(b.c, yes)
}

func (b inbox) Take() *runtime.Letter {
	var l C.letter
	if C.inbox_take(b.c, &l) == 0 {
		return nil
	}
	if l.what == C.LETTER_TRACE {
		return &runtime.Letter{Trace: traceOf(&l.trace), Release: release(&l.trace)}
	}
	ticket := l.ticket
	out := &runtime.Letter{Ticket: uint64(ticket), At: place(l.at), Answer: func(err error) { tell(ticket, err) }}
	switch l.what {
	case C.LETTER_READ:
		out.Ask, out.View = runtime.AskRead, view(&l.view)
		C.free(unsafe.Pointer(l.view.sizes))
		if bytes, err := out.View.Bytes(); err == nil {
			out.Dst = slice[byte]((*byte)(l.dst), C.uint64_t(bytes))
		}
	case C.LETTER_SYNC:
		out.Ask = runtime.AskSync
	case C.LETTER_ROOM:
		out.Ask = runtime.AskRoom
	}
	return out
}

// view is a view of C's, copied.
func view(v *C.myc_view) runtime.View {
	return runtime.View{Storage: uint64(v.storage), DType: ir.DType(v.dtype), Offset: int64(v.offset),
		Sizes:   append([]int64(nil), slice[int64](v.sizes, C.uint64_t(v.rank))...),
		Strides: append([]int64(nil), slice[int64](v.strides, C.uint64_t(v.rank))...)}
}

// tell answers a question that was left in an inbox.
func tell(ticket C.uint64_t, err error) {
	var text *C.char
	kind, sentences := kindOf(err)
	if kind != C.MYC_OK {
		var e C.myc_error
		text = C.CString(cut(sentences, len(e.text)))
	}
	C.inbox_answer(ticket, kind, text)
}

func (b inbox) Stalls(each func(at runtime.Place, waits uint64, took time.Duration)) {
	for s := (C.stall{}); C.inbox_take_stall(b.c, &s) != 0; {
		each(place(s.at), uint64(s.waits), time.Duration(s.nanoseconds))
	}
}

func (b inbox) Wait() {
	if C.inbox_sleep(b.c) != 0 {
		var one [1]byte
		_, _ = b.bell.Read(one[:]) // doesn't fail: both ends stay open
	}
}

func (b inbox) Ring() { C.inbox_ring(b.c) }

func (b inbox) Credits() *runtime.Credits { return (*runtime.Credits)(unsafe.Pointer(&b.c.on_way)) }

// release says that the arrays of a trace are no longer used.
func release(t *C.myc_trace) func() {
	inUse := (*uint32)(unsafe.Pointer(t.in_use))
	return func() { atomic.StoreUint32(inUse, 0) }
}
