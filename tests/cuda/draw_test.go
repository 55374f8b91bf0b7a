// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
)

// drawer draws kernels and their data.
type drawer struct {
	*rand.Rand
	k       *kernel.Kernel
	inexact []bool // by register: its last places depend on the library or the reduction order
}

func (d *drawer) pick(n int) int          { return d.IntN(n) }
func (d *drawer) chance(p float64) bool   { return d.Float64() < p }
func oneOf[T any](d *drawer, list ...T) T { return list[d.pick(len(list))] }

// dtypes of operands. The dtypes of real programs come more often.
var dtypes = []uint8{7, 7, 7, 13, 13, 6, 8, 5, 4, 12, 1, 2, 3, 18, 19}

// kernel draws a kernel with few operands and instructions, of all kinds.
func (d *drawer) kernel() *kernel.Kernel {
	d.k = &kernel.Kernel{Numbers: d.pick(3)}
	d.inexact = nil
	k := d.k
	switch rank := d.pick(5); {
	case d.chance(0.5):
		rank = 1 + d.pick(4)
		k.Spaces, k.Reduced = []int{rank}, 1+d.pick(rank)
	case d.chance(0.15):
		k.Spaces = []int{rank, d.pick(4), d.pick(4)}[:2+d.pick(2)]
	default:
		k.Spaces = []int{rank}
	}
	for range 1 + d.pick(4) {
		frame := d.pick(len(k.Spaces))
		dims := d.Perm(k.Spaces[frame])
		dims = dims[:len(dims)-d.pick(len(dims)+1)*btoi(d.chance(0.5))]
		if d.chance(0.5) { // most operands have their dims in order
			dims = sorted(dims)
		}
		d.operand(kernel.Read, frame, dims)
	}
	reads := len(k.Operands)
	for i := range reads {
		d.emit(kernel.Instr{Op: kernel.Load, Class: kernel.ClassOf(k.Operands[i].DType), A: uint64(i)}, false)
	}
	for i := range k.Numbers {
		d.emit(kernel.Instr{Op: kernel.Number, Class: oneOf(d, kernel.F32, kernel.F64, kernel.I64, kernel.B8),
			A: uint64(i)}, false)
	}
	for range d.pick(14) + 1 {
		d.instr()
	}
	for range 1 + d.pick(2) {
		d.store()
	}
	return k
}

func btoi(b bool) int {
	if b {
		return 1
	}
	return 0
}

func sorted(dims []int) []int {
	seen := map[int]bool{}
	for _, v := range dims {
		seen[v] = true
	}
	out := dims[:0]
	for v := range kernel.MaxRank {
		if seen[v] {
			out = append(out, v)
		}
	}
	return out
}

func (d *drawer) operand(access kernel.Access, frame int, dims []int) {
	o := kernel.Operand{DType: oneOf(d, dtypes...), Access: access, Space: frame, Along: []int8{}}
	for _, v := range dims {
		if d.chance(0.1) {
			o.Along = append(o.Along, -1)
		}
		o.Along = append(o.Along, int8(v))
	}
	d.k.Operands = append(d.k.Operands, o)
}

func (d *drawer) emit(n kernel.Instr, inexact bool) uint64 {
	d.k.Code = append(d.k.Code, n)
	d.inexact = append(d.inexact, inexact)
	return uint64(len(d.k.Code) - 1)
}

// register draws a register of a class. With exact, it draws an exact one.
func (d *drawer) register(c kernel.Class, exact bool) (uint64, bool) {
	for range 20 {
		i := len(d.k.Code) - 1 - d.pick(len(d.k.Code))
		if d.k.Code[i].Class == c && d.k.Code[i].Op != kernel.Store && !(exact && d.inexact[i]) {
			return uint64(i), true
		}
	}
	return 0, false
}

// smooth reports whether a small error of an operand remains a small error of the result.
func smooth(op kernel.Op) bool {
	switch op {
	case kernel.Neg, kernel.Abs, kernel.Relu, kernel.Tanh, kernel.Sigmoid, kernel.Erf, kernel.Add, kernel.Sub,
		kernel.Maximum, kernel.Minimum, kernel.Sum, kernel.Max, kernel.Min,
		kernel.Round, kernel.Cast:
		return true
	}
	return false
}

// rough reports whether the last places of a result depend on the library or on the order of a sum.
func rough(op kernel.Op) bool {
	switch op {
	case kernel.Rsqrt:
		return true
	case kernel.Fmod, kernel.Remainder:
		return false
	}
	return op.Row().Cost == catalogue.CostFunction
}

// taint returns which registers of a kernel are inexact. It returns false if a small error may become a large one.
func taint(k *kernel.Kernel) (inexact []bool, steady bool) {
	steady = true
	inexact = make([]bool, len(k.Code))
	use := func(i int, from uint64) {
		switch op := k.Code[i].Op; {
		case !inexact[from]:
			return
		case op == kernel.Floor, op == kernel.Ceil, op == kernel.Trunc, op == kernel.Nearest, op == kernel.Sign,
			op == kernel.Fmod, op == kernel.Remainder,
			op >= kernel.Eq && op <= kernel.Ge, op == kernel.Cast &&
				(k.Code[i].Class == kernel.I64 || k.Code[i].Class == kernel.B8):
			steady = false
		}
		inexact[i] = true
	}
	for i, n := range k.Code {
		inexact[i] = rough(n.Op) || n.Op == kernel.Sum && n.Class != kernel.I64
		switch {
		case n.Op == kernel.Store:
			use(i, n.B)
		case n.Op == kernel.Take: // its position is exact
		case n.Op > kernel.Index:
			use(i, n.A)
			if n.Op >= kernel.Add {
				use(i, n.B)
			}
			if n.Op >= kernel.Fma {
				use(i, n.C)
			}
		}
	}
	return inexact, steady
}

func (d *drawer) instr() {
	k := d.k
	c := oneOf(d, kernel.F32, kernel.F32, kernel.F32, kernel.F64, kernel.I64, kernel.B8)
	switch d.pick(14) {
	case 12, 13:
		d.take()
	case 0:
		bits := math.Float64bits(oneOf(d, 0.5, -2, 3, math.Inf(1), math.Inf(-1), math.NaN(), math.Copysign(0, -1), 1e-40,
			1e300, 0.1))
		switch c {
		case kernel.I64:
			bits = oneOf(d, 0, 3, uint64(1)<<63, math.MaxUint64, math.MaxInt64)
		case kernel.B8:
			bits = uint64(d.pick(2))
		}
		d.emit(kernel.Instr{Op: kernel.Const, Class: c, A: bits}, false)
	case 1:
		if k.Spaces[0] > 0 {
			d.emit(kernel.Instr{Op: kernel.Index, Class: kernel.I64, A: uint64(d.pick(k.Spaces[0]))}, false)
		}
	case 2:
		if k.Reduced > 0 && c != kernel.B8 {
			d.emit(kernel.Instr{Op: kernel.Count, Class: c}, false)
		}
	case 3:
		to := oneOf(d, kernel.F32, kernel.F64, kernel.I64, kernel.B8)
		if r, ok := d.register(c, to == kernel.I64 || to == kernel.B8); ok {
			d.emit(kernel.Instr{Op: kernel.Cast, Class: to, A: r}, d.inexact[r])
		}
	case 4:
		to := oneOf(d, uint64(6), 13)
		if c == kernel.I64 {
			to = oneOf(d, uint64(1), 2, 3, 4, 18, 19)
		}
		if r, ok := d.register(c, false); ok && (c == kernel.F32 || c == kernel.I64) {
			d.emit(kernel.Instr{Op: kernel.Round, Class: c, A: r, B: to}, d.inexact[r])
		}
	case 5, 6:
		op := oneOf(d, kernel.Sum, kernel.Max, kernel.Min)
		if r, ok := d.register(c, false); ok && k.Reduced > 0 && op.Takes(c) {
			d.emit(kernel.Instr{Op: op, Class: c, A: r}, d.inexact[r] || op == kernel.Sum && c != kernel.I64)
		}
	default:
		d.compute(c)
	}
}

// take reads an operand at the positions in a register.
func (d *drawer) take() {
	position, ok := d.register(kernel.I64, true)
	if !ok {
		return
	}
	var dims []int
	for v := range d.k.Spaces[0] {
		if d.chance(0.5) {
			dims = append(dims, v)
		}
	}
	d.operand(kernel.Read, 0, dims)
	at := len(d.k.Operands) - 1
	o := &d.k.Operands[at]
	o.Along = slices.Insert(o.Along, d.pick(len(o.Along)+1), kernel.Taken)
	d.emit(kernel.Instr{Op: kernel.Take, Class: kernel.ClassOf(o.DType), A: uint64(at), B: position}, false)
}

func (d *drawer) compute(c kernel.Class) {
	op := kernel.Op(int(kernel.Neg) + d.pick(int(kernel.Where)-int(kernel.Neg)+1))
	if op.String() == "?" || !op.Takes(c) {
		return
	}
	n := kernel.Instr{Op: op, Class: c}
	if op == kernel.IsNaN || op >= kernel.Eq && op <= kernel.Ge {
		n.Class = kernel.B8
	}
	a, ok := d.register(c, !smooth(op))
	if !ok {
		return
	}
	n.A = a
	inexact := d.inexact[a] || rough(op)
	if op >= kernel.Add {
		b, ok := d.register(c, !smooth(op))
		if !ok {
			return
		}
		n.B = b
		inexact = inexact || d.inexact[b]
	}
	switch op {
	case kernel.Fma:
		addend, ok := d.register(c, false)
		if !ok {
			return
		}
		n.C = addend
		inexact = inexact || d.inexact[addend]
	case kernel.Where:
		condition, ok := d.register(kernel.B8, true)
		if !ok {
			return
		}
		n.A, n.B, n.C = condition, n.A, n.B
	}
	d.emit(n, inexact)
}

// store writes one of the last registers along all dims, or along the dims that are not reduced.
func (d *drawer) store() {
	k := d.k
	levels := levels(k)
	r := -1
	for range 20 {
		i := len(k.Code) - 1 - d.pick(min(6, len(k.Code)))
		if k.Code[i].Op != kernel.Store {
			r = i
			break
		}
	}
	if r < 0 {
		return
	}
	frame := d.pick(len(k.Spaces))
	dims := k.Spaces[frame]
	if k.Reduced > 0 && !levels[r] && d.chance(0.8) {
		dims -= k.Reduced
	}
	order := d.Perm(dims)
	if d.chance(0.6) {
		order = sorted(order)
	}
	d.operand(kernel.Write, frame, order)
	o := len(k.Operands) - 1
	c := kernel.ClassOf(k.Operands[o].DType)
	from := uint64(r)
	if d.inexact[r] && (c == kernel.I64 || c == kernel.B8) {
		k.Operands[o].DType, c = 8, kernel.F64
	}
	if k.Code[r].Class != c {
		from = d.emit(kernel.Instr{Op: kernel.Cast, Class: c, A: from}, d.inexact[r])
	}
	d.emit(kernel.Instr{Op: kernel.Store, Class: c, A: uint64(o), B: from}, d.inexact[r])
}

// levels returns for each register whether it has a value per point, rather than one value per reduction.
func levels(k *kernel.Kernel) []bool {
	out := make([]bool, len(k.Code))
	for i, n := range k.Code {
		switch n.Op {
		case kernel.Store, kernel.Number, kernel.Const, kernel.Count, kernel.Sum, kernel.Max, kernel.Min:
		case kernel.Index:
			out[i] = int(n.A) >= k.Spaces[0]-k.Reduced
		case kernel.Load, kernel.Take:
			out[i] = n.Op == kernel.Take && out[n.B]
			o := k.Operands[n.A]
			for _, d := range o.Along {
				out[i] = out[i] || int(d) >= k.Spaces[o.Space]-k.Reduced
			}
		default:
			out[i] = out[n.A]
			if n.Op >= kernel.Add {
				out[i] = out[i] || out[n.B]
			}
			if n.Op >= kernel.Fma {
				out[i] = out[i] || out[n.C]
			}
		}
	}
	return out
}

// tensor is an operand of an instance: a window on a buffer.
type tensor struct {
	buffer         int
	sizes, strides []int64
	offset         int64
}

// bound is an instance: the sizes of all index spaces, the tensors by operand, and the numbers.
type bound struct {
	sizes   []int64
	tensors []tensor
	numbers []cuda.Number
}

// sizes are the sizes to draw from: with and without vectors, of a warp, of a tile, and primes.
var sizes = []int64{1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 32, 33, 64, 67, 96, 100, 128, 256, 1000, 1024, 4099, 20000}

// bind draws sizes, buffers and numbers for a kernel, with at most so many points.
func (d *drawer) bind(k *kernel.Kernel, most int64, buffers *[][]byte) *bound {
	b := &bound{sizes: d.drawSpace(k, most)}
	total := int64(1)
	for _, s := range b.sizes {
		total *= s
	}
	for _, rank := range k.Spaces[1:] {
		if rank == 0 && total != 1 {
			return d.bind(k, 1, buffers) // only one point has no dims
		}
		b.sizes = append(b.sizes, d.factors(total, rank)...)
	}
	for i, o := range k.Operands {
		t := d.sizesOf(k, o, b)
		if o.Access == kernel.Write && d.chance(0.4) { // in place of an operand with the same layout
			if j := d.alike(k, i, b); j >= 0 {
				b.tensors = append(b.tensors, b.tensors[j])
				continue
			}
		}
		end := d.layOut(&t, o)
		t.buffer = len(*buffers)
		*buffers = append(*buffers, d.content(o.DType, end, slices.Contains(d.inexact, true)))
		b.tensors = append(b.tensors, t)
	}
	for range k.Numbers {
		if d.chance(0.5) {
			b.numbers = append(b.numbers, cuda.Number{Integral: true, Whole: int64(d.pick(9)) - 3})
		} else {
			b.numbers = append(b.numbers, cuda.Number{Real: float64(d.pick(17))/4 - 1.5})
		}
	}
	return b
}

// drawSpace draws the sizes of the first index space, within a number of points.
func (d *drawer) drawSpace(k *kernel.Kernel, most int64) (out []int64) {
	points := int64(1)
	long := k.Reduced > 0 && d.chance(0.3) // few rows, which are looped over or split
	for dim := range k.Spaces[0] {
		s := oneOf(d, sizes...)
		if long {
			s = int64(1 + d.pick(3))
			if dim == k.Spaces[0]-k.Reduced {
				s = oneOf(d, int64(9000), 9001, 12000)
			}
		}
		for points*s > most {
			s = oneOf(d, sizes...)
			if points*2 > most {
				s = 1
			}
		}
		if d.chance(0.02) {
			s = 0
		}
		out = append(out, s)
		points *= max(1, s)
	}
	return out
}

// factors draws the sizes of another index space of as many points.
func (d *drawer) factors(points int64, rank int) []int64 {
	dims := make([]int64, rank)
	left := points
	for i := range dims {
		dims[i] = 1
		for _, p := range []int64{2, 2, 2, 2, 2, 2, 3, 5, 7, 11, 17} {
			if left > 0 && left%p == 0 && d.chance(0.6) {
				dims[i] *= p
				left /= p
			}
		}
	}
	if rank > 0 {
		dims[d.pick(rank)] *= left
	}
	return dims
}

// sizesOf returns the tensor of an operand, without a layout.
func (d *drawer) sizesOf(k *kernel.Kernel, o kernel.Operand, b *bound) tensor {
	space := b.sizes[spaceStart(k, o.Space):][:k.Spaces[o.Space]]
	t := tensor{sizes: make([]int64, len(o.Along)), strides: make([]int64, len(o.Along))}
	for j, along := range o.Along {
		switch t.sizes[j] = 1; {
		case along >= 0:
			t.sizes[j] = space[along]
		case along == kernel.Taken:
			t.sizes[j] = int64(1 + d.pick(9))
		}
	}
	return t
}

// layOut draws the strides and the offset of a tensor, and returns the number of elements that its buffer needs.
func (d *drawer) layOut(t *tensor, o kernel.Operand) (end int64) {
	order := make([]int, len(t.sizes)) // of dims, from the inner one
	for j := range order {
		order[j] = len(order) - 1 - j
	}
	if d.chance(0.25) {
		order = d.Perm(len(order))
	}
	step := int64(1)
	if d.chance(0.1) {
		step = 2
	}
	for _, j := range order {
		t.strides[j] = step
		if o.Access == kernel.Read && d.chance(0.05) {
			t.strides[j] = 0
			continue
		}
		step *= max(1, t.sizes[j])
		if d.chance(0.08) {
			step += int64(1 + d.pick(3))
		}
	}
	if d.chance(0.3) {
		t.offset = int64(d.pick(9))
	}
	end = t.offset + 1
	for j, s := range t.sizes {
		if s == 0 {
			return t.offset
		}
		end += (s - 1) * t.strides[j]
	}
	return end
}

func spaceStart(k *kernel.Kernel, frame int) int {
	at := 0
	for _, rank := range k.Spaces[:frame] {
		at += rank
	}
	return at
}

// alike returns an operand before i that is read in the layout of operand i and shares no memory with another operand.
// It returns -1 if there is none.
func (d *drawer) alike(k *kernel.Kernel, i int, b *bound) int {
	o := k.Operands[i]
	for j := range i {
		p := k.Operands[j]
		same := p.Access == kernel.Read && p.DType == o.DType && p.Space == o.Space && len(p.Along) == len(o.Along)
		for d := range o.Along {
			same = same && p.Along[d] == o.Along[d] && (b.tensors[j].strides[d] > 0 || b.tensors[j].sizes[d] == 1)
		}
		for l, t := range b.tensors {
			same = same && (l == j || t.buffer != b.tensors[j].buffer)
		}
		if same {
			return j
		}
	}
	return -1
}

// content returns elements of a dtype: small numbers, and some special ones. If they are tame, their sums hardly depend
// on the order.
func (d *drawer) content(dtype uint8, n int64, tame bool) []byte {
	size := int64(ir.DType(dtype).Size())
	out := make([]byte, 0, n*size)
	special := d.chance(0.3)
	for range n {
		v := float64(d.pick(33)-16) / 4
		if special && d.chance(0.05) {
			v = oneOf(d, math.NaN(), math.Inf(1), math.Inf(-1), math.Copysign(0, -1), 1e-39, 1e30, 65504, 70000)
			if tame && v > 1000 {
				v = 0.5
			}
		}
		var b [8]byte
		le := binary.LittleEndian
		switch dtype {
		case 7:
			le.PutUint32(b[:], math.Float32bits(float32(v)))
		case 8:
			le.PutUint64(b[:], math.Float64bits(v))
		case 13:
			le.PutUint16(b[:], uint16(math.Float32bits(float32(v))>>16))
		case 6:
			le.PutUint16(b[:], uint16(d.pick(1<<14)))
			if special && d.chance(0.05) {
				le.PutUint16(b[:], oneOf(d, uint16(0x7e00), 0x7c00, 0xfc00, 0x8000, 1, 0x83ff))
			}
		case 12:
			b[0] = byte(d.pick(2))
		default:
			le.PutUint64(b[:], d.Uint64()>>(d.pick(4)*16))
			if tame {
				le.PutUint64(b[:], uint64(d.pick(100)))
			}
		}
		out = append(out, b[:size]...)
	}
	return out
}
