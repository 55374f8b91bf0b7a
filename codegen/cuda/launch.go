// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"slices"

	"github.com/mycelya/mycelya/kernel"
)

const (
	// mapThreads is the largest block of a map: eight warps. An SM holds eight such blocks with 32 registers a thread, or
	// four with 64.
	mapThreads = 256
	// reduceThreads is the largest block of a reduction: sixteen warps with up to 128 registers a thread. With 1,024
	// threads it would be 64 registers.
	reduceThreads = 512
	// inFlight is the number of bytes that a thread loads before it waits. An SM of an H100 needs about 3.35 TB/s * 600 ns
	// / 132 = 15 KiB of loads in flight, and half of its 2,048 threads have 64 KiB.
	inFlight = 64
	// mostInFlight keeps the loads of a thread within 32 registers.
	mostInFlight = 128
	// mostElements limits the elements of one way that a thread processes at once. On B200 and GB300 four elements reach a
	// third to two thirds of the bandwidth, and sixteen reach all of it (pytorch/pytorch#193774).
	mostElements = 16
	// mostRegisters limits the registers for loaded elements and their addresses. A thread should have 64 registers in
	// all.
	mostRegisters = 40
	// mostOfRows limits the registers for what a thread of Column keeps of its rows.
	mostOfRows = 32
	// mostCode keeps unrolled code within the instruction cache of 128 KiB, and the compile time short.
	mostCode = 2048
	// columns is the number of rows of a block of Column: one warp.
	columns = 32
	// reduceBlocks is the number of blocks of a reduction, of 512 threads each, that an SM should have.
	reduceBlocks = 2
	// mostParts limits the parts of a split row. Each block of the next launch combines all of them.
	mostParts = 512
	// sharedBytes is the static shared memory that a block may have on every architecture.
	sharedBytes = 48 << 10
)

// choice is an instance with its variant.
type choice struct {
	variant Variant
	index   int // number of the instance
	at      *Instance
	walks   []*walk
	lanes   int   // threads of a row
	parts   int64 // parts of a row; each is the work of one block
	part    int64 // points of one part
	scratch int64 // offset in the launch's scratch memory
}

func powerOfTwo(n int64) int64 {
	p := int64(1)
	for p < n {
		p *= 2
	}
	return p
}

func ceil(a, b int64) int64 { return (a + b - 1) / b }

// choose chooses the variant of an instance. It returns nil for an instance without points.
func (c *code) choose(at *Instance, d Device) *choice {
	p := &choice{at: at, walks: c.walks(at), lanes: 1, parts: 1}
	if p.walks[0].points == 0 {
		return nil
	}
	p.variant.Wide = !c.small(at, p.walks)
	if c.k.Reduced > 0 {
		c.chooseReduction(p, d)
	} else {
		c.chooseMap(p)
	}
	p.variant.Apart = p.variant.Template != Persistent && c.apart(at) // Persistent reads each row once, before it writes
	return p
}

// apart reports whether the operands that an instance only reads share no buffer with those that it writes. Nothing
// writes them during the launch, since other instances do not depend on this one.
func (c *code) apart(at *Instance) bool {
	for i, read := range c.k.Operands {
		for j, written := range c.k.Operands {
			if read.Access&kernel.Write == 0 && written.Access&kernel.Write != 0 &&
				at.Operands[i].Buffer == at.Operands[j].Buffer {
				return false
			}
		}
	}
	return true
}

func (c *code) chooseMap(p *choice) {
	v := &p.variant
	used := c.used()
	v.Template = Pointwise
	if len(p.walks) == 1 && c.cross(p.walks[0], used) {
		v.Template, v.Vector = Transpose, 1
		v.Walks = []Pattern{c.pattern(p.walks[0], used)}
		return
	}
	for f, w := range p.walks {
		here := slices.Clone(used)
		for i, o := range c.k.Operands {
			here[i] = here[i] && o.Space == f
		}
		for i := range c.index {
			here[len(c.k.Operands)+i] = f == 0
		}
		v.Walks = append(v.Walks, c.pattern(w, here))
	}
	v.Vector = c.vector(p, p.walks, v.Walks)
}

// cross reports whether a map should use Transpose. If so, it moves the dim along which most bytes are contiguous to
// the last dim but one.
func (c *code) cross(w *walk, used []bool) bool {
	r := w.rank()
	if r < 2 || w.sizes[r-1] < 8 {
		return false
	}
	best, most := -1, int64(0)
	for d := range r - 1 {
		bytes := int64(0)
		for i := range c.k.Operands {
			if used[i] && !c.taken(i) && w.strides[i][d] == 1 && w.strides[i][r-1] > 1 {
				bytes += sizeOf(c.k.Operands[i].DType)
			}
		}
		if w.sizes[d] >= 8 && bytes > most {
			best, most = d, bytes
		}
	}
	if best < 0 {
		return false
	}
	sizes := append(slices.Clone(w.sizes[:best]), w.sizes[best+1:r-1]...)
	turned := &walk{points: w.points, sizes: append(sizes, w.sizes[best], w.sizes[r-1])}
	for _, s := range w.strides {
		turned.strides = append(turned.strides, append(append(slices.Clone(s[:best]), s[best+1:r-1]...), s[best], s[r-1]))
	}
	shape := c.pattern(turned, used)
	if tile := c.tile(&shape); c.tileBytes(&shape) > sharedBytes || tile*tile/mapThreads*int64(c.weight()) > mostCode {
		return false
	}
	*w = *turned
	return true
}

// tile is the side of the squares that a map of this pattern transposes. A row has at least 64 bytes, two sectors of
// memory.
func (c *code) tile(p *Pattern) int64 {
	for i := range c.k.Operands {
		if p.Ways[i] != "-" && sizeOf(c.k.Operands[i].DType) > 2 {
			return 32
		}
	}
	return 64
}

// pitch is the length of a square's row in shared memory. A row is padded by one word of four bytes, so that the
// elements of a column are in different banks.
func pitch(tile, size int64) int64 { return tile + max(1, 4/size) }

func (c *code) tileBytes(p *Pattern) int64 {
	bytes, tile := int64(0), c.tile(p)
	for i := range c.k.Operands {
		if p.crossed(i) {
			size := sizeOf(c.k.Operands[i].DType)
			bytes += ceil(tile*pitch(tile, size)*size, 16) * 16
		}
	}
	return bytes
}

// streams is the number of bytes per point that a map, or a pass of a reduction, reads and that no neighbouring point
// reads.
func (c *code) streams(patterns []Pattern) int64 {
	bytes := int64(0)
	for i, o := range c.k.Operands {
		for j := range patterns {
			if o.Access&kernel.Read != 0 && patterns[j].inner(i) != '0' {
				bytes += sizeOf(o.DType)
			}
		}
	}
	return bytes
}

// vector is the number of elements of one access: 16 bytes of the widest operand, or fewer if an access is not aligned,
// or if it takes too many registers or too much code.
func (c *code) vector(p *choice, vectored []*walk, patterns []Pattern) int {
	widest := int64(0)
	for i, o := range c.k.Operands {
		for j := range patterns {
			if patterns[j].inner(i) == '1' {
				widest = max(widest, sizeOf(o.DType))
			}
		}
	}
	if widest == 0 {
		return 1
	}
	v := 16 / widest
	for v > 1 && (!c.aligned(p, vectored, patterns, v) || v*c.streams(patterns) > mostInFlight ||
		v*int64(c.weight()) > mostCode) {
		v /= 2
	}
	return int(v)
}

func (c *code) aligned(p *choice, vectored []*walk, patterns []Pattern, v int64) bool {
	for j, w := range vectored {
		if r := w.rank(); r > 1 || len(vectored) > 1 && r == 1 {
			if w.sizes[r-1]%v != 0 {
				return false
			}
		}
		for i, o := range c.k.Operands {
			if patterns[j].inner(i) != '1' {
				continue
			}
			if p.at.Operands[i].Address%uint64(min(16, v*sizeOf(o.DType))) != 0 {
				return false
			}
			for _, other := range p.walks {
				for d, s := range other.strides[i] {
					if (other != w || d < w.rank()-1) && s%v != 0 {
						return false
					}
				}
			}
		}
	}
	return true
}

// unroll is the number of vectors that a thread processes at once.
func (c *code) unroll(v *Variant) int {
	patterns := v.Walks
	if c.k.Reduced > 0 {
		patterns = v.Walks[1:]
	}
	if v.Template == Persistent {
		return c.persistent() / v.Vector
	}
	bytes, ways := max(1, c.streams(patterns))*int64(v.Vector), int64(0)
	for i := range patterns {
		for _, letters := range patterns[i].Ways {
			ways += int64(btoi(letters != "-"))
		}
	}
	u := 1
	for int64(u)*bytes < inFlight && u*2*v.Vector <= mostElements && u*2*v.Vector*c.weight() <= mostCode &&
		2*int64(u)*(bytes/4+ways) <= mostRegisters {
		u *= 2
	}
	return u
}

// persistent is the number of points of a row that a thread keeps. Their values take at most 40 registers, fewer if the
// addresses of many operands take some; the elements that a pass loads at once take at most 64.
func (c *code) persistent() int {
	kept, loaded := c.ofPoint()
	e := mostElements
	for e > 1 && (e*kept > 40-max(0, 4*(c.ways()-4)) || e*loaded > 4*64 || e*c.weight() > mostCode) {
		e /= 2
	}
	return e
}

func (c *code) chooseReduction(p *choice, d Device) {
	v := &p.variant
	rows, points := p.walks[0], p.walks[1]
	used := c.used()
	kept := Pattern{Rank: rows.rank(), Ways: make([]string, c.ways())}
	for i := range kept.Ways { // every stride of rows is an argument, 1 too: a thread uses it only once
		if i < len(c.k.Operands) && !c.touched(i) {
			kept.Ways[i] = "-"
			continue
		}
		letters := make([]byte, rows.rank())
		for d := range letters {
			letters[d] = "0s"[btoi(c.runsKept(i))]
		}
		kept.Ways[i] = string(letters)
	}
	v.Walks = []Pattern{kept, c.pattern(points, used)}
	switch {
	case c.columns(rows, points, used):
		v.Template = Column
		c.chooseColumns(p)
	default:
		v.Vector = c.vector(p, p.walks[1:], v.Walks[1:])
		v.Template = Looped
		if e := int64(c.persistent()); points.points <= reduceThreads*e {
			v.Template = Persistent
			v.Vector = int(min(int64(v.Vector), e))
			p.lanes = int(powerOfTwo(ceil(points.points, e)))
			return
		}
	}
	step := int64(c.unroll(v)) // points of a thread at once
	var blocks int64
	if v.Template == Column {
		p.lanes = int(min(reduceThreads/columns, powerOfTwo(ceil(points.points, step))))
		blocks = ceil(rows.points, int64(columns*v.Vector))
	} else {
		step *= int64(v.Vector)
		p.lanes = reduceThreads
		blocks = rows.points
	}
	p.part = points.points
	if want := reduceBlocks * int64(max(1, d.SMs)); blocks < want/2 {
		least := int64(p.lanes) * step
		parts := min(ceil(want, blocks), points.points/least, mostParts)
		if parts > 1 {
			v.Split = true
			p.part = ceil(ceil(points.points, parts), least) * least
			p.parts = ceil(points.points, p.part)
		}
	}
}

// placeColumns chooses the rows of a thread of Column: as many neighbours as one access has.
func (c *code) chooseColumns(p *choice) {
	v, rows := &p.variant, p.walks[0]
	used := make([]bool, c.ways())
	for i := range used {
		used[i] = i >= len(c.k.Operands) || c.touched(i)
	}
	shape := c.pattern(rows, used)
	v.Vector = c.vector(p, p.walks[:1], []Pattern{shape})
	for v.Vector > 1 && (rows.sizes[rows.rank()-1]%int64(v.Vector) != 0 || v.Vector*c.rowValues() > mostOfRows) {
		v.Vector /= 2
	}
	if v.Vector > 1 {
		v.Walks[0] = shape
	}
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

// runsKept reports whether a way runs along dims that are not reduced.
func (c *code) runsKept(way int) bool {
	kept := c.k.Spaces[0] - c.k.Reduced
	if way >= len(c.k.Operands) {
		return c.index[way-len(c.k.Operands)] < kept
	}
	return slices.ContainsFunc(c.k.Operands[way].Along, func(d int8) bool { return d >= 0 && int(d) < kept })
}

// columns reports whether more bytes are contiguous from row to row than from point to point within a row.
func (c *code) columns(rows, points *walk, used []bool) bool {
	if rows.points < 16 || rows.rank() == 0 || points.rank() == 0 {
		return false
	}
	along, across := int64(0), int64(0)
	for i, o := range c.k.Operands {
		if !used[i] {
			continue
		}
		inner := points.strides[i][points.rank()-1]
		if inner == 1 {
			along += sizeOf(o.DType)
		}
		if rows.strides[i][rows.rank()-1] == 1 && inner != 0 {
			across += sizeOf(o.DType)
		}
	}
	return across > along
}

// launch returns the launches of a variant, each for all of its instances.
func (c *code) launch(v Variant, at []*choice, d Device) []Launch {
	for _, p := range at {
		p.variant = v
	}
	l := layout(c, &v)
	v.Table = len(at) > 1 || len(l.fields)*8 > maxParameters
	threads, blocks := c.shape(&v, at, d)
	scratch := int64(0)
	if v.Split {
		for _, p := range at {
			p.scratch = scratch
			scratch += int64(c.reductions()) * 8 * p.walks[0].points * p.parts
		}
	}
	var args [][]uint64
	var instances []int
	for _, p := range at {
		args = append(args, l.words(p))
		instances = append(instances, p.index)
	}
	var out []Launch
	for _, entry := range c.entries(&v) {
		launch := Launch{
			Variant: v, Entry: entry, Block: threads, Args: args, Instances: instances, Pointers: l.pointers, Numbers: l.numbers,
			Scratch: scratch, ScratchWord: l.scratch}
		for i, p := range at {
			n := blocks[i]
			if v.Split && entry != endEntry {
				n *= p.parts
			}
			launch.Grid += uint32(n)
			if v.Table {
				for b := range n {
					launch.Chunks = append(launch.Chunks, uint64(i)|uint64(b)<<32)
				}
			}
		}
		out = append(out, launch)
	}
	return out
}

// shape returns the threads of a block, and the number of blocks of each instance, not counting the parts of rows.
func (c *code) shape(v *Variant, at []*choice, d Device) (threads [2]uint32, blocks []int64) {
	lanes := int64(1)
	for _, p := range at {
		lanes = max(lanes, int64(p.lanes))
	}
	each := int64(1)
	switch v.Template {
	case Pointwise:
		points := int64(0)
		for _, p := range at {
			points += p.walks[0].points
		}
		each = int64(v.Vector * c.unroll(v))
		x := int64(mapThreads)
		for x > 32 && ceil(points, x*each) < int64(d.SMs) { // smaller blocks, so that each SM has one
			x /= 2
		}
		each *= x
		threads = [2]uint32{uint32(x), 1}
	case Transpose:
		threads = [2]uint32{mapThreads, 1}
	case Persistent, Looped:
		each = max(1, 128/lanes)
		threads = [2]uint32{uint32(lanes), uint32(each)}
	case Column:
		each = int64(columns * v.Vector)
		threads = [2]uint32{columns, uint32(lanes)}
	}
	for _, p := range at {
		w := p.walks[0]
		n := ceil(w.points, each)
		if v.Template == Transpose {
			tile, r := c.tile(&v.Walks[0]), w.rank()
			n = w.points / (w.sizes[r-2] * w.sizes[r-1]) * ceil(w.sizes[r-2], tile) * ceil(w.sizes[r-1], tile)
		}
		blocks = append(blocks, n)
	}
	return threads, blocks
}

// rowValues counts the values of a row that a thread keeps while it passes over points.
func (c *code) rowValues() int {
	read := make([]bool, len(c.k.Code))
	for i := range c.k.Code {
		n := &c.k.Code[i]
		if !c.needed[i] || c.level[i] != perPoint && !n.Op.Reduces() {
			continue
		}
		read[i] = n.Op.Reduces()
		for _, r := range registers(n) {
			read[r] = read[r] || c.level[r] == perRow
		}
	}
	count := 0
	for _, is := range read {
		count += btoi(is)
	}
	return count
}

// reductions counts the reductions of the code.
func (c *code) reductions() int {
	n := 0
	for i := range c.k.Code {
		if c.needed[i] && c.k.Code[i].Op.Reduces() {
			n++
		}
	}
	return n
}
