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
	// Vectors run along the points of a row. Those of Column run along the rows: a thread has several rows, and what it
	// computes of them lies in arrays.
	column bool
	walk   int // the walk along whose last dim vectors run
	along  int // the points of a row that a vector covers
}

func (p *printer) reduction() {
	r := &reducer{printer: p, found: make([]bool, p.ways()), order: map[int]int{}}
	r.makes, r.kept = p.schedule(p.v.Template == Persistent)
	r.column = p.v.Template == Column
	r.along, r.walk = p.v.Vector, 1
	if r.column {
		r.along, r.walk = 1, 0
	}
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
			r.eachReduction(pass, r.join)
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
			r.join(i)
			r.eachRow(func() {
				p.line("if (in && lane == 0) *(%s*)((unsigned char*)a.scratch + 8 * (%s)) = %s;",
					r.wide(i), r.slot(i, "part"), r.ofRow(uint64(i)))
			})
		})
		p.line("}")
	}
}

// eachRow prints code for each row of a thread.
func (r *reducer) eachRow(code func()) {
	if !r.column {
		code()
		return
	}
	r.each("k", r.v.Vector)
	code()
	r.line("}")
}

// defineRow prints the definition of a register that rows have.
func (r *reducer) defineRow(i int, value string) {
	if !r.column {
		r.line("const %s r%d = %s;", register(r.k.Code[i].Class), i, value)
		return
	}
	r.line("[[maybe_unused]] %s r%d[%d];", register(r.k.Code[i].Class), i, r.v.Vector)
	r.eachRow(func() { r.line("r%d[k] = %s;", i, value) })
}

// ofRow is the text of a register that is uniform, or that rows have.
func (r *reducer) ofRow(reg uint64) string {
	if r.column && r.level[reg] == perRow {
		return fmt.Sprintf("r%d[k]", reg)
	}
	return plain(reg)
}

// offset is the place of a row in an operand.
func (r *reducer) offset(way int) string {
	if !r.column {
		return fmt.Sprintf("g%d", way)
	}
	return r.across(&r.v.Walks[0], 0, way, fmt.Sprintf("g%d", way))
}

// accumulator is the name of a reduction's accumulator.
func (r *reducer) accumulator(i int) string {
	if r.column {
		return fmt.Sprintf("acc%d[k]", i)
	}
	return fmt.Sprintf("acc%d", i)
}

// start defines the accumulator of a reduction.
func (r *reducer) start(i int) {
	n := &r.k.Code[i]
	if !r.column {
		r.line("%s acc%d = %s;", r.wide(i), i, identity(n.Op, n.Class))
		return
	}
	r.line("%s acc%d[%d];", r.wide(i), i, r.v.Vector)
	r.eachRow(func() { r.line("acc%d[k] = %s;", i, identity(n.Op, n.Class)) })
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

// join combines the accumulators of all threads of a row.
func (r *reducer) join(i int) {
	way := "across"
	if r.column {
		way = "down"
	}
	r.defineRow(i, fmt.Sprintf("%s<%s>(%s, shared)", r.helper(way), r.combiner(i), r.accumulator(i)))
}

// slot is the place of a part's result in scratch memory, in units of 8 bytes. Neighbouring threads read neighbouring
// slots.
func (r *reducer) slot(i int, part string) string {
	if r.column {
		return fmt.Sprintf("(%d * a.parts + %s) * a.rows + row + k", r.order[i], part)
	}
	return fmt.Sprintf("(%d * a.rows + row) * a.parts + %s", r.order[i], part)
}

// collect combines the partial results of an earlier launch into the register of a reduction.
func (r *reducer) collect(i int) {
	r.start(i)
	r.line("for (long long t = lane; t < a.parts; t += lanes) {")
	r.eachRow(func() {
		r.line("%s = %s::of(%[1]s, *(const %[3]s*)((const unsigned char*)a.scratch + 8 * (%[4]s)));",
			r.accumulator(i), r.combiner(i), r.wide(i), r.slot(i, "t"))
	})
	r.line("}")
	r.join(i)
}

// open begins an entry: it finds the row of a thread, and loads the values of the row before anything is written.
func (r *reducer) open(entry string) {
	r.begin(entry, reduceThreads)
	if len(r.order) > 0 {
		shared := reduceThreads / 32 // a value per warp
		if r.column {
			shared = reduceThreads
		}
		r.line("__shared__ unsigned long long shared[%d];", shared)
	}
	rows := "block"
	if r.v.Split && entry != endEntry {
		r.line("const unsigned part = block %% (unsigned)a.parts;")
		rows = "block / (unsigned)a.parts"
	}
	if r.column {
		r.line("const int lane = threadIdx.y, lanes = blockDim.y;")
		r.line("const %s place = ((%s)(%s) * %d + threadIdx.x) * %d;", r.index, r.index, rows, columns, r.v.Vector)
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
	r.walkIndex(0, "row", func(int) bool { return true }, func(i int, offset string) {
		r.line("const %s g%d = %s;", r.index, i, offset)
	})
	for i := range r.k.Code {
		n := &r.k.Code[i]
		if r.needed[i] && n.Op == kernel.Load && r.level[i] == perRow {
			r.defineRow(i, r.loaded(i, r.at(int(n.A), fmt.Sprintf("a.a%d + %s", n.A, r.offset(int(n.A))))))
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
			r.defineRow(i, r.offset(r.way(i)))
		case n.Op == kernel.Take:
			r.defineRow(i, r.loaded(i, r.take(i, r.offset(int(n.A)), r.ofRow(n.B))))
		default:
			r.defineRow(i, r.value(i, r.ofRow))
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
			r.eachRow(func() {
				r.line("if (in && lane == 0) a.a%d[%s] = %s;", n.A, r.offset(int(n.A)), r.stored(n.A, r.ofRow(n.B)))
			})
		}
	}
	r.line("}")
}

// pass prints the loop over the points of a row. In each step the threads of a row process neighbouring vectors, one
// each.
func (r *reducer) pass(pass int) {
	v, u := r.v.Vector, r.unroll
	shape := &r.v.Walks[r.walk]
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
	r.eachReduction(pass, r.start)
	first := fmt.Sprintf("%s base = begin + (%s)lane * %d", r.index, r.index, r.along)
	if persistent {
		r.line("{")
		r.line("const %s;", first)
	} else {
		r.line("for (%s; base < end; base += (%s)lanes * %d) {", first, r.index, u*r.along)
		for _, way := range reads {
			r.declare(shape, way)
		}
	}
	r.line("%s left[%d];", r.index, u)
	for _, way := range places {
		r.line("%s o%d[%d];", r.index, way, u)
	}
	r.each("u", u)
	r.line("const %s j = base + u * (%s)lanes * %d;", r.index, r.index, r.along)
	r.line("left[u] = %s;", r.left())
	used := func(way int) bool { return slices.Contains(reads, way) || slices.Contains(places, way) }
	r.walkIndex(1, "j", used, func(way int, offset string) {
		if slices.Contains(places, way) {
			r.line("o%d[u] = g%d + %s;", way, way, offset)
		}
		if slices.Contains(reads, way) {
			r.access(shape, r.walk, way, fmt.Sprintf("g%d + %s", way, offset))
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
		r.put(shape, r.walk, way)
	}
	r.line("}")
	r.line("}")
}

// left is the number of elements of a vector that lie within the row, or in rows that exist.
func (r *reducer) left() string {
	if r.column {
		return fmt.Sprintf("in && j < end ? %d : 0", r.v.Vector)
	}
	return "in ? end - j : 0"
}

// compute prints the values of a point. Points beyond the end are computed from zeros, and left out of the reductions.
func (r *reducer) compute(pass int, makes []bool, shape *Pattern, v int) {
	from := func(reg uint64) string {
		if r.level[reg] == perPoint && !makes[reg] {
			if r.k.Code[reg].Op == kernel.Load {
				return r.element(shape, r.walk, int(reg), nil)
			}
			return fmt.Sprintf("k%d[u * %d + k]", reg, v)
		}
		return r.ofRow(reg)
	}
	for i := range r.k.Code {
		n := &r.k.Code[i]
		switch {
		case n.Op.Reduces() && r.roots(i, pass):
			r.line("if (k < left[u]) %s = %s::of(%[1]s, %[3]s);", r.accumulator(i), r.combiner(i), from(n.A))
		case n.Op == kernel.Store && r.roots(i, pass):
			r.line("y%d.set(k, %s);", n.A, r.stored(n.A, from(n.B)))
		case !makes[i] || n.Op.Reduces() || n.Op == kernel.Store:
		case n.Op == kernel.Load || n.Op == kernel.Index:
			r.line("const %s r%d = %s;", register(n.Class), i, r.element(shape, r.walk, i, from))
		default:
			if n.Op == kernel.Take {
				r.line("const %s r%d = %s;", register(n.Class), i, r.element(shape, r.walk, i, from))
			} else {
				r.define(i, from)
			}
			if r.kept[i] {
				r.line("k%d[u * %d + k] = r%d;", i, v, i)
			}
		}
	}
}
