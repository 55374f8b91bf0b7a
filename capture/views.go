// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// symbol makes the dim whose value is a parameter. A slot has its own symbol unless again finds an earlier one: two
// slots with equal values may differ in the next call. ir.InferCall derives which dims an op makes equal.
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

// maxViews is the number of different views of all of a storage that are compared with later ones.
const maxViews = 4

// again returns the geometry of an operand that is not the first on its storage. If an earlier operand was all of the
// storage in the same sizes and strides, this one has that operand's dims. The graph notes that it serves only calls in
// which the numbers are equal again. A weight in the steps of an optimizer, for example, is then one value. Windows on
// parts of a storage are not compared: they may be equal by chance.
func (b *builder) again(it *item) geometry {
	s := &b.storages[it.n]
	if b.guess == nil || !b.covers(it, s) {
		return b.geometry(it)
	}
	numbers := func(it *item) []uint64 { return b.guess[it.param:][:it.slots()] }
	for _, w := range s.views {
		layout := w.at.has(catalogue.TensorContig) == it.has(catalogue.TensorContig)
		if !layout || w.at.sub != it.sub || w.at.rank != it.rank || !slices.Equal(numbers(w.at), numbers(it)) {
			continue
		}
		for i, d := range slices.Concat(w.typ.Dims, w.typ.Strides) {
			if sym, ok := d.Sym(); ok {
				b.g.Syms[sym].Also = append(b.g.Syms[sym].Also, it.param+uint32(i))
			}
		}
		return w.geometry
	}
	g := b.geometry(it)
	if len(s.views) < maxViews {
		s.views = append(s.views, wholeView{g, it})
	}
	return g
}

// covers reports whether an operand has as many elements as its storage.
func (b *builder) covers(it *item, s *storage) bool {
	if !it.has(catalogue.TensorOff0) {
		return false
	}
	elements, all := uint64(ir.DType(it.sub).Size()), int64(b.g.Types[s.value].DType.Size())
	for _, n := range b.guess[it.param:][:it.rank] {
		elements *= n
	}
	for _, d := range b.g.Types[s.value].Dims {
		n := int64(d)
		if sym, ok := d.Sym(); ok {
			n = int64(b.guess[b.g.Syms[sym].Slot])
		}
		all *= n
	}
	return elements == uint64(all)
}

// operand returns the value of a tensor argument and its window. A whole storage with the defining geometry gives the
// storage's own value. Any other window is a view of that value.
func (b *builder) operand(it *item) (ir.ValueID, geometry) {
	var g geometry
	switch {
	case it.has(catalogue.TensorSame):
		g = b.storages[it.n].define
	case it.has(catalogue.TensorFirst):
		g = b.geometry(it)
		b.input(it, g)
	default:
		g = b.again(it)
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
