// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package cabi reads the structs of part 2 of csrc/abi/mycelya.h as Go values, and writes errors and texts for C. cgo
// gives each package its own Go types for C structs, so pointers to structs arrive as unsafe.Pointer. The package never
// calls C and never frees C memory.
package cabi

/*
#cgo CFLAGS: -I${SRCDIR}/../../csrc/abi
#include "mycelya.h"
*/
import "C"

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"unicode"
	"unicode/utf8"
	"unsafe"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/trace"
)

// Slice returns an array of n elements at p as a slice. The slice does not own the memory; the caller must know its
// lifetime.
func Slice[T any](p unsafe.Pointer, n uint64) []T {
	if p == nil || n == 0 {
		return nil
	}
	return unsafe.Slice((*T)(p), int(n))
}

// Trace reads a myc_trace. The slices are C memory, which Release returns to the recorder.
func Trace(p unsafe.Pointer) *trace.Trace {
	t := (*C.myc_trace)(p)
	words := func(p *C.uint64_t, n C.uint64_t) []uint64 { return Slice[uint64](unsafe.Pointer(p), uint64(n)) }
	out := &trace.Trace{
		Key:          [2]uint64{uint64(t.key[0]), uint64(t.key[1])},
		Skeleton:     words(t.skeleton, t.n_skeleton),
		Params:       words(t.params, t.n_params),
		Bindings:     words(t.bindings, t.n_bindings),
		Alive:        Slice[uint8](unsafe.Pointer(t.alive), uint64(t.n_bindings)),
		Frees:        words(t.frees, t.n_frees),
		Origins:      Slice[uint32](unsafe.Pointer(t.origins), 2*uint64(t.n_records)),
		Reason:       uint32(t.reason),
		ReasonOrigin: trace.Place{uint32(t.reason_origin[0]), uint32(t.reason_origin[1])},
		Began:        int64(t.began),
		Closed:       int64(t.closed),
	}
	if t.callers != nil {
		out.Callers = words(t.callers, t.n_records)
	}
	return out
}

// Options reads the options of a provider, a JSON object of strings; "" has none.
func Options(text string) (map[string]string, error) {
	if text == "" {
		return nil, nil
	}
	var out map[string]string
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		return nil, fmt.Errorf("BUG: the options %q of a provider are no JSON object of strings: %w", text, err)
	}
	return out, nil
}

// Release returns a function that tells the recorder that the arrays of a myc_trace are no longer used.
func Release(p unsafe.Pointer) func() {
	inUse := (*uint32)(unsafe.Pointer((*C.myc_trace)(p).in_use))
	return func() { atomic.StoreUint32(inUse, 0) }
}

// View copies a myc_view.
func View(p unsafe.Pointer) runtime.View {
	v := (*C.myc_view)(p)
	dims := func(p *C.int64_t) []int64 {
		return append([]int64(nil), Slice[int64](unsafe.Pointer(p), uint64(v.rank))...)
	}
	return runtime.View{Storage: uint64(v.storage), DType: ir.DType(v.dtype), Offset: int64(v.offset),
		Sizes: dims(v.sizes), Strides: dims(v.strides), Ahead: v.ahead != 0}
}

// Place copies a myc_origin.
func Place(p unsafe.Pointer) trace.Place {
	o := (*C.myc_origin)(p)
	return trace.Place{uint32(o.code), uint32(o.offset)}
}

// MaxText is the longest text that a myc_error holds, in bytes.
const MaxText = len(C.myc_error{}.text) - 1

// The lengths of these arrays are 0, so the two structs have one size.
var (
	_ [unsafe.Sizeof(C.myc_saved{}) - unsafe.Sizeof(report.Saved{})]struct{}
	_ [unsafe.Sizeof(report.Saved{}) - unsafe.Sizeof(C.myc_saved{})]struct{}
)

// Saved reads an array of myc_saved, which remains C memory.
func Saved(p unsafe.Pointer, n uint64) []report.Saved { return Slice[report.Saved](p, n) }

// Kind returns the MYC_E_* of an error, MYC_OK or MYC_PENDING, and the error's text if C is to show one.
func Kind(err error) (int32, string) {
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
	return int32(kind), Printable(err.Error()) // parts of it may come from a worker, which is not trusted
}

// Answer writes an error into a myc_error, cut to its size, and returns its kind. A nil pointer takes the kind only.
func Answer(err error, p unsafe.Pointer) int32 {
	kind, text := Kind(err)
	if out := (*C.myc_error)(p); out != nil && text != "" {
		out.kind = C.int32_t(kind)
		Write(text, unsafe.Pointer(&out.text[0]), uint64(len(out.text)))
	}
	return kind
}

// Printable returns text with its control characters as Go escapes, "\x1b", but for newlines and tabs: a text from
// elsewhere must not move a terminal's cursor, or change what it shows. Bytes that are not UTF-8 become "\ufffd".
func Printable(text string) string {
	bad := func(r rune) bool {
		return unicode.IsControl(r) && r != '\n' && r != '\t' || unicode.Is(unicode.Bidi_Control, r)
	}
	if utf8.ValidString(text) && !strings.ContainsFunc(text, bad) {
		return text
	}
	var b strings.Builder
	for _, r := range text {
		if bad(r) {
			b.WriteString(strings.Trim(strconv.QuoteRuneToASCII(r), "'"))
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// Write copies text and a final 0 to p, cut to capacity bytes, and returns the length that the text has without the 0.
func Write(text string, p unsafe.Pointer, capacity uint64) uint64 {
	if to := Slice[byte](p, capacity); len(to) > 0 {
		to[copy(to, Cut(text, len(to)-1))] = 0
	}
	return uint64(len(text))
}

// Cut returns the longest prefix of text that has at most n bytes and ends between characters.
func Cut(text string, n int) string {
	if len(text) <= n {
		return text
	}
	for n > 0 && text[n]&0xc0 == 0x80 {
		n--
	}
	return text[:n]
}

// Protect runs f and turns a panic into an error: a bug here must not end the user's process.
func Protect(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &runtime.Error{Kind: runtime.KindRuntime, Text: fmt.Sprintf("BUG: %v. Please report this.", r)}
		}
	}()
	return f()
}
