// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// storage is what a storage holds while a trace is read: the SSA value of its whole content, which every write replaces.
//
// The value's type is a shape that covers the storage exactly, from its first byte. For a storage first seen whole (or made
// in this trace) that is the defining geometry. An input first seen through a window has no such shape, and its byte
// count need not be a multiple of any element size for all size vectors: its value is flat bytes, u8[bytes], and
// each of its operands is a view, the defining geometry too.
type storage struct {
	value   ir.ValueID
	define  geometry // what SAME stands for
	whole   bool     // the defining geometry is the value's own type
	input   bool     // existed before the trace
	changed bool     // made or written by the trace
}

// geometry is a window on a storage: offset in elements of the type's dtype.
type geometry struct {
	typ    ir.Type
	offset ir.Dim
}

// input makes the storage of a FIRST operand, the next in the order of local numbers.
func (b *builder) input(it *item, g geometry) {
	s := storage{define: g, whole: it.has(catalogue.TensorWhole), input: true}
	t := g.typ
	if !s.whole {
		bytes := b.symbol(it.param + it.slots() - 1)
		t = ir.Type{DType: ir.U8, Dims: []ir.Dim{bytes}}
	}
	id := b.g.Add(ir.Node{Op: ir.OpInput, Slot: it.n, Record: int32(b.record), Origin: b.origin}, nil, []ir.Type{t})
	s.value = b.g.Nodes[id].First
	b.storages = append(b.storages, s)
}
