// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"math/bits"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// Derived is a number that is not a parameter of the trace: the bytes of a geometry with symbolic sizes, or a size that
// is a quotient of others, as bytes of a row. Its dims are those of package ir with the trace's parameter slots as
// symbols.
type Derived struct {
	ItemSize int // bytes
	Sizes    []ir.Dim
	Strides  []ir.Dim // nil: contiguous
	Over     []ir.Dim // divisors of the product of the sizes
}

// Bytes is the number of bytes from the geometry's first element to its last, for the parameters of a trace.
func (d *Derived) Bytes(trace []uint64) (uint64, error) {
	value := func(x ir.Dim) (uint64, error) {
		slot, ok := x.Sym()
		switch {
		case !ok:
			return uint64(x), nil
		case slot >= len(trace):
			return 0, fmt.Errorf("a size needs parameter %d of %d", slot, len(trace))
		case int64(trace[slot]) < 0:
			return 0, fmt.Errorf("parameter %d is a size of %d", slot, int64(trace[slot]))
		}
		return trace[slot], nil
	}
	n := uint64(1)
	over := uint64(0) // not 0 after the product has overflowed
	empty := false
	for i, x := range d.Sizes {
		size, err := value(x)
		if err != nil {
			return 0, err
		}
		if size == 0 {
			empty = true
			continue
		}
		if d.Strides == nil {
			var hi uint64
			hi, n = bits.Mul64(n, size)
			over |= hi
			continue
		}
		stride, err := value(d.Strides[i])
		if err != nil {
			return 0, err
		}
		hi, span := bits.Mul64(size-1, stride)
		var carry uint64
		n, carry = bits.Add64(n, span, 0)
		over |= hi | carry
	}
	if empty {
		return 0, nil
	}
	for _, x := range d.Over {
		size, err := value(x)
		if err != nil {
			return 0, err
		}
		if size == 0 || over == 0 && n%size != 0 {
			return 0, fmt.Errorf("%s is no whole number", d)
		}
		n /= size
	}
	hi, n := bits.Mul64(n, uint64(d.ItemSize))
	if over|hi != 0 || n > 1<<62 {
		return 0, fmt.Errorf("a buffer of %s would not fit in any memory", d)
	}
	return n, nil
}

// String is the expression: "4 * s0 * s1", "2 * span(s0:s1 s2:1)".
func (d Derived) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d", d.ItemSize)
	if d.Strides == nil {
		for _, x := range d.Sizes {
			b.WriteString(" * " + slotString(x))
		}
		for _, x := range d.Over {
			b.WriteString(" / " + slotString(x))
		}
		return b.String()
	}
	b.WriteString(" * span(")
	for i, x := range d.Sizes {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(slotString(x) + ":" + slotString(d.Strides[i]))
	}
	b.WriteByte(')')
	return b.String()
}

func slotString(d ir.Dim) string {
	if s, ok := d.Sym(); ok {
		return fmt.Sprintf("s%d", s)
	}
	return fmt.Sprint(int64(d))
}

// Computed is the slot of a parameter that a Derived gives.
const Computed = ^uint32(0)

// params numbers the parameter words that a program uses, in order of first use.
type params struct {
	slots     []uint32
	index     []uint32 // by slot << 1 | 1 if it is the first of two: one more than its number, 0 for none
	derived   []Derived
	quotients map[int]program.Dim // by symbol of the graph
}

// word returns the program's parameter for a trace slot.
func (p *params) word(slot uint32) uint32 { return p.words(slot, false) }

// words returns the program's first parameter for a trace slot, or for two consecutive slots.
func (p *params) words(slot uint32, two bool) uint32 {
	key := uint64(slot) << 1
	if two {
		key |= 1
	}
	if key >= uint64(len(p.index)) {
		p.index = append(p.index, make([]uint32, key+1-uint64(len(p.index)))...)
	}
	i := p.index[key]
	if i == 0 {
		i = uint32(len(p.slots)) + 1
		p.index[key] = i
		p.slots = append(p.slots, slot)
		if two {
			p.slots = append(p.slots, slot+1)
		}
	}
	return i - 1
}

// dim returns a size, stride or offset of the graph in the form of a program.
func (p *params) dim(g *ir.Graph, d ir.Dim) program.Dim {
	d = g.Find(d)
	i, symbol := d.Sym()
	switch {
	case !symbol:
		return program.Dim(d)
	case g.Syms[i].Quotient == nil:
		return program.Param(p.word(g.Syms[i].Slot))
	}
	out, ok := p.quotients[i]
	if !ok {
		out = p.derive(1, g, []ir.Dim{d}, nil)
		p.quotients[i] = out
	}
	return out
}

func (p *params) dims(g *ir.Graph, list []ir.Dim) []program.Dim {
	out := make([]program.Dim, len(list))
	for i, d := range list {
		out[i] = p.dim(g, d)
	}
	return out
}

// bytes returns the number of bytes that a geometry covers.
func (p *params) bytes(g *ir.Graph, t ir.Type) program.Dim {
	if t.DType.Size() == 1 && len(t.Dims) == 1 && t.Strides == nil {
		return p.dim(g, t.Dims[0])
	}
	return p.derive(t.DType.Size(), g, t.Dims, t.Strides)
}

// derive returns a derived parameter, or a constant.
func (p *params) derive(itemSize int, g *ir.Graph, sizes, strides []ir.Dim) program.Dim {
	d := Derived{ItemSize: itemSize, Strides: slotsOf(g, strides)}
	if strides == nil {
		over, under := g.Factors(sizes)
		d.Sizes, d.Over = slotsOf(g, over), slotsOf(g, under)
	} else {
		d.Sizes = slotsOf(g, sizes)
	}
	if n, err := d.Bytes(nil); err == nil { // no symbols
		return program.Dim(n)
	}
	p.derived, p.slots = append(p.derived, d), append(p.slots, Computed)
	return program.Param(uint32(len(p.slots) - 1))
}

// count returns a product of sizes as a number.
func (p *params) count(g *ir.Graph, dims []ir.Dim) program.Arg {
	d := p.derive(1, g, dims, nil)
	if i, ok := d.Param(); ok {
		return program.Number(catalogue.NumberI64, i)
	}
	return program.Int(int64(d))
}

// slotsOf returns dims of a graph, none a quotient, with parameter slots as symbols.
func slotsOf(g *ir.Graph, dims []ir.Dim) []ir.Dim {
	if dims == nil {
		return nil
	}
	out := make([]ir.Dim, len(dims))
	for i, d := range dims {
		if out[i] = g.Find(d); out[i] < 0 {
			s, _ := out[i].Sym()
			out[i] = ir.SymDim(int(g.Syms[s].Slot))
		}
	}
	return out
}
