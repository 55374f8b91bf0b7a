// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compile

import (
	"unsafe"

	"github.com/mycelya/mycelya/proto"
)

// The sizes in memory of what a session keeps for its programs. The allocator rounds sizes up; object does the same.
// TestSizeOfPrograms compares the sum with the growth of the heap.

// object is the memory of an object of this size: the allocator's classes are about an eighth apart.
func object(bytes uintptr) int64 {
	const word, small = 16, 128
	if bytes <= small {
		return int64((bytes + word - 1) &^ (word - 1))
	}
	return int64(bytes + bytes/16)
}

func slice[T any](s []T) int64 {
	var one T
	if cap(s) == 0 {
		return 0
	}
	return object(unsafe.Sizeof(one) * uintptr(cap(s)))
}

// bytes is the memory of an entry, with its variants.
func (e *Entry) bytes() int64 {
	n := object(unsafe.Sizeof(*e)) + slice(e.skeleton) + slice(e.Inputs) + slice(e.Changed) + slice(e.Ops) +
		slice(e.variants)
	for _, v := range e.variants {
		n += v.bytes
	}
	return n
}

// measure is the memory of a variant. A call of the program, which the variant keeps, is counted before there is one.
func (v *Variant) measure() int64 {
	c := v.Compiled
	n := object(unsafe.Sizeof(*v)) + slice(v.wanted) + 2*int64(8*len(v.first)) + object(unsafe.Sizeof(*c)) +
		slice(c.Slots) + slice(c.Inputs) + slice(c.Outputs) + slice(c.Derived) + slice(c.Requires) +
		slice(c.Numbers)
	for i := range c.Derived {
		d := &c.Derived[i]
		n += slice(d.Sizes) + slice(d.Strides) + slice(d.Over)
	}
	if v.Weight != nil {
		n += v.Weight.Bytes()
	}
	if v.Account != nil {
		n += object(unsafe.Sizeof(*v.Account)) + slice(v.Account.origins) + int64(len(v.Account.why)+len(v.Account.memory))
	}
	n += object(unsafe.Sizeof(proto.Call{})) + 8*int64(c.Program.Params) + 8*int64(len(c.Inputs)+len(c.Outputs))
	return n + slice(v.Packed) + c.Program.Bytes()
}
