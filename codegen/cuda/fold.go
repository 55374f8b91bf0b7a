// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/kernel"
)

// folder writes the entries of a fold: passes over a row's points, between which threads put together what each has
// folded.
type folder struct {
	*printer
	makes [][]bool // by pass
	kept  []bool   // in registers, from the pass that makes them
	found []bool   // vectors that are there from an earlier pass, by way
	order map[int]int
}

func (p *printer) folds() {
	f := &folder{printer: p, found: make([]bool, p.ways()), order: map[int]int{}}
	f.makes, f.kept = p.schedule(p.v.Template == Persistent)
	for i := range p.k.Code {
		if p.needed[i] && p.k.Code[i].Op.Reduces() {
			f.order[i] = len(f.order)
		}
	}
	if !p.v.Split {
		f.open(p.entries[0])
		for pass := range p.passes {
			f.rows(pass)
			f.pass(pass)
			f.eachFold(pass, func(i int) { p.line("const %s r%d = %s;", f.wide(i), i, f.joined(i)) })
		}
		f.end()
		return
	}
	for pass, entry := range p.entries {
		f.open(entry)
		for before := range pass {
			f.rows(before)
			f.eachFold(before, f.collect)
		}
		if entry == endEntry {
			f.end()
			return
		}
		f.rows(pass)
		f.pass(pass)
		f.eachFold(pass, func(i int) {
			p.line("const %s r%d = %s;", f.wide(i), i, f.joined(i))
			p.line("if (in && lane == 0) *(%s*)((unsigned char*)a.scratch + 8 * (%s)) = r%d;", f.wide(i), f.slot(i, "part"), i)
		})
		p.line("}")
	}
}

// wide is the type in which a fold is made, that of its class: as on ATen's CUDA, where floats are summed in f32.
func (f *folder) wide(i int) string { return register(f.k.Code[i].Class) }

// eachFold is called for the folds of a pass.
func (f *folder) eachFold(pass int, do func(i int)) {
	for i := range f.k.Code {
		if f.k.Code[i].Op.Reduces() && f.roots(i, pass) {
			do(i)
		}
	}
}

// merger is the name of the prelude's struct that folds two values.
func (f *folder) merger(i int) string {
	return f.helper("fold_" + f.k.Code[i].Op.String())
}

// joined is what the threads of a row have folded, together.
func (f *folder) joined(i int) string {
	way := "across"
	if f.v.Template == Column {
		way = "down"
	}
	return fmt.Sprintf("%s<%s>(f%d, shared)", f.helper(way), f.merger(i), i)
}

// slot is where a part's result lies, in units of 8 bytes: so that the threads that read them read neighbours.
func (f *folder) slot(i int, part string) string {
	if f.v.Template == Column {
		return fmt.Sprintf("(%d * a.parts + %s) * a.rows + row", f.order[i], part)
	}
	return fmt.Sprintf("(%d * a.rows + row) * a.parts + %s", f.order[i], part)
}

// collect makes the register of a fold from the parts that an earlier launch has left.
func (f *folder) collect(i int) {
	n := &f.k.Code[i]
	f.line("%s f%d = %s;", f.wide(i), i, identity(n.Op, n.Class))
	f.line("for (long long t = lane; t < a.parts; t += lanes) {")
	f.line("f%d = %s::of(f%d, *(const %s*)((const unsigned char*)a.scratch + 8 * (%s)));",
		i, f.merger(i), i, f.wide(i), f.slot(i, "t"))
	f.line("}")
	f.line("const %s r%d = %s;", f.wide(i), i, f.joined(i))
}

// open begins an entry: which row a thread has, and what that reads before anything is written.
func (f *folder) open(entry string) {
	f.begin(entry, foldThreads)
	if len(f.order) > 0 {
		shared := foldThreads / 32 // a value per warp
		if f.v.Template == Column {
			shared = foldThreads
		}
		f.line("__shared__ unsigned long long shared[%d];", shared)
	}
	rows := "block"
	if f.v.Split && entry != endEntry {
		f.line("const unsigned part = block %% (unsigned)a.parts;")
		rows = "block / (unsigned)a.parts"
	}
	if f.v.Template == Column {
		f.line("const int lane = threadIdx.y, lanes = blockDim.y;")
		f.line("const %s place = (%s)(%s) * %d + threadIdx.x;", f.index, f.index, rows, columns)
	} else {
		f.line("const int lane = threadIdx.x, lanes = blockDim.x;")
		f.line("const %s place = (%s)(%s) * blockDim.y + threadIdx.y;", f.index, f.index, rows)
	}
	f.line("const bool in = place < a.rows;")
	f.line("const %s row = in ? place : 0;", f.index)
	switch {
	case entry == endEntry:
	case f.v.Split:
		f.line("const %s begin = (%s)part * (%s)a.part, most = (%s)a.n - begin;", f.index, f.index, f.index, f.index)
		f.line("const %s end = begin + (most < (%s)a.part ? most : (%s)a.part);", f.index, f.index, f.index)
	default:
		f.line("const %s begin = 0, end = (%s)a.n;", f.index, f.index)
	}
	f.uniforms()
	f.place(0, "row", func(int) bool { return true }, func(i int, offset string) {
		f.line("const %s g%d = %s;", f.index, i, offset)
	})
	for i := range f.k.Code {
		n := &f.k.Code[i]
		if f.needed[i] && n.Op == kernel.Load && f.level[i] == perRow {
			f.line("const %s r%d = %s;", register(n.Class), i, f.loaded(i, fmt.Sprintf("a.a%d[g%d]", n.A, n.A)))
		}
	}
}

// rows makes the registers of rows that the folds so far allow, and those before not yet.
func (f *folder) rows(stage int) {
	for i := range f.k.Code {
		n := &f.k.Code[i]
		switch {
		case !f.needed[i] || f.level[i] != perRow || f.stage[i] != stage || n.Op.Reduces() || n.Op == kernel.Store,
			n.Op == kernel.Load:
		case n.Op == kernel.Index:
			f.line("const long long r%d = g%d;", i, f.way(i))
		default:
			f.define(i, plain)
		}
	}
}

// end makes what depends on all folds, and writes what rows have.
func (f *folder) end() {
	stages := f.passes
	for i := range f.stage {
		stages = max(stages, f.stage[i])
	}
	for s := f.passes; s <= stages; s++ {
		f.rows(s)
	}
	for i := range f.k.Code {
		if n := &f.k.Code[i]; n.Op == kernel.Store && f.level[i] != perPoint {
			f.line("if (in && lane == 0) a.a%d[g%d] = %s;", n.A, n.A, f.stored(n.A, plain(n.B)))
		}
	}
	f.line("}")
}

// pass goes over the points of a row: a thread takes vectors that lie as far apart as all threads of the row take at
// once.
func (f *folder) pass(pass int) {
	v, u := f.v.Vector, f.unroll
	shape := &f.v.Walks[1]
	persistent := f.v.Template == Persistent
	last := pass+1 == f.passes
	makes := f.makes[pass]
	var reads, places, writes []int // ways
	seen := map[int]bool{}
	for i := range f.k.Code {
		n := &f.k.Code[i]
		if !f.needed[i] || f.level[i] != perPoint {
			continue
		}
		switch {
		case n.Op == kernel.Load && makes[i] && !f.found[n.A] && !seen[int(n.A)]:
			seen[int(n.A)] = true
			reads = append(reads, int(n.A))
		case n.Op == kernel.Index && makes[i]:
			places = append(places, f.way(i))
		case n.Op == kernel.Store && last:
			places = append(places, int(n.A))
			writes = append(writes, int(n.A))
		}
	}
	if persistent {
		for _, way := range reads {
			f.declare(shape, way)
			f.found[way] = true
		}
		for i, is := range f.kept {
			if is && makes[i] && f.k.Code[i].Op != kernel.Load {
				f.line("%s k%d[%d];", register(f.k.Code[i].Class), i, u*v)
			}
		}
	}
	f.eachFold(pass, func(i int) { f.line("%s f%d = %s;", f.wide(i), i, identity(f.k.Code[i].Op, f.k.Code[i].Class)) })
	first := fmt.Sprintf("%s base = begin + (%s)lane * %d", f.index, f.index, v)
	if persistent {
		f.line("{")
		f.line("const %s;", first)
	} else {
		f.line("for (%s; base < end; base += (%s)lanes * %d) {", first, f.index, u*v)
		for _, way := range reads {
			f.declare(shape, way)
		}
	}
	f.line("%s left[%d];", f.index, u)
	for _, way := range places {
		f.line("%s o%d[%d];", f.index, way, u)
	}
	f.each("u", u)
	f.line("const %s j = base + u * (%s)lanes * %d;", f.index, f.index, v)
	f.line("left[u] = in ? end - j : 0;")
	used := func(way int) bool { return slices.Contains(reads, way) || slices.Contains(places, way) }
	f.place(1, "j", used, func(way int, offset string) {
		if slices.Contains(places, way) {
			f.line("o%d[u] = g%d + %s;", way, way, offset)
		}
		if slices.Contains(reads, way) {
			f.access(shape, 1, way, fmt.Sprintf("g%d + %s", way, offset))
		}
	})
	f.line("}")
	f.each("u", u)
	for _, way := range writes {
		f.line("vector<%d, %s> y%d;", v, f.dtype(way), way)
	}
	f.each("k", v)
	f.compute(pass, makes, shape, v)
	f.line("}")
	for _, way := range writes {
		f.put(shape, 1, way)
	}
	f.line("}")
	f.line("}")
}

// compute makes the values of a point. What is beyond the end is computed too, of zeros, and not folded.
func (f *folder) compute(pass int, makes []bool, shape *Pattern, v int) {
	from := func(reg uint64) string {
		if f.level[reg] == perPoint && !makes[reg] {
			if f.k.Code[reg].Op == kernel.Load {
				return f.element(shape, 1, int(reg))
			}
			return fmt.Sprintf("k%d[u * %d + k]", reg, v)
		}
		return plain(reg)
	}
	for i := range f.k.Code {
		n := &f.k.Code[i]
		switch {
		case n.Op.Reduces() && f.roots(i, pass):
			f.line("if (k < left[u]) f%d = %s::of(f%d, %s);", i, f.merger(i), i, from(n.A))
		case n.Op == kernel.Store && f.roots(i, pass):
			f.line("y%d.x[k] = %s;", n.A, f.stored(n.A, from(n.B)))
		case !makes[i] || n.Op.Reduces() || n.Op == kernel.Store:
		case n.Op == kernel.Load || n.Op == kernel.Index:
			f.line("const %s r%d = %s;", register(n.Class), i, f.element(shape, 1, i))
		default:
			f.define(i, from)
			if f.kept[i] {
				f.line("k%d[u * %d + k] = r%d;", i, v, i)
			}
		}
	}
}
