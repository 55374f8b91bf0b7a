// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package recorder posts to mailboxes and waits for answers as the threads of csrc/device do, for tests. It is never
// linked into the client library.
package recorder

/*
#cgo CFLAGS: -I${SRCDIR}/../../../csrc/abi
#include <stdlib.h>
#include "../mailbox.h"

// mailbox.c and wait.c
extern int32_t myc_flush(int32_t, const myc_trace*, myc_error*);
extern int32_t myc_upload(int32_t, uint64_t, const void*, uint64_t, const myc_shared*, myc_origin, uint64_t*,
                          myc_error*);
extern uint64_t myc_read(int32_t, const myc_view*, void*, myc_origin, myc_error*);
extern uint64_t myc_sync(int32_t, myc_origin, myc_error*);
extern uint64_t myc_room(int32_t, myc_origin, myc_error*);
extern int32_t myc_wait(uint64_t, int32_t, myc_error*);
*/
import "C"

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/trace"
)

// Ended is what Device returns for a ticket that has ended.
const Ended = int32(C.MAILBOX_ENDED)

// Pending is the kind that Wait returns for a request without an answer, and that of an upload with a ticket.
const Pending = int32(C.MYC_PENDING)

// scratch is where the C functions write an error. It is never freed.
func scratch() *C.myc_error {
	return (*C.myc_error)(C.calloc(1, C.size_t(unsafe.Sizeof(C.myc_error{}))))
}

func text(e *C.myc_error) string {
	defer C.free(unsafe.Pointer(e))
	return C.GoString(&e.text[0])
}

func origin(at trace.Place) C.myc_origin {
	return C.myc_origin{code: C.uint32_t(at[0]), offset: C.uint32_t(at[1])}
}

// Post posts a trace that has only a key, and returns the kind of the outcome, Pending if the worker is behind, and
// whether the trace is still in use.
func Post(index int32, key uint64) (kind int32, inUse func() bool) {
	flag := (*C.uint32_t)(C.malloc(4)) // never freed: the trace may be in use until the process ends
	*flag = 1
	t := C.myc_trace{in_use: flag}
	t.key[0] = C.uint64_t(key)
	e := scratch()
	defer C.free(unsafe.Pointer(e))
	kind = int32(C.myc_flush(C.int32_t(index), &t, e))
	return kind, func() bool { return atomic.LoadUint32((*uint32)(unsafe.Pointer(flag))) != 0 }
}

// Upload posts an upload, and returns the kind of the outcome, and the ticket and the error's text, if there are.
func Upload(index int32, storage uint64, data []byte, at trace.Place) (kind int32, ticket uint64, why string) {
	e := scratch()
	var pending C.uint64_t
	got := C.myc_upload(C.int32_t(index), C.uint64_t(storage), unsafe.Pointer(unsafe.SliceData(data)),
		C.uint64_t(len(data)), nil, origin(at), &pending, e)
	return int32(got), uint64(pending), text(e)
}

// UploadShared posts an upload of so many bytes of a block, and returns what Upload does, and how many uploads read the
// block.
func UploadShared(index int32, storage, bytes uint64) (kind int32, ticket uint64, readers func() uint32) {
	e := scratch()
	defer C.free(unsafe.Pointer(e))
	count := (*C.uint32_t)(C.malloc(4)) // never freed, as in Post
	*count = 1
	in := C.myc_shared{block: 7, size: C.uint64_t(bytes), offset: 16, fd: 3, readers: count}
	var pending C.uint64_t
	got := C.myc_upload(C.int32_t(index), C.uint64_t(storage), nil, C.uint64_t(bytes), &in, origin(trace.Place{}),
		&pending, e)
	return int32(got), uint64(pending), func() uint32 { return atomic.LoadUint32((*uint32)(unsafe.Pointer(count))) }
}

// Read posts a read of n bytes of a storage and returns its ticket and the memory that receives the bytes, which is
// never freed.
func Read(index int32, storage uint64, n int64, at trace.Place) (uint64, []byte) {
	dims := (*[2]C.int64_t)(C.malloc(16))
	defer C.free(unsafe.Pointer(dims))
	dims[0], dims[1] = C.int64_t(n), 1
	dst := C.malloc(C.size_t(n))
	v := C.myc_view{storage: C.uint64_t(storage), dtype: C.MYC_U8, rank: 1, sizes: &dims[0], strides: &dims[1]}
	e := scratch()
	defer C.free(unsafe.Pointer(e))
	ticket := C.myc_read(C.int32_t(index), &v, dst, origin(at), e)
	return uint64(ticket), unsafe.Slice((*byte)(dst), n)
}

// Sync posts a sync and returns its ticket.
func Sync(index int32, at trace.Place) uint64 {
	e := scratch()
	defer C.free(unsafe.Pointer(e))
	return uint64(C.myc_sync(C.int32_t(index), origin(at), e))
}

// Room posts a request for credits and returns its ticket.
func Room(index int32, at trace.Place) uint64 {
	e := scratch()
	defer C.free(unsafe.Pointer(e))
	return uint64(C.myc_room(C.int32_t(index), origin(at), e))
}

// Wait waits for the answer of a ticket, and returns its kind and text.
func Wait(ticket uint64, timeout time.Duration) (kind int32, why string) {
	e := scratch()
	kind = int32(C.myc_wait(C.uint64_t(ticket), C.int32_t(timeout.Milliseconds()), e))
	return kind, text(e)
}

// Asleep reports whether the sender of a mailbox sleeps or dozes.
func Asleep(index int32) bool { return C.mailbox_is_asleep(C.mailbox_of(C.int32_t(index))) != 0 }

// End ends a ticket without its answer.
func End(ticket uint64) { C.mailbox_end(C.uint64_t(ticket)) }

// Device returns the index of the device that a ticket's request was posted to, or Ended.
func Device(ticket uint64) int32 { return int32(C.mailbox_device(C.uint64_t(ticket))) }
