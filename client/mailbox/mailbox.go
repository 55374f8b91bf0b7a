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
	c    *C.mailbox
	wake *os.File
}

// pipes are the wake pipes by device index. C mailboxes live as long as the process, and so do their pipes.
var pipes struct {
	sync.Mutex
	ends map[int32][2]*os.File
}

// New returns the mailbox of a device. A device without one, because its index is too large or no file descriptor is
// left, gets a runtime.Mailbox that stays empty.
func New(index int32) runtime.Mailbox {
	c := C.mailbox_of(C.int32_t(index))
	if c == nil {
		return runtime.NewMailbox()
	}
	pipes.Lock()
	defer pipes.Unlock()
	ends, ok := pipes.ends[index]
	if !ok {
		r, w, err := os.Pipe()
		if err != nil {
			return runtime.NewMailbox()
		}
		if pipes.ends == nil {
			pipes.ends = map[int32][2]*os.File{}
		}
		ends = [2]*os.File{r, w}
		pipes.ends[index] = ends
		C.mailbox_set_wake_fd(c, C.int32_t(w.Fd()))
	}
	return mailbox{c, ends[0]}
}

func (b mailbox) Open(open bool) {
	var yes C.int32_t
	if open {
		yes = 1
	}
	C.mailbox_open(b.c, yes)
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
	if item.kind == C.ITEM_UPLOAD {
		data, bytes := item.data, item.bytes
		return &runtime.Item{Upload: uint64(item.storage), Data: cabi.Slice[byte](data, uint64(bytes)),
			At: cabi.Place(unsafe.Pointer(&item.at)), Release: func() { C.mailbox_free_upload(b.c, data, bytes) }}
	}
	ticket := item.ticket
	out := &runtime.Item{Ticket: uint64(ticket), At: cabi.Place(unsafe.Pointer(&item.at)),
		Answer: func(err error) { answer(ticket, err) }}
	switch item.kind {
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

// answer answers a request with an error, nil for success.
func answer(ticket C.uint64_t, err error) {
	var text *C.char
	kind, sentences := cabi.Kind(err)
	if kind != C.MYC_OK {
		text = C.CString(cabi.Cut(sentences, cabi.MaxText))
	}
	C.mailbox_answer(ticket, C.int32_t(kind), text)
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
