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

// wholeView is a geometry of all of a storage, and the numbers that it had.
type wholeView struct {
	typ     ir.Type
	numbers []uint64
}

// again returns the geometry of an operand that is not the first on its storage. If an earlier operand was all of the
// storage in the same sizes and strides, this one has that operand's dims. The graph notes that it serves only calls in
// which the numbers are equal again. A weight in the steps of an optimizer, for example, is then one value. Windows on
// parts of a storage are not compared: they may be equal by chance.
func (b *builder) again(it *item) geometry {
	s := &b.storages[it.n]
	if b.guess == nil || !it.has(catalogue.TensorOff0) {
		return b.geometry(it)
	}
	numbers := b.guess[it.param:][:it.slots()]
	if !b.covers(s, ir.DType(it.sub), numbers[:it.rank]) {
		return b.geometry(it)
	}
	for _, w := range s.views {
		layout := (w.typ.Strides == nil) == it.has(catalogue.TensorContig) && len(w.typ.Dims) == int(it.rank)
		if !layout || w.typ.DType != ir.DType(it.sub) || !slices.Equal(w.numbers, numbers) {
			continue
		}
		for i, d := range slices.Concat(w.typ.Dims, w.typ.Strides) {
			if sym, ok := d.Sym(); ok {
				b.g.Syms[sym].Also = append(b.g.Syms[sym].Also, it.param+uint32(i))
			}
		}
		return geometry{typ: w.typ}
	}
	g := b.geometry(it)
	if len(s.views) < maxViews {
		s.views = append(s.views, wholeView{g.typ, numbers})
	}
	return g
}

// covers reports whether a dtype and sizes make as many bytes as a storage has.
func (b *builder) covers(s *storage, d ir.DType, sizes []uint64) bool {
	t := b.g.Types[s.value]
	bytes, all := uint64(d.Size()), uint64(t.DType.Size())
	for _, n := range sizes {
		bytes *= n
	}
	for _, d := range t.Dims {
		all *= b.first(d)
	}
	return bytes == all
}

// first is the number that a dim has among the guessed parameters.
func (b *builder) first(d ir.Dim) uint64 {
	if sym, ok := d.Sym(); ok {
		return b.guess[b.g.Syms[sym].Slot]
	}
	return uint64(d)
}

// transposed returns the geometry of an operand that is all of an input as a transposed matrix, and the type of the
// matrix that lies in the storage. A linear layer reads its weight so, and an optimizer writes it as it lies. The
// operand is dense, so its second stride is its number of rows.
func (b *builder) transposed(it *item) (view geometry, matrix ir.Type, ok bool) {
	if !it.has(catalogue.TensorWhole) || it.has(catalogue.TensorContig) || it.rank != 2 {
		return view, matrix, false
	}
	classes := b.t.Skeleton[it.v:]
	if classes[classWords(it.rank)]&3 != catalogue.DimOne {
		return view, matrix, false
	}
	d, dims := ir.DType(it.sub), b.dims(classes, it.rank, it.param)
	view.typ = ir.Type{DType: d, Dims: dims, Strides: []ir.Dim{ir.Const(1), dims[0]}}
	return view, ir.Type{DType: d, Dims: []ir.Dim{dims[1], dims[0]}}, true
}

// operand returns the value of a tensor argument and its window. A whole storage as it lies gives the storage's own
// value. Any other window is a view of that value.
func (b *builder) operand(it *item) (ir.ValueID, geometry) {
	var g geometry
	switch {
	case it.has(catalogue.TensorSame):
		g = b.storages[it.n].define
	case it.has(catalogue.TensorFirst):
		g = b.input(it)
	default:
		g = b.again(it)
	}
	v := b.storages[it.n].value
	if b.g.Same(g.offset, ir.Const(0)) && b.g.SameType(g.typ, b.g.Types[v]) {
		return v, g
	}
	return b.view(v, g), g
}

func (b *builder) view(base ir.ValueID, g geometry) ir.ValueID {
	id := b.g.Add(ir.Node{Op: ir.OpView, Offset: g.offset, Record: int32(b.record), Origin: b.origin},
		[]ir.Arg{ir.Value(base)}, []ir.Type{g.typ})
	return b.g.Nodes[id].First
}
