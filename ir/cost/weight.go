// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package cost estimates from a graph alone what running it takes: the bytes that it moves, its kernel launches, the
// time on one CPU core. Estimates use the sizes first seen or stay symbolic. The package never changes a graph and
// never measures.
package cost

import (
	"cmp"
	"encoding/binary"
	"math"
	"slices"
	"strconv"
	"unsafe"

	"github.com/mycelya/mycelya/ir"
)

// Weight estimates how long a graph takes on one CPU core, for any sizes.
type Weight struct{ terms []term }

// term is nanoseconds times a product of sizes, or times its square root.
type term struct {
	nanoseconds float64
	times, over []uint32 // parameter slots
	root        bool
}

// What one core does in a nanosecond, roughly: bytes moved, multiply-adds.
const (
	coreBytes    = 15
	coreProducts = 25
)

// WeightOf adds the time for the bytes of Traffic and for the multiply-adds of operators outside groups. A product of m
// x k and k x n matrices takes m k n multiply-adds: the square root of the product of its three sizes. Each operator is
// taken for such a product of its three largest tensors. That is exact for mm, within a small factor for batches and
// convolutions, and too much for others.
func WeightOf(g *ir.Graph) *Weight {
	w := &weigher{g: g, at: map[string]int{}, like: make([]like, len(g.Syms))}
	eachMoved(g, func(t ir.Type, times int64) {
		if t.DType.Valid() {
			w.moved(float64(times)*float64(t.DType.Size())/coreBytes, t)
		}
	})
	var tensors []ir.Type
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Op != ir.OpCall || n.Group != 0 {
			continue
		}
		tensors = tensors[:0]
		for _, v := range g.Operands(ir.NodeID(i)) {
			tensors = append(tensors, g.Types[v])
		}
		tensors = append(tensors, g.Types[n.First:n.First+ir.ValueID(n.N)]...)
		if len(tensors) >= 3 {
			slices.SortStableFunc(tensors, func(a, b ir.Type) int { return cmp.Compare(elements(g, b), elements(g, a)) })
			w.add(1.0/coreProducts, true, tensors[:3]...)
		}
	}
	out := w.out // a pointer into w would keep the graph
	return &out
}

// Bytes is about the memory that the estimate takes.
func (w *Weight) Bytes() int64 {
	n := int64(unsafe.Sizeof(*w)) + int64(cap(w.terms))*int64(unsafe.Sizeof(term{}))
	for i := range w.terms {
		n += 4 * int64(cap(w.terms[i].times)+cap(w.terms[i].over))
	}
	return n
}

// Nanoseconds is the estimate with the parameters of a trace.
func (w *Weight) Nanoseconds(params []uint64) float64 {
	total := 0.0
	for i := range w.terms {
		t := &w.terms[i]
		n := 1.0
		for _, slot := range t.times {
			n *= float64(params[slot])
		}
		for _, slot := range t.over {
			n /= float64(params[slot])
		}
		if t.root {
			n = math.Sqrt(n)
		}
		total += t.nanoseconds * n
	}
	return total
}

// weigher collects terms, and adds up those of the same sizes.
type weigher struct {
	g   *ir.Graph
	out Weight
	at  map[string]int
	key []byte

	like []like // by symbol of the first size
}

// like is the last contiguous type with its first size, and its term.
type like struct {
	dims     []ir.Dim
	term     int
	constant float64 // the product of its constant sizes
}

// moved is add for one type and without the root. The tensors of a model often have the sizes of others: a parameter,
// its gradient and its state.
func (w *weigher) moved(nanoseconds float64, t ir.Type) {
	if t.Strides != nil || len(t.Dims) == 0 {
		w.add(nanoseconds, false, t)
		return
	}
	i, symbol := w.g.Find(t.Dims[0]).Sym()
	if !symbol || i >= len(w.like) {
		w.add(nanoseconds, false, t)
		return
	}
	if l := &w.like[i]; l.dims != nil && w.g.SameDims(l.dims, t.Dims) {
		w.out.terms[l.term].nanoseconds += nanoseconds * l.constant
		return
	}
	term, constant := w.add(nanoseconds, false, t)
	w.like[i] = like{t.Dims, term, constant}
}

// add returns the number of the term, and the constant factor of its sizes.
func (w *weigher) add(nanoseconds float64, root bool, of ...ir.Type) (int, float64) {
	t := term{nanoseconds: 1, root: root}
	for _, one := range of {
		for i, d := range one.Dims {
			if one.Strides == nil || !w.g.Same(one.Strides[i], ir.Const(0)) { // stride 0 repeats elements
				w.multiply(&t, d, false)
			}
		}
	}
	slices.Sort(t.times)
	slices.Sort(t.over)
	if root {
		t.nanoseconds = math.Sqrt(t.nanoseconds)
	}
	constant := t.nanoseconds
	t.nanoseconds *= nanoseconds
	w.key = w.key[:0]
	for _, slot := range t.times {
		w.key = binary.LittleEndian.AppendUint32(w.key, slot)
	}
	w.key = binary.LittleEndian.AppendUint32(w.key, math.MaxUint32) // a separator: no slot has this number
	for _, slot := range t.over {
		w.key = binary.LittleEndian.AppendUint32(w.key, slot)
	}
	w.key = strconv.AppendBool(w.key, root)
	if i, ok := w.at[string(w.key)]; ok {
		w.out.terms[i].nanoseconds += t.nanoseconds
		return i, constant
	}
	i := len(w.out.terms)
	w.at[string(w.key)] = i
	w.out.terms = append(w.out.terms, t)
	return i, constant
}

// multiply multiplies a term by a size, or divides it (over).
func (w *weigher) multiply(t *term, d ir.Dim, over bool) {
	d = w.g.Find(d)
	i, ok := d.Sym()
	switch {
	case !ok && over:
		t.nanoseconds /= float64(d)
	case !ok:
		t.nanoseconds *= float64(d)
	case w.g.Syms[i].Quotient != nil:
		q := w.g.Syms[i].Quotient
		for _, d := range q.Of {
			w.multiply(t, d, over)
		}
		for _, d := range q.By {
			w.multiply(t, d, !over)
		}
	case over:
		t.over = append(t.over, w.g.Syms[i].Slot)
	default:
		t.times = append(t.times, w.g.Syms[i].Slot)
	}
}

func elements(g *ir.Graph, t ir.Type) float64 {
	n := 1.0
	for _, d := range t.Dims {
		n *= float64(g.First(d))
	}
	return n
}
