// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"

	"github.com/mycelya/mycelya/kernel"
)

// home is the walk along which a way runs.
func (p *printer) home(way int) int {
	for w := range p.v.Walks {
		if p.v.Walks[w].Ways[way] != "-" {
			return w
		}
	}
	panic(fmt.Sprintf("BUG: operand %d runs nowhere", way))
}

// pointwise: all that a thread reads is asked for before the first value is needed.
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
		if i >= len(p.k.Operands) || p.writes(i) {
			p.line("%s o%d[%d];", p.index, i, u)
		}
	}
	p.each("u", u)
	p.line("const %s p = first + u * (%s)blockDim.x * %d;", p.index, p.index, v)
	p.line("left[u] = (%s)a.n - p;", p.index)
	for w := range p.v.Walks {
		shape := &p.v.Walks[w]
		p.line("{")
		p.place(w, "p", func(int) bool { return true }, func(i int, offset string) {
			if i >= len(p.k.Operands) || p.writes(i) {
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
			p.line("vector<%d, %s> y%d;", v, p.dtype(i), i)
		}
	}
	p.each("k", v)
	p.points(func(i int) string {
		w := p.home(p.way(i))
		return p.element(&p.v.Walks[w], w, i)
	}, func(operand uint64, value string) { p.line("y%d.x[k] = %s;", operand, value) })
	p.line("}")
	for i := range p.k.Operands {
		if used[i] && p.writes(i) {
			p.put(&p.v.Walks[p.home(i)], p.home(i), i)
		}
	}
	p.line("}")
	p.line("}")
}

// points computes all values of a map's point; element is what a LOAD or INDEX gives.
func (p *printer) points(element func(i int) string, store func(operand uint64, value string)) {
	for i := range p.k.Code {
		n := &p.k.Code[i]
		switch {
		case !p.needed[i] || p.level[i] != perPoint:
		case n.Op == kernel.Store:
			store(n.A, p.stored(n.A, plain(n.B)))
		case n.Op == kernel.Load || n.Op == kernel.Index:
			p.line("const %s r%d = %s;", register(n.Class), i, element(i))
		default:
			p.define(i, plain)
		}
	}
}

// transpose: a block has a square of the last two dims. What runs along the last but one is read and written that way, by rows, and turned
// in shared memory; the rest by columns. Neighbouring threads take neighbouring elements either way.
func (p *printer) transpose() {
	shape := &p.v.Walks[0]
	tile := p.tile(shape)
	step := mapThreads / tile
	steps := int(tile / step)
	r := shape.Rank
	used := p.used()
	p.begin(p.entries[0], mapThreads)
	for i := range p.k.Operands {
		if used[i] && shape.crossed(i) {
			p.line("__shared__ %s t%d[%d];", p.dtype(i), i, tile*pitch(tile, sizeOf(p.k.Operands[i].DType)))
		}
	}
	p.uniforms()
	p.line("const unsigned columns = ((unsigned)a.n0_%d + %d) / %d, rows = ((unsigned)a.n0_%d + %d) / %d;", r-1, tile-1, tile, r-2, tile-1, tile)
	p.line("const %s i0 = block %% columns * %d, j0 = block / columns %% rows * %d;", p.index, tile, tile)
	p.line("const %s na = (%s)a.n0_%d, nb = (%s)a.n0_%d;", p.index, p.index, r-1, p.index, r-2)
	if r > 2 {
		p.line("%s rest = block / columns / rows;", p.index)
	}
	for d := r - 3; d >= 0; d-- {
		p.line("const %s b%d = rest %% (%s)a.n0_%d;", p.index, d, p.index, d)
		p.line("rest /= (%s)a.n0_%d;", p.index, d)
	}
	for i, letters := range shape.Ways {
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
	at := func(way int) string { // of point i, j
		return fmt.Sprintf("g%d", way) + p.term(shape, way, r-1, "i") + p.term(shape, way, r-2, "j")
	}
	turned := func(way int) int64 { return pitch(tile, sizeOf(p.k.Operands[way].DType)) }
	// rows begins a loop over the points that a thread has along the dim that is last, or last but one.
	rows := func(last bool) {
		p.each("s", steps)
		if last {
			p.line("const %s i = i0 + x, j = j0 + y + s * %d;", p.index, step)
		} else {
			p.line("const %s i = i0 + y + s * %d, j = j0 + x;", p.index, step)
		}
		p.line("const int in = i < na && j < nb;")
	}
	crossedReads, crossedWrites := false, false
	for i := range p.k.Operands {
		if !used[i] {
			continue
		}
		if shape.crossed(i) {
			crossedReads = crossedReads || p.reads(i)
			crossedWrites = crossedWrites || p.writes(i)
		} else if p.reads(i) {
			p.line("vector<1, %s> x%d[%d];", p.dtype(i), i, steps)
		}
	}
	rows(true)
	for i := range p.k.Operands {
		if used[i] && p.reads(i) && !shape.crossed(i) {
			p.line("x%d[s] = load<1>(a.a%d + %s, in);", i, i, at(i))
		}
	}
	p.line("}")
	if crossedReads {
		rows(false)
		for i := range p.k.Operands {
			if used[i] && p.reads(i) && shape.crossed(i) {
				p.line("t%d[(y + s * %d) * %d + x] = load<1>(a.a%d + %s, in).x[0];", i, step, turned(i), i, at(i))
			}
		}
		p.line("}")
		p.line("__syncthreads();")
	}
	square := func(way int) string { return fmt.Sprintf("t%d[x * %d + y + s * %d]", way, turned(way), step) }
	rows(true)
	p.points(func(i int) string {
		way := p.way(i)
		switch {
		case way >= len(p.k.Operands):
			return at(way)
		case shape.crossed(way):
			return p.loaded(i, square(way))
		}
		return p.loaded(i, fmt.Sprintf("x%d[s].x[0]", way))
	}, func(operand uint64, value string) {
		way := int(operand)
		if shape.crossed(way) {
			p.line("%s = %s;", square(way), value)
		} else {
			p.line("if (in) a.a%d[%s] = %s;", way, at(way), value)
		}
	})
	p.line("}")
	if crossedWrites {
		p.line("__syncthreads();")
		rows(false)
		for i := range p.k.Operands {
			if used[i] && p.writes(i) && shape.crossed(i) {
				p.line("if (in) a.a%d[%s] = t%d[(y + s * %d) * %d + x];", i, at(i), i, step, turned(i))
			}
		}
		p.line("}")
	}
	p.line("}")
}

// term is what a dim adds to the offset of a way.
func (p *printer) term(shape *Pattern, way, d int, variable string) string {
	switch shape.Ways[way][d] {
	case '1':
		return " + " + variable
	case 's':
		return fmt.Sprintf(" + %s * (%s)a.s%d_0_%d", variable, p.index, way, d)
	}
	return ""
}
