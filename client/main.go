// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Command lib is the client library that csrc/device loads: the functions of part 2 of csrc/abi/mycelya.h, each handed on
// to package runtime with C's memory as Go slices. It never keeps a pointer beyond a call, except the destination of a
// read until its ticket ends, the bytes and the count of a shared upload until it is over, and the arrays of a trace until it
// has said that it doesn't use them any more.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../csrc/abi
#include "mycelya.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	goruntime "runtime"
	"runtime/debug"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/trace"
)

var (
	names  = capture.NewTable()
	client = newClient(names)
)

func main() {}

// init makes room for threads, and lets garbage be five times what stays before it is collected, where Go's own measure is twice: compiling makes MiBs of it, and what
// stays is small.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		goruntime.GOMAXPROCS(max(leastProcs, goruntime.GOMAXPROCS(0)))
	}
}

// leastProcs is for how many threads Go is to have room at once. One that has called from C keeps its place until somebody needs it and Go's
// monitor looks, which may be late (csrc/device/client/Client.cpp).
const leastProcs = 8

// slice is C memory seen as a Go slice; nothing owns it beyond the call.
func slice[To, From any](p *From, n C.uint64_t) []To {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*To)(unsafe.Pointer(p)), int(n))
}

// kindOf is what an error is for C, and its text if it has one.
func kindOf(err error) (C.int32_t, string) {
	switch {
	case err == nil:
		return C.MYC_OK, ""
	case errors.Is(err, runtime.ErrPending):
		return C.MYC_PENDING, ""
	}
	kind := runtime.KindRuntime
	var e *runtime.Error
	if errors.As(err, &e) {
		kind = e.Kind
	}
	return C.int32_t(kind), err.Error()
}

// answer writes an error for C, cut to what fits, and returns its kind.
func answer(err error, out *C.myc_error) C.int32_t {
	kind, text := kindOf(err)
	if out != nil && text != "" {
		out.kind = kind
		write(text, (*C.char)(unsafe.Pointer(&out.text[0])), C.uint64_t(len(out.text)))
	}
	return kind
}

// write copies text and a final 0, as far as there is room, and returns the length needed without the 0.
func write(text string, out *C.char, capacity C.uint64_t) C.uint64_t {
	if to := slice[byte](out, capacity); len(to) > 0 {
		to[copy(to, cut(text, len(to)))] = 0
	}
	return C.uint64_t(len(text))
}

// cut is as much of text as fits into so many bytes with a final 0.
func cut(text string, capacity int) string {
	if len(text) < capacity {
		return text
	}
	n := capacity - 1
	for n > 0 && text[n]&0xc0 == 0x80 { // not inside a character
		n--
	}
	return text[:n]
}

// guard turns a panic of a call into its error: the process isn't ours to end.
func guard(err *error) {
	if r := recover(); r != nil {
		*err = &runtime.Error{Kind: runtime.KindRuntime, Text: fmt.Sprintf("BUG: %v. Please report this.", r)}
	}
}

// call runs one function of the library.
func call(out *C.myc_error, f func() error) C.int32_t {
	return answer(protect(f), out)
}

func protect(f func() error) (err error) {
	defer guard(&err)
	return f()
}

//export myc_abi_version
func myc_abi_version() C.uint32_t { return C.MYCELYA_ABI_VERSION }

//export myc_define_op
func myc_define_op(hash C.uint64_t, name *C.char) {
	_ = protect(func() error { names.DefineOp(uint64(hash), C.GoString(name)); return nil })
}

//export myc_define_code
func myc_define_code(code C.uint32_t, file, _ *C.char, lines *C.int32_t, n C.uint64_t) {
	_ = protect(func() error {
		names.DefineCode(uint32(code), C.GoString(file), append([]int32(nil), slice[int32](lines, n)...))
		return nil
	})
}

//export myc_open
func myc_open(index C.int32_t, config *C.myc_config, out *C.myc_error) C.int32_t {
	return call(out, func() error {
		paths := runtime.Paths{Worker: C.GoString(config.worker), Exec: C.GoString(config.exec),
			TorchLib: C.GoString(config.torch_lib), Device: C.GoString(config.device)}
		return client.Open(int32(index), paths, os.Environ())
	})
}

//export myc_close
func myc_close(index C.int32_t, out *C.myc_error) C.int32_t {
	return call(out, func() error { client.Close(int32(index)); return nil })
}

// The way of myc_flush (inbox.c) where the device has no sender yet, or none any more.
//
//export mycFlushByCall
func mycFlushByCall(index C.int32_t, t *C.myc_trace, out *C.myc_error) C.int32_t {
	return call(out, func() error { return client.Flush(int32(index), traceOf(t), release(t)) })
}

// traceOf is a trace of C as one of Go; its arrays are still C's.
func traceOf(t *C.myc_trace) *trace.Trace {
	return &trace.Trace{
		Key:          [2]uint64{uint64(t.key[0]), uint64(t.key[1])},
		Skeleton:     slice[uint64](t.skeleton, t.n_skeleton),
		Params:       slice[uint64](t.params, t.n_params),
		Bindings:     slice[uint64](t.bindings, t.n_bindings),
		Alive:        slice[uint8](t.alive, t.n_bindings),
		Frees:        slice[uint64](t.frees, t.n_frees),
		Origins:      slice[uint32](t.origins, 2*t.n_records),
		Reason:       uint32(t.reason),
		ReasonOrigin: runtime.Place{uint32(t.reason_origin[0]), uint32(t.reason_origin[1])},
	}
}

// The ways of questions (inbox.c), as of a flush.
//
//export mycRoomByCall
func mycRoomByCall(index C.int32_t, at C.myc_origin, out *C.myc_error) C.uint64_t {
	return ticket(out, func() (uint64, error) { return client.Room(int32(index), place(at)) })
}

//export myc_upload
func myc_upload(index C.int32_t, id C.uint64_t, data unsafe.Pointer, bytes C.uint64_t, at C.myc_origin, out *C.myc_error) C.int32_t {
	return call(out, func() error {
		return client.Upload(int32(index), uint64(id), slice[byte]((*byte)(data), bytes), place(at))
	})
}

//export myc_upload_shared
func myc_upload_shared(index C.int32_t, id C.uint64_t, data unsafe.Pointer, bytes C.uint64_t, in *C.myc_shared, at C.myc_origin, out *C.myc_error) C.int32_t {
	return call(out, func() error {
		readers := (*uint32)(unsafe.Pointer(in.readers))
		return client.UploadShared(int32(index), uint64(id), slice[byte]((*byte)(data), bytes), runtime.Shared{
			Block: uint64(in.block), FD: int(in.fd), Size: uint64(in.size), Offset: uint64(in.offset),
			Release: func() { atomic.AddUint32(readers, ^uint32(0)) },
		}, place(at))
	})
}

//export myc_forget
func myc_forget(block C.uint64_t) {
	_ = protect(func() error { client.Forget(uint64(block)); return nil })
}

//export mycReadByCall
func mycReadByCall(index C.int32_t, v *C.myc_view, dst unsafe.Pointer, at C.myc_origin, out *C.myc_error) C.uint64_t {
	return ticket(out, func() (uint64, error) {
		view := view(v)
		bytes, err := view.Bytes()
		if err != nil {
			return 0, err
		}
		return client.Read(int32(index), view, slice[byte]((*byte)(dst), C.uint64_t(bytes)), place(at))
	})
}

//export mycSyncByCall
func mycSyncByCall(index C.int32_t, at C.myc_origin, out *C.myc_error) C.uint64_t {
	return ticket(out, func() (uint64, error) { return client.Sync(int32(index), place(at)) })
}

func place(o C.myc_origin) runtime.Place { return runtime.Place{uint32(o.code), uint32(o.offset)} }

// ticket runs a function that begins a wait; 0 if it fails.
func ticket(out *C.myc_error, begin func() (uint64, error)) C.uint64_t {
	var n uint64
	call(out, func() (err error) { n, err = begin(); return err })
	return C.uint64_t(n)
}

//export mycWaitByCall
func mycWaitByCall(ticket C.uint64_t, timeoutMS C.int32_t, out *C.myc_error) C.int32_t {
	return call(out, func() error { return client.Wait(uint64(ticket), time.Duration(timeoutMS)*time.Millisecond) })
}

//export mycCancelByCall
func mycCancelByCall(ticket C.uint64_t) {
	_ = protect(func() error { client.Cancel(uint64(ticket)); return nil })
}

//export mycCancelLeft
func mycCancelLeft(index C.int32_t, ticket C.uint64_t) {
	_ = protect(func() error { client.CancelLeft(int32(index), uint64(ticket)); return nil })
}

//export myc_metrics
func myc_metrics(out *C.char, capacity C.uint64_t) C.uint64_t {
	return write(string(client.Metrics()), out, capacity)
}

//export myc_reset_metrics
func myc_reset_metrics() { client.ResetMetrics() }

//export myc_bill
func myc_bill(out *C.char, capacity C.uint64_t) C.uint64_t {
	return write(string(client.Bill()), out, capacity)
}

//export myc_explain
func myc_explain(index C.int32_t, out *C.char, capacity C.uint64_t, e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) { return client.Explain(int32(index)) })
}

//export myc_pending
func myc_pending(index C.int32_t, t *C.myc_trace, storage C.uint64_t, out *C.char, capacity C.uint64_t, e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) { return client.Pending(int32(index), traceOf(t), uint64(storage)) })
}

//export myc_device_info
func myc_device_info(index C.int32_t, out *C.char, capacity C.uint64_t, e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) {
		info, err := client.DeviceInfo(int32(index))
		return string(info), err
	})
}

// text writes what a function returns; 0 if it fails.
func text(out *C.char, capacity C.uint64_t, e *C.myc_error, f func() (string, error)) C.uint64_t {
	var n C.uint64_t
	call(e, func() error {
		s, err := f()
		if err == nil {
			n = write(s, out, capacity)
		}
		return err
	})
	return n
}

//export myc_fork_fds
func myc_fork_fds(out *C.int32_t, capacity C.int32_t) C.int32_t {
	fds := client.FDs()
	to := slice[int32](out, C.uint64_t(max(capacity, 0)))
	for i := range min(len(fds), len(to)) {
		to[i] = int32(fds[i])
	}
	return C.int32_t(len(fds))
}
