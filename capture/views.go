// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// symbol makes the dim whose value is a parameter. Each slot has its own symbol: two slots with equal values may differ
// in the next call. ir.InferCall derives which dims an op makes equal.
func (b *builder) symbol(slot uint32) ir.Dim {
	v := int64(b.t.Params[slot])
	if v < 0 && b.bad == nil {
		b.bad = fmt.Errorf("parameter %d is a size of %d", slot, v)
	}
	return b.g.AddSymbol(slot, v)
}

// dims reads rank dims. Dims of class 0 and 1 are constants of the skeleton, the others symbols.
func (b *builder) dims(classes []uint64, rank uint8, slot uint32) []ir.Dim {
	dims := make([]ir.Dim, rank)
	for i := range dims {
		switch classes[i/classesPerWord] >> (2 * (i % classesPerWord)) & 3 {
		case catalogue.DimZero:
			dims[i] = ir.Const(0)
		case catalogue.DimOne:
			dims[i] = ir.Const(1)
		default:
			dims[i] = b.symbol(slot + uint32(i))
		}
	}
	return dims
}

// geometry reads the geometry that follows a tensor word.
func (b *builder) geometry(it *item) geometry {
	rank, slot := it.rank, it.param
	classes := b.t.Skeleton[it.v:]
	g := geometry{typ: ir.Type{DType: ir.DType(it.sub), Dims: b.dims(classes, rank, slot)}}
	slot += uint32(rank)
	if !it.has(catalogue.TensorContig) {
		g.typ.Strides = b.dims(classes[classWords(rank):], rank, slot)
		slot += uint32(rank)
	}
	if !it.has(catalogue.TensorOff0) {
		g.offset = b.symbol(slot)
	}
	return g
}

// operand returns the value of a tensor argument and its window. A whole storage with the defining geometry gives the
// storage's own value. Any other window is a view of that value, also a window with equal numbers.
func (b *builder) operand(it *item) (ir.ValueID, geometry) {
	var g geometry
	if it.has(catalogue.TensorSame) {
		g = b.storages[it.n].define
	} else {
		g = b.geometry(it)
		if it.has(catalogue.TensorFirst) {
			b.input(it, g)
		}
	}
	s := &b.storages[it.n]
	if s.whole && (it.has(catalogue.TensorFirst) || it.has(catalogue.TensorSame)) {
		return s.value, g
	}
	return b.view(s.value, g), g
}

func (b *builder) view(base ir.ValueID, g geometry) ir.ValueID {
	id := b.g.Add(ir.Node{Op: ir.OpView, Offset: g.offset, Record: int32(b.record), Origin: b.origin},
		[]ir.Arg{ir.Value(base)}, []ir.Type{g.typ})
	return b.g.Nodes[id].First
}
