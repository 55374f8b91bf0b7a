// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/kernel"
)

// reducer prints the entries of a reduction. An entry makes passes over a row's points. At the end of each pass, the
// threads of a row combine their partial results.
type reducer struct {
	*printer
	makes [][]bool // by pass
	kept  []bool   // values that stay in registers after the pass that computes them
	found []bool   // by way: an earlier pass has loaded its vectors
	order map[int]int
}

func (p *printer) reduction() {
	r := &reducer{printer: p, found: make([]bool, p.ways()), order: map[int]int{}}
	r.makes, r.kept = p.schedule(p.v.Template == Persistent)
	for i := range p.k.Code {
		if p.needed[i] && p.k.Code[i].Op.Reduces() {
			r.order[i] = len(r.order)
		}
	}
	if !p.v.Split {
		r.open(p.entries[0])
		for pass := range p.passes {
			r.rows(pass)
			r.pass(pass)
			r.eachReduction(pass, func(i int) { p.line("const %s r%d = %s;", r.wide(i), i, r.joined(i)) })
		}
		r.end()
		return
	}
	for pass, entry := range p.entries {
		r.open(entry)
		for before := range pass {
			r.rows(before)
			r.eachReduction(before, r.collect)
		}
		if entry == endEntry {
			r.end()
			return
		}
		r.rows(pass)
		r.pass(pass)
		r.eachReduction(pass, func(i int) {
			p.line("const %s r%d = %s;", r.wide(i), i, r.joined(i))
			p.line("if (in && lane == 0) *(%s*)((unsigned char*)a.scratch + 8 * (%s)) = r%d;", r.wide(i), r.slot(i, "part"), i)
		})
		p.line("}")
	}
}

// wide is the type of an accumulator, the type of its register class. ATen's CUDA kernels too sum floats in f32.
func (r *reducer) wide(i int) string { return register(r.k.Code[i].Class) }

// eachReduction calls do for each reduction of a pass.
func (r *reducer) eachReduction(pass int, do func(i int)) {
	for i := range r.k.Code {
		if r.k.Code[i].Op.Reduces() && r.roots(i, pass) {
			do(i)
		}
	}
}

// combiner returns the name of the prelude's struct that combines two values.
func (r *reducer) combiner(i int) string {
	return r.helper("reduce_" + r.k.Code[i].Op.String())
}

// joined returns the expression that combines the accumulators of all threads of a row.
func (r *reducer) joined(i int) string {
	way := "across"
	if r.v.Template == Column {
		way = "down"
	}
	return fmt.Sprintf("%s<%s>(acc%d, shared)", r.helper(way), r.combiner(i), i)
}

// slot is the place of a part's result in scratch memory, in units of 8 bytes. Neighbouring threads read neighbouring
// slots.
func (r *reducer) slot(i int, part string) string {
	if r.v.Template == Column {
		return fmt.Sprintf("(%d * a.parts + %s) * a.rows + row", r.order[i], part)
	}
	return fmt.Sprintf("(%d * a.rows + row) * a.parts + %s", r.order[i], part)
}

// collect combines the partial results of an earlier launch into the register of a reduction.
func (r *reducer) collect(i int) {
	n := &r.k.Code[i]
	r.line("%s acc%d = %s;", r.wide(i), i, identity(n.Op, n.Class))
	r.line("for (long long t = lane; t < a.parts; t += lanes) {")
	r.line("acc%d = %s::of(acc%d, *(const %s*)((const unsigned char*)a.scratch + 8 * (%s)));",
		i, r.combiner(i), i, r.wide(i), r.slot(i, "t"))
	r.line("}")
	r.line("const %s r%d = %s;", r.wide(i), i, r.joined(i))
}

// open begins an entry: it finds the row of a thread, and loads the values of the row before anything is written.
func (r *reducer) open(entry string) {
	r.begin(entry, reduceThreads)
	if len(r.order) > 0 {
		shared := reduceThreads / 32 // a value per warp
		if r.v.Template == Column {
			shared = reduceThreads
		}
		r.line("__shared__ unsigned long long shared[%d];", shared)
	}
	rows := "block"
	if r.v.Split && entry != endEntry {
		r.line("const unsigned part = block %% (unsigned)a.parts;")
		rows = "block / (unsigned)a.parts"
	}
	if r.v.Template == Column {
		r.line("const int lane = threadIdx.y, lanes = blockDim.y;")
		r.line("const %s place = (%s)(%s) * %d + threadIdx.x;", r.index, r.index, rows, columns)
	} else {
		r.line("const int lane = threadIdx.x, lanes = blockDim.x;")
		r.line("const %s place = (%s)(%s) * blockDim.y + threadIdx.y;", r.index, r.index, rows)
	}
	r.line("const bool in = place < a.rows;")
	r.line("const %s row = in ? place : 0;", r.index)
	switch {
	case entry == endEntry:
	case r.v.Split:
		r.line("const %s begin = (%s)part * (%s)a.part, most = (%s)a.n - begin;", r.index, r.index, r.index, r.index)
		r.line("const %s end = begin + (most < (%s)a.part ? most : (%s)a.part);", r.index, r.index, r.index)
	default:
		r.line("const %s begin = 0, end = (%s)a.n;", r.index, r.index)
	}
	r.uniforms()
	r.place(0, "row", func(int) bool { return true }, func(i int, offset string) {
		r.line("const %s g%d = %s;", r.index, i, offset)
	})
	for i := range r.k.Code {
		n := &r.k.Code[i]
		if r.needed[i] && n.Op == kernel.Load && r.level[i] == perRow {
			r.line("const %s r%d = %s;", register(n.Class), i, r.loaded(i, r.at(int(n.A), fmt.Sprintf("a.a%d + g%d", n.A, n.A))))
		}
	}
}

// rows computes the registers of rows of one stage: those that need this many reductions in a chain.
func (r *reducer) rows(stage int) {
	for i := range r.k.Code {
		n := &r.k.Code[i]
		switch {
		case !r.needed[i] || r.level[i] != perRow || r.stage[i] != stage || n.Op.Reduces() || n.Op == kernel.Store,
			n.Op == kernel.Load:
		case n.Op == kernel.Index:
			r.line("const long long r%d = g%d;", i, r.way(i))
		case n.Op == kernel.Take:
			r.line("const %s r%d = %s;", register(n.Class), i, r.loaded(i, r.take(i, fmt.Sprintf("g%d", n.A), plain(n.B))))
		default:
			r.define(i, plain)
		}
	}
}

// end computes the registers that depend on all reductions, and stores the values of rows.
func (r *reducer) end() {
	stages := r.passes
	for i := range r.stage {
		stages = max(stages, r.stage[i])
	}
	for s := r.passes; s <= stages; s++ {
		r.rows(s)
	}
	for i := range r.k.Code {
		if n := &r.k.Code[i]; n.Op == kernel.Store && r.level[i] != perPoint {
			r.line("if (in && lane == 0) a.a%d[g%d] = %s;", n.A, n.A, r.stored(n.A, plain(n.B)))
		}
	}
	r.line("}")
}

// pass prints the loop over the points of a row. In each step the threads of a row process neighbouring vectors, one
// each.
func (r *reducer) pass(pass int) {
	v, u := r.v.Vector, r.unroll
	shape := &r.v.Walks[1]
	persistent := r.v.Template == Persistent
	last := pass+1 == r.passes
	makes := r.makes[pass]
	var reads, places, writes []int // ways
	seen := map[int]bool{}
	for i := range r.k.Code {
		n := &r.k.Code[i]
		if !r.needed[i] || r.level[i] != perPoint {
			continue
		}
		switch {
		case n.Op == kernel.Load && makes[i] && !r.found[n.A] && !seen[int(n.A)]:
			seen[int(n.A)] = true
			reads = append(reads, int(n.A))
		case n.Op == kernel.Index && makes[i]:
			places = append(places, r.way(i))
		case n.Op == kernel.Take && makes[i] && !slices.Contains(places, int(n.A)):
			places = append(places, int(n.A))
		case n.Op == kernel.Store && last:
			places = append(places, int(n.A))
			writes = append(writes, int(n.A))
		}
	}
	if persistent {
		for _, way := range reads {
			r.declare(shape, way)
			r.found[way] = true
		}
		for i, is := range r.kept {
			if is && makes[i] && r.k.Code[i].Op != kernel.Load {
				r.line("%s k%d[%d];", register(r.k.Code[i].Class), i, u*v)
			}
		}
	}
	r.eachReduction(pass, func(i int) {
		r.line("%s acc%d = %s;", r.wide(i), i, identity(r.k.Code[i].Op, r.k.Code[i].Class))
	})
	first := fmt.Sprintf("%s base = begin + (%s)lane * %d", r.index, r.index, v)
	if persistent {
		r.line("{")
		r.line("const %s;", first)
	} else {
		r.line("for (%s; base < end; base += (%s)lanes * %d) {", first, r.index, u*v)
		for _, way := range reads {
			r.declare(shape, way)
		}
	}
	r.line("%s left[%d];", r.index, u)
	for _, way := range places {
		r.line("%s o%d[%d];", r.index, way, u)
	}
	r.each("u", u)
	r.line("const %s j = base + u * (%s)lanes * %d;", r.index, r.index, v)
	r.line("left[u] = in ? end - j : 0;")
	used := func(way int) bool { return slices.Contains(reads, way) || slices.Contains(places, way) }
	r.place(1, "j", used, func(way int, offset string) {
		if slices.Contains(places, way) {
			r.line("o%d[u] = g%d + %s;", way, way, offset)
		}
		if slices.Contains(reads, way) {
			r.access(shape, 1, way, fmt.Sprintf("g%d + %s", way, offset))
		}
	})
	r.line("}")
	r.each("u", u)
	for _, way := range writes {
		r.line("vector<%d, %s> y%d = {};", v, r.dtype(way), way)
	}
	r.each("k", v)
	r.compute(pass, makes, shape, v)
	r.line("}")
	for _, way := range writes {
		r.put(shape, 1, way)
	}
	r.line("}")
	r.line("}")
}

// compute prints the values of a point. Points beyond the end are computed from zeros, and left out of the reductions.
func (r *reducer) compute(pass int, makes []bool, shape *Pattern, v int) {
	from := func(reg uint64) string {
		if r.level[reg] == perPoint && !makes[reg] {
			if r.k.Code[reg].Op == kernel.Load {
				return r.element(shape, 1, int(reg), nil)
			}
			return fmt.Sprintf("k%d[u * %d + k]", reg, v)
		}
		return plain(reg)
	}
	for i := range r.k.Code {
		n := &r.k.Code[i]
		switch {
		case n.Op.Reduces() && r.roots(i, pass):
			r.line("if (k < left[u]) acc%d = %s::of(acc%d, %s);", i, r.combiner(i), i, from(n.A))
		case n.Op == kernel.Store && r.roots(i, pass):
			r.line("y%d.set(k, %s);", n.A, r.stored(n.A, from(n.B)))
		case !makes[i] || n.Op.Reduces() || n.Op == kernel.Store:
		case n.Op == kernel.Load || n.Op == kernel.Index:
			r.line("const %s r%d = %s;", register(n.Class), i, r.element(shape, 1, i, from))
		default:
			if n.Op == kernel.Take {
				r.line("const %s r%d = %s;", register(n.Class), i, r.element(shape, 1, i, from))
			} else {
				r.define(i, from)
			}
			if r.kept[i] {
				r.line("k%d[u * %d + k] = r%d;", i, v, i)
			}
		}
	}
}
