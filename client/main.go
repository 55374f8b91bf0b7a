// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Command client is the client library, which csrc/device loads: the functions of part 2 of csrc/abi/mycelya.h. It
// wires capture, the providers and the mailboxes into package runtime, and binds C calls to methods; it holds no logic.
// The library keeps C memory beyond a call only where the header says so: the destination of a read until its ticket
// ends, the bytes and the count of a shared upload until it is over, and the arrays of a trace until it is released.
package main

/*
#cgo CFLAGS: -I${SRCDIR}/../csrc/abi
#include "mycelya.h"
*/
import "C"

import (
	"os"
	goruntime "runtime"
	"runtime/debug"
	"slices"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/client/cabi"
	"github.com/mycelya/mycelya/client/mailbox"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/providers"
	"github.com/mycelya/mycelya/trace"
)

var (
	names  = capture.NewTable()
	client = runtime.New(names, func(p runtime.Paths) (provider.Provider, error) {
		return providers.New(p.Provider, p.Paths)
	}, mailbox.New)
)

func main() {}

// init sets the limits of Go's runtime in the user's process, unless the environment sets them. The garbage collector
// waits until the heap is five times as large as its live part: compiling makes MiBs of garbage, and little survives.
// memory.go has a limit, since a full cache of programs would make the heap five times as large.
func init() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(400)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(leastMemory)
		limitAfterCollections()
	}
	if os.Getenv("GOMAXPROCS") == "" {
		goruntime.GOMAXPROCS(max(leastProcs, goruntime.GOMAXPROCS(0)))
	}
}

// leastProcs is the smallest GOMAXPROCS. A thread that has called from C keeps its slot until another thread needs one
// and Go's monitor takes it back, which may be late: csrc/device/client/Client.cpp.
const leastProcs = 8

// call runs one function of the library and returns the kind of its error.
func call(out *C.myc_error, f func() error) C.int32_t {
	return C.int32_t(cabi.Answer(cabi.Protect(f), unsafe.Pointer(out)))
}

//export myc_abi_version
func myc_abi_version() C.uint32_t { return C.MYCELYA_ABI_VERSION }

//export myc_define_op
func myc_define_op(hash C.uint64_t, name *C.char) {
	_ = cabi.Protect(func() error { names.DefineOp(uint64(hash), C.GoString(name)); return nil })
}

//export myc_define_code
func myc_define_code(code C.uint32_t, file, _ *C.char, lines *C.int32_t, n C.uint64_t) {
	_ = cabi.Protect(func() error {
		theirs := cabi.Slice[int32](unsafe.Pointer(lines), uint64(n))
		names.DefineCode(uint32(code), C.GoString(file), slices.Clone(theirs))
		return nil
	})
}

//export myc_define_call
func myc_define_call(code C.uint32_t, at, caller C.myc_origin) {
	_ = cabi.Protect(func() error { names.DefineCall(uint32(code), place(at), place(caller)); return nil })
}

//export myc_place
func myc_place(at C.myc_origin, out *C.char, capacity C.uint64_t) C.uint64_t {
	return C.uint64_t(cabi.Write(client.Place(place(at)), unsafe.Pointer(out), uint64(capacity)))
}

//export myc_open
func myc_open(index C.int32_t, config *C.myc_config, out *C.myc_error) C.int32_t {
	return call(out, func() error {
		if err := takeEnvironment(); err != nil {
			return err
		}
		options, err := cabi.Options(C.GoString(config.options))
		if err != nil {
			return err
		}
		request := provider.Request{Spec: provider.Spec{
			Session: C.GoString(config.machine), Device: C.GoString(config.device),
		}}
		if err := request.Options(options); err != nil {
			return err
		}
		return client.Open(int32(index), runtime.Paths{
			Paths: provider.Paths{
				Worker:   C.GoString(config.worker),
				Exec:     C.GoString(config.exec),
				TorchLib: C.GoString(config.torch_lib),
			},
			Provider: C.GoString(config.provider),
			Request:  request,
		}, os.Environ())
	})
}

//export myc_close
func myc_close(index C.int32_t, out *C.myc_error) C.int32_t {
	return call(out, func() error { client.Close(int32(index)); return nil })
}

//export myc_ended
func myc_ended(index C.int32_t, out *C.char, capacity C.uint64_t) C.uint64_t {
	return C.uint64_t(cabi.Write(client.Ended(int32(index)), unsafe.Pointer(out), uint64(capacity)))
}

//export mycRaise
func mycRaise(index C.int32_t, lost *C.uint64_t, out *C.myc_error) C.int32_t {
	return call(out, func() error {
		id, err := client.Raise(int32(index))
		*lost = C.uint64_t(id)
		return err
	})
}

//export myc_forget
func myc_forget(block C.uint64_t) {
	_ = cabi.Protect(func() error { client.Forget(uint64(block)); return nil })
}

//export myc_ask
func myc_ask(index C.int32_t, question *C.char, n C.uint64_t, at C.myc_origin, out *C.myc_error) C.uint64_t {
	var ticket uint64
	call(out, func() (err error) {
		ticket, err = client.Ask(int32(index), cabi.Slice[byte](unsafe.Pointer(question), uint64(n)), place(at))
		return err
	})
	return C.uint64_t(ticket)
}

//export myc_answer
func myc_answer(ticket C.uint64_t, out *C.char, capacity C.uint64_t, e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) {
		answer, err := client.Answer(uint64(ticket), uint64(capacity))
		return string(answer), err
	})
}

//export myc_start
func myc_start(index C.int32_t, pending *C.uint64_t, out *C.myc_error) C.int32_t {
	return call(out, func() error {
		ticket, err := client.Start(int32(index))
		if *pending = C.uint64_t(ticket); ticket != 0 {
			return runtime.ErrPending
		}
		return err
	})
}

func place(o C.myc_origin) trace.Place { return cabi.Place(unsafe.Pointer(&o)) }

//export mycCancel
func mycCancel(index C.int32_t, ticket C.uint64_t) {
	_ = cabi.Protect(func() error { client.Cancel(int32(index), uint64(ticket)); return nil })
}

//export myc_metrics
func myc_metrics(out *C.char, capacity C.uint64_t) C.uint64_t {
	return C.uint64_t(cabi.Write(string(client.Metrics()), unsafe.Pointer(out), uint64(capacity)))
}

//export myc_reset_metrics
func myc_reset_metrics() { client.ResetMetrics() }

//export myc_bill
func myc_bill(saved *C.myc_saved, n C.uint64_t, out *C.char, capacity C.uint64_t) C.uint64_t {
	text := client.Bill(cabi.Saved(unsafe.Pointer(saved), uint64(n)))
	return C.uint64_t(cabi.Write(string(text), unsafe.Pointer(out), uint64(capacity)))
}

//export myc_busy
func myc_busy(out *C.char, capacity C.uint64_t) C.uint64_t {
	return C.uint64_t(cabi.Write(client.Busy(), unsafe.Pointer(out), uint64(capacity)))
}

//export myc_uploading
func myc_uploading(sent, bytes *C.uint64_t) C.double { return underWay(client.Uploading, sent, bytes) }

//export myc_downloading
func myc_downloading(got, bytes *C.uint64_t) C.double {
	return underWay(client.Downloading, got, bytes)
}

func underWay(ask func() (done, bytes uint64, took time.Duration), done, bytes *C.uint64_t) C.double {
	d, n, took := ask()
	*done, *bytes = C.uint64_t(d), C.uint64_t(n)
	return C.double(took.Seconds())
}

//export myc_profile
func myc_profile(on C.int32_t) {
	_ = cabi.Protect(func() error { client.Profile(on != 0); return nil })
}

//export myc_profiled
func myc_profiled(out *C.char, capacity C.uint64_t) C.uint64_t {
	return C.uint64_t(cabi.Write(client.Profiled(), unsafe.Pointer(out), uint64(capacity)))
}

//export myc_explain
func myc_explain(index C.int32_t, out *C.char, capacity C.uint64_t, e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) { return client.Explain(int32(index)) })
}

//export myc_pending
func myc_pending(index C.int32_t, t *C.myc_trace, storage C.uint64_t, out *C.char, capacity C.uint64_t,
	e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) {
		return client.Pending(int32(index), cabi.Trace(unsafe.Pointer(t)), uint64(storage))
	})
}

//export myc_device_info
func myc_device_info(index C.int32_t, out *C.char, capacity C.uint64_t, e *C.myc_error) C.uint64_t {
	return text(out, capacity, e, func() (string, error) {
		info, err := client.DeviceInfo(int32(index))
		return string(info), err
	})
}

// text writes the string that f returns; 0 if f fails.
func text(out *C.char, capacity C.uint64_t, e *C.myc_error, f func() (string, error)) C.uint64_t {
	var n C.uint64_t
	call(e, func() error {
		s, err := f()
		if err == nil {
			n = C.uint64_t(cabi.Write(s, unsafe.Pointer(out), uint64(capacity)))
		}
		return err
	})
	return n
}

//export myc_fork_fds
func myc_fork_fds(out *C.int32_t, capacity C.int32_t) C.int32_t {
	fds := client.FDs()
	to := cabi.Slice[int32](unsafe.Pointer(out), uint64(max(capacity, 0)))
	for i := range min(len(fds), len(to)) {
		to[i] = int32(fds[i])
	}
	return C.int32_t(len(fds))
}
