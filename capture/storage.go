// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// storage is the state of a storage while the builder reads a trace: the SSA value of its whole content. Every write
// replaces the value.
//
// The value's type is a shape that covers the storage exactly, from its first byte:
//   - The defining geometry, if the trace made the storage, or if the first operand is all of an input in row-major
//     order or in another order than transposed.
//   - The matrix in memory, if the first operand is all of an input as a transposed matrix.
//   - Flat bytes, u8[bytes], if the first operand on an input is a part of it. The byte count is not a multiple of
//     an element size for all size vectors. Each operand is then a view, also one with the defining geometry.
//   - The sizes of a call's operand, if the call has written all of the storage in these sizes.
type storage struct {
	value   ir.ValueID
	define  geometry // the geometry of a SAME operand
	input   bool     // existed before the trace
	changed bool     // made or written by the trace
	written []version
	views   []wholeView // of operands that are all of the storage
}

// version is the value of a storage after a record that made or wrote the storage.
type version struct {
	record int32
	value  ir.ValueID
}

// change gives a storage the value that the current record makes or writes.
func (b *builder) change(s *storage, v ir.ValueID) {
	s.value, s.changed = v, true
	if n := len(s.written); n > 0 && s.written[n-1].record == int32(b.record) {
		s.written[n-1].value = v
		return
	}
	s.written = append(s.written, version{int32(b.record), v})
}

// made adds the storage that the current record makes.
func (b *builder) made(v ir.ValueID) {
	s := storage{define: geometry{typ: b.g.Types[v]}}
	b.change(&s, v)
	b.storages = append(b.storages, s)
}

// geometry is a window on a storage. The offset counts elements of the type's dtype.
type geometry struct {
	typ    ir.Type
	offset ir.Dim
}

// input makes the storage of a FIRST operand, which has the next local number, and returns the operand's geometry.
func (b *builder) input(it *item) geometry {
	s := storage{input: true}
	var t ir.Type
	if view, matrix, ok := b.transposed(it); ok {
		s.define, t = view, matrix
		if b.guess != nil {
			s.views = []wholeView{{matrix, []uint64{b.guess[it.param+1], b.guess[it.param]}}}
		}
	} else {
		s.define = b.geometry(it)
		if t = s.define.typ; !it.has(catalogue.TensorWhole) {
			t = ir.Type{DType: ir.U8, Dims: []ir.Dim{b.symbol(it.param + it.slots() - 1)}}
		}
	}
	id := b.g.Add(ir.Node{Op: ir.OpInput, Slot: it.n, Record: int32(b.record), Origin: b.origin}, nil, []ir.Type{t})
	s.value = b.g.Nodes[id].First
	b.storages = append(b.storages, s)
	return s.define
}
