// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"

	"github.com/mycelya/mycelya/kernel"
)

// home returns the walk that visits a way.
func (p *printer) home(way int) int {
	for w := range p.v.Walks {
		if p.v.Walks[w].Ways[way] != "-" {
			return w
		}
	}
	panic(fmt.Sprintf("BUG: operand %d runs nowhere", way))
}

// pointwise prints a map. A thread issues all its loads before it uses the first value.
func (p *printer) pointwise() {
	v, u := p.v.Vector, p.unroll
	p.begin(p.entries[0], mapThreads)
	p.line("const %s first = ((%s)block * blockDim.x * %d + threadIdx.x) * %d;", p.index, p.index, u, v)
	p.uniforms()
	used := p.used()
	p.line("%s left[%d];", p.index, u)
	for i, is := range used {
		if !is {
			continue
		}
		if i < len(p.k.Operands) && p.reads(i) {
			p.declare(&p.v.Walks[p.home(i)], i)
		}
		if p.offset(i) {
			p.line("%s o%d[%d];", p.index, i, u)
		}
	}
	p.each("u", u)
	p.line("const %s p = first + u * (%s)blockDim.x * %d;", p.index, p.index, v)
	p.line("left[u] = (%s)a.n - p;", p.index)
	for w := range p.v.Walks {
		shape := &p.v.Walks[w]
		p.line("{")
		p.walkIndex(w, "p", func(int) bool { return true }, func(i int, offset string) {
			if p.offset(i) {
				p.line("o%d[u] = %s;", i, offset)
			}
			if i < len(p.k.Operands) && p.reads(i) {
				p.access(shape, w, i, offset)
			}
		})
		p.line("}")
	}
	p.line("}")
	p.each("u", u)
	for i := range p.k.Operands {
		if used[i] && p.writes(i) {
			p.line("vector<%d, %s> y%d = {};", v, p.dtype(i), i)
		}
	}
	p.each("k", v)
	p.points(func(i int) string {
		w := p.home(p.way(i))
		return p.element(&p.v.Walks[w], w, i, plain)
	}, func(operand uint64, value string) { p.line("y%d.set(k, %s);", operand, value) })
	p.line("}")
	for i := range p.k.Operands {
		if used[i] && p.writes(i) {
			p.put(&p.v.Walks[p.home(i)], p.home(i), i)
		}
	}
	p.line("}")
	p.line("}")
}

// offset reports whether a map's thread needs the offset of a way after the loads.
func (p *printer) offset(way int) bool {
	return way >= len(p.k.Operands) || p.taken(way) || p.writes(way)
}

// points prints the code of a map's point; element gives the text of a LOAD, TAKE or INDEX.
func (p *printer) points(element func(i int) string, store func(operand uint64, value string)) {
	for i := range p.k.Code {
		n := &p.k.Code[i]
		switch {
		case !p.needed[i] || p.level[i] != perPoint:
		case n.Op == kernel.Store:
			store(n.A, p.stored(n.A, plain(n.B)))
		case n.Op == kernel.Load || n.Op == kernel.Take || n.Op == kernel.Index:
			p.line("const %s r%d = %s;", register(n.Class), i, element(i))
		default:
			p.define(i, plain)
		}
	}
}

// transpose prints a map whose operands are contiguous along different dims. A block processes a square of the last two
// dims. Operands that are contiguous along the last dim but one are crossed: they are read and written along that dim,
// and transposed in shared memory. The other operands are accessed along the last dim. So neighbouring threads always
// access neighbouring elements.
func (p *printer) transpose() {
	shape := &p.v.Walks[0]
	tile := p.tile(shape)
	step := mapThreads / tile
	t := &transposer{printer: p, shape: shape, tile: tile, step: step, steps: int(tile / step), used: p.used()}
	p.begin(p.entries[0], mapThreads)
	for i := range p.k.Operands {
		if t.crossed(i) {
			p.line("__shared__ %s t%d[%d];", p.dtype(i), i, tile*pitch(tile, sizeOf(p.k.Operands[i].DType)))
		}
	}
	p.uniforms()
	t.square()
	for i := range p.k.Operands {
		if t.used[i] && !shape.crossed(i) && p.reads(i) {
			p.line("vector<1, %s> x%d[%d];", p.dtype(i), i, t.steps)
		}
	}
	t.rows(true)
	for i := range p.k.Operands {
		if t.used[i] && p.reads(i) && !shape.crossed(i) {
			p.line("x%d[s] = load<1, %t>(a.a%d + %s, in);", i, p.apart(i), i, t.spot(i))
		}
	}
	p.line("}")
	if t.any(p.reads) {
		t.rows(false)
		for i := range p.k.Operands {
			if t.crossed(i) && p.reads(i) {
				p.line("t%d[(y + s * %d) * %d + x] = load<1, %t>(a.a%d + %s, in).get(0);",
					i, t.step, t.pitch(i), p.apart(i), i, t.spot(i))
			}
		}
		p.line("}")
		p.line("__syncthreads();")
	}
	t.points()
	if t.any(p.writes) {
		p.line("__syncthreads();")
		t.rows(false)
		for i := range p.k.Operands {
			if t.crossed(i) && p.writes(i) {
				p.line("if (in) a.a%d[%s] = t%d[(y + s * %d) * %d + x];", i, t.spot(i), i, t.step, t.pitch(i))
			}
		}
		p.line("}")
	}
	p.line("}")
}

// transposer prints the entry of Transpose.
type transposer struct {
	*printer
	shape      *Pattern
	tile, step int64 // the square's side, and the number of its rows that a block processes at once
	steps      int
	used       []bool
}

// crossed reports whether an operand is transposed in shared memory.
func (t *transposer) crossed(i int) bool { return t.used[i] && t.shape.crossed(i) }

// any reports whether a crossed operand has a property.
func (t *transposer) any(has func(i int) bool) bool {
	for i := range t.k.Operands {
		if t.crossed(i) && has(i) {
			return true
		}
	}
	return false
}

func (t *transposer) pitch(way int) int64 { return pitch(t.tile, sizeOf(t.k.Operands[way].DType)) }

// spot is the offset of point i, j.
func (t *transposer) spot(way int) string {
	r := t.shape.Rank
	return fmt.Sprintf("g%d", way) + t.term(t.shape, way, r-1, "i") + t.term(t.shape, way, r-2, "j")
}

// square prints the place of a block's square.
func (t *transposer) square() {
	p, r, tile := t.printer, t.shape.Rank, t.tile
	p.line("const unsigned columns = ((unsigned)a.n0_%d + %d) / %d, rows = ((unsigned)a.n0_%d + %d) / %d;",
		r-1, tile-1, tile, r-2, tile-1, tile)
	p.line("const %s i0 = block %% columns * %d, j0 = block / columns %% rows * %d;", p.index, tile, tile)
	p.line("const %s na = (%s)a.n0_%d, nb = (%s)a.n0_%d;", p.index, p.index, r-1, p.index, r-2)
	if r > 2 {
		p.line("%s rest = block / columns / rows;", p.index)
	}
	for d := r - 3; d >= 0; d-- {
		p.line("const %s b%d = rest %% (%s)a.n0_%d;", p.index, d, p.index, d)
		p.line("rest /= (%s)a.n0_%d;", p.index, d)
	}
	for i, letters := range t.shape.Ways {
		if letters == "-" {
			continue
		}
		sum := "0"
		for d := range r - 2 {
			if letters[d] == 's' {
				sum += fmt.Sprintf(" + b%d * (%s)a.s%d_0_%d", d, p.index, i, d)
			}
		}
		p.line("const %s g%d = %s;", p.index, i, sum)
	}
	p.line("const int x = threadIdx.x %% %d, y = threadIdx.x / %d;", tile, tile)
}

// rows begins the loop over the points of a thread. Neighbouring threads are neighbours along the last dim, or along
// the last but one.
func (t *transposer) rows(last bool) {
	t.each("s", t.steps)
	if last {
		t.line("const %s i = i0 + x, j = j0 + y + s * %d;", t.index, t.step)
	} else {
		t.line("const %s i = i0 + y + s * %d, j = j0 + x;", t.index, t.step)
	}
	t.line("const int in = i < na && j < nb;")
}

// points prints the code of each point.
func (t *transposer) points() {
	square := func(way int) string { return fmt.Sprintf("t%d[x * %d + y + s * %d]", way, t.pitch(way), t.step) }
	t.rows(true)
	t.printer.points(func(i int) string {
		way := t.way(i)
		switch {
		case way >= len(t.k.Operands):
			return t.spot(way)
		case t.taken(way):
			return t.loaded(i, t.takeIf("in", i, t.spot(way), plain(t.k.Code[i].B)))
		case t.shape.crossed(way):
			return t.loaded(i, square(way))
		}
		return t.loaded(i, fmt.Sprintf("x%d[s].get(0)", way))
	}, func(operand uint64, value string) {
		way := int(operand)
		if t.shape.crossed(way) {
			t.line("%s = %s;", square(way), value)
		} else {
			t.line("if (in) a.a%d[%s] = %s;", way, t.spot(way), value)
		}
	})
	t.line("}")
}

// term returns the contribution of a dim to the offset of a way.
func (p *printer) term(shape *Pattern, way, d int, variable string) string {
	switch shape.Ways[way][d] {
	case '1':
		return " + " + variable
	case 's':
		return fmt.Sprintf(" + %s * (%s)a.s%d_0_%d", variable, p.index, way, d)
	}
	return ""
}
