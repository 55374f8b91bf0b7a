// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package mailbox hands traces and requests from recorder threads to a device's sender, and answers back. Recorder
// threads use the C functions of mailbox.h; the sender uses the runtime.Mailbox that New returns. The package never
// interprets a trace and never makes an answer.
package mailbox

/*
#cgo CFLAGS: -I${SRCDIR}/../../csrc/abi
#include <stdlib.h>
#include "mailbox.h"
*/
import "C"

import (
	"fmt"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/client/cabi"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/trace"
)

// mailbox is the sender's end of a C mailbox. The sender sleeps in a read of a pipe: Go's poller waits for the pipe,
// so no thread is blocked, and Go's monitor has none to check.
type mailbox struct {
	index C.int32_t
	c     *C.mailbox
	wake  *os.File
}

// pipes are the wake pipes by device index. C mailboxes live as long as the process, and so do their pipes.
var pipes struct {
	sync.Mutex
	ends map[int32][2]*os.File
}

// New returns the mailbox of a device. It fails if the index is too large, or if no file descriptor is left.
func New(index int32) (runtime.Mailbox, error) {
	c := C.mailbox_of(C.int32_t(index))
	if c == nil {
		return nil, fmt.Errorf("a process has at most %d devices", C.MAILBOXES)
	}
	pipes.Lock()
	defer pipes.Unlock()
	ends, ok := pipes.ends[index]
	if !ok {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, fmt.Errorf("a pipe is needed: %w", err)
		}
		if pipes.ends == nil {
			pipes.ends = map[int32][2]*os.File{}
		}
		ends = [2]*os.File{r, w}
		pipes.ends[index] = ends
		C.mailbox_set_wake_fd(c, C.int32_t(w.Fd()))
	}
	return mailbox{C.int32_t(index), c, ends[0]}, nil
}

func (b mailbox) Open() { C.mailbox_open(b.c) }

func (b mailbox) Close(why error) {
	kind, text := answered(why)
	C.mailbox_close(b.c, kind, text)
}

func (b mailbox) Take() *runtime.Item {
	var item C.mailbox_item
	if C.mailbox_take(b.c, &item) == 0 {
		return nil
	}
	if item.kind == C.ITEM_TRACE {
		p := unsafe.Pointer(&item.trace)
		return &runtime.Item{Trace: cabi.Trace(p), Release: cabi.Release(p)}
	}
	out := &runtime.Item{Ticket: uint64(item.ticket), At: cabi.Place(unsafe.Pointer(&item.at))}
	if item.ticket != 0 {
		out.Answer = answer(item.ticket)
	}
	switch item.kind {
	case C.ITEM_UPLOAD:
		out.Upload = b.upload(&item)
	case C.ITEM_READ:
		out.Request, out.View = runtime.RequestRead, cabi.View(unsafe.Pointer(&item.view))
		C.free(unsafe.Pointer(item.view.sizes))
		if bytes, err := out.View.Bytes(); err == nil {
			out.Dst = cabi.Slice[byte](item.dst, bytes)
		}
	case C.ITEM_SYNC:
		out.Request = runtime.RequestSync
	case C.ITEM_ROOM:
		out.Request = runtime.RequestRoom
	}
	return out
}

func (b mailbox) upload(item *C.mailbox_item) *runtime.Upload {
	u := &runtime.Upload{Storage: uint64(item.storage), Address: uintptr(item.address),
		Data: cabi.Slice[byte](unsafe.Pointer(item.data), uint64(item.bytes))}
	if in := &item.shared; in.block != 0 {
		u.Shared = &runtime.Shared{Block: uint64(in.block), FD: int(in.fd), Size: uint64(in.size),
			Offset: uint64(in.offset)}
	}
	if item.copied != 0 || u.Shared != nil {
		back := *item
		u.Release = func() { C.mailbox_release(b.c, &back) }
	}
	return u
}

// Ticket returns a ticket, and what answers it.
func (b mailbox) Ticket(at trace.Place, stalls bool) (number uint64, give func(error)) {
	counted := C.int32_t(0)
	if stalls {
		counted = 1
	}
	ticket := C.mailbox_ticket(b.index, C.myc_origin{code: C.uint32_t(at[0]), offset: C.uint32_t(at[1])}, counted)
	return uint64(ticket), answer(ticket)
}

// answer answers a request with an error, nil for success.
func answer(ticket C.uint64_t) func(error) {
	return func(err error) {
		kind, text := answered(err)
		C.mailbox_answer(ticket, kind, text)
	}
}

// answered is an error's kind and text, NULL for none.
func answered(err error) (C.int32_t, *C.char) {
	kind, sentences := cabi.Kind(err)
	if kind == C.MYC_OK {
		return C.MYC_OK, nil
	}
	return C.int32_t(kind), C.CString(cabi.Cut(sentences, cabi.MaxText))
}

func (b mailbox) Stalls(each func(at trace.Place, waits uint64, took time.Duration)) {
	for s := (C.mailbox_stall{}); C.mailbox_take_stall(b.c, &s) != 0; {
		each(cabi.Place(unsafe.Pointer(&s.at)), uint64(s.waits), time.Duration(s.nanoseconds))
	}
}

func (b mailbox) Wait() {
	if C.mailbox_sleep(b.c) != 0 {
		var one [1]byte
		_, _ = b.wake.Read(one[:]) // never fails: both ends stay open
	}
}

func (b mailbox) Doze(d time.Duration) {
	if C.mailbox_doze(b.c) == 0 {
		return
	}
	var one [1]byte
	_ = b.wake.SetReadDeadline(time.Now().Add(d))
	_, err := b.wake.Read(one[:])
	_ = b.wake.SetReadDeadline(time.Time{})
	if err != nil && C.mailbox_get_up(b.c) != 0 {
		_, _ = b.wake.Read(one[:])
	}
}

func (b mailbox) Wake() { C.mailbox_wake(b.c) }

func (b mailbox) Credits() *runtime.Credits {
	return (*runtime.Credits)(unsafe.Pointer(C.mailbox_credits_of(b.c)))
}
