// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// written is an operand that a record overwrites: a window of a storage.
type written struct {
	local uint32
	whole bool // the operand is the storage's value itself
	g     geometry
}

// write puts the value after, which w's window holds after the call, into the storage's value.
//
// Several written operands of one record may lie on one storage and overlap. Each result is its window's content after
// the whole call. So the results of overlapping windows agree where they overlap, and their updates in operand order
// give the storage's content. A window that is the whole storage in other sizes is the storage's new value, in calls in
// which the sizes make as many elements again.
func (b *builder) write(w written, after ir.ValueID) {
	s := &b.storages[w.local]
	if w.whole || b.replaces(s, w.g) {
		b.change(s, after)
		return
	}
	id := b.g.Add(ir.Node{Op: ir.OpUpdate, Offset: w.g.offset, Record: int32(b.record), Origin: b.origin},
		[]ir.Arg{ir.Value(s.value), ir.Value(after)}, []ir.Type{b.g.Types[s.value]})
	b.change(s, b.g.Nodes[id].First)
}

// replaces reports whether a window is all of a storage in the same order, and notes that it has as many bytes.
func (b *builder) replaces(s *storage, g geometry) bool {
	t := b.g.Types[s.value]
	if b.guess == nil || t.Strides != nil || g.typ.Strides != nil || g.offset != ir.Const(0) {
		return false
	}
	sizes := make([]uint64, len(g.typ.Dims))
	for i, d := range g.typ.Dims {
		sizes[i] = b.first(d)
	}
	if slices.Contains(sizes, 0) || !b.covers(s, g.typ.DType, sizes) {
		return false
	}
	if left, right := b.g.Reduce(t.Bytes(), g.typ.Bytes()); len(left)+len(right) > 0 {
		b.g.Requires = append(b.g.Requires, ir.Require{Left: left, Right: right})
	}
	return true
}

// resize changes the size of a storage and keeps the common prefix of its bytes.
func (b *builder) resize(it *item, size ir.Dim) {
	old, _ := b.operand(it)
	t := ir.Type{DType: ir.U8, Dims: []ir.Dim{size}}
	id := b.g.Add(ir.Node{Op: ir.OpResize, Record: int32(b.record), Origin: b.origin},
		[]ir.Arg{ir.Value(old)}, []ir.Type{t})
	s := &b.storages[it.n]
	s.define = geometry{typ: t}
	b.change(s, b.g.Nodes[id].First)
}
