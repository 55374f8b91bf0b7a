// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package conformance

import (
	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// testCase is one program, one call of it, and the storages after the call.
type testCase struct {
	name    string
	build   func(b *builder)
	in      []uint32          // buffers of the inputs; their storages are 1, 2, …
	out     map[uint32]uint64 // buffer to storage
	params  []uint64
	uploads map[uint64][]byte
	want    map[uint64][]byte // content by storage
	poison  map[uint64]uint32 // the step that poisoned a storage, by storage
	failed  int
}

var two, three, four = con(2), con(3), con(4)

// cases are small enough to check by hand. Together they have every kind of step, argument and lifetime.
var cases = []testCase{
	{
		name: "add",
		build: func(b *builder) {
			x, y, z := b.tensor(0, ir.F32, three), b.tensor(1, ir.F32, three), b.tensor(2, ir.F32, three)
			b.call("aten::add.Tensor", z+1, ten(x), ten(y), num(1))
		},
		in: []uint32{0, 1}, out: map[uint32]uint64{2: 9},
		uploads: map[uint64][]byte{1: f32(1, 2, 3), 2: f32(10, 20, 30)},
		want:    map[uint64][]byte{1: f32(1, 2, 3), 9: f32(11, 22, 33)},
	},
	{
		name: "sizes and numbers from parameters",
		build: func(b *builder) {
			x, z := b.tensor(0, ir.F32, par(0), par(1)), b.tensor(1, ir.F32, par(0), par(1))
			b.call("aten::mul.Tensor", z+1, ten(x), number(catalogue.NumberF64, 2))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9}, params: []uint64{2, 3, f64bits(0.5)},
		uploads: map[uint64][]byte{1: f32(2, 4, 6, 8, 10, 12)},
		want:    map[uint64][]byte{9: f32(1, 2, 3, 4, 5, 6)},
	},
	{
		name: "integer number keeps ints, 0-dim scalar tensor",
		build: func(b *builder) {
			x, y, z := b.tensor(0, ir.I64, two), b.tensor(1, ir.I64, two), b.tensor(2, ir.I64, two)
			b.call("aten::mul.Tensor", y+1, ten(x), number(catalogue.NumberI64, 0))
			b.call("aten::add.Tensor", z+1, ten(y), scalar(ir.I64, 1), num(1))
		},
		in: []uint32{0}, out: map[uint32]uint64{2: 9}, params: []uint64{3, ^uint64(0)},
		uploads: map[uint64][]byte{1: i64(5, -6)},
		want:    map[uint64][]byte{9: i64(14, -19)},
	},
	{
		name: "in place on a strided window",
		build: func(b *builder) {
			col := b.view(0, ir.F32, sizes(2), sizes(3), con(1)) // column 1 of a 2 by 3 matrix
			b.call("aten::add_.Tensor", 0, ten(col), number(catalogue.NumberF64, 0), num(1))
		},
		in: []uint32{0}, out: map[uint32]uint64{0: 1}, params: []uint64{f64bits(100)},
		uploads: map[uint64][]byte{1: f32(1, 2, 3, 4, 5, 6)},
		want:    map[uint64][]byte{1: f32(1, 102, 3, 4, 105, 6)},
	},
	{
		name: "over the second operand, and over both",
		build: func(b *builder) {
			x, y := b.tensor(0, ir.F32, three), b.tensor(1, ir.F32, three)
			b.call("aten::sub.out", 0, ten(x), ten(y), num(1), ten(y))
			b.call("aten::mul.out", 0, ten(y), ten(y), ten(y))
			b.call("aten::pow.Scalar_out", 0, number(catalogue.NumberI64, 0), ten(x), ten(x))
			b.call("aten::pow_.Scalar", 0, ten(y), number(catalogue.NumberI64, 0))
		},
		in: []uint32{0, 1}, out: map[uint32]uint64{0: 1, 1: 2}, params: []uint64{2},
		uploads: map[uint64][]byte{1: f32(1, 2, 3), 2: f32(10, 20, 30)},
		want:    map[uint64][]byte{1: f32(2, 4, 8), 2: f32(81*81, 18*18*18*18, 27*27*27*27)},
	},
	{
		name: "clone keeps the old value",
		build: func(b *builder) {
			b.tensor(0, ir.F32, three)
			y := b.tensor(1, ir.F32, three)
			b.clone(1, 0)
			b.call("aten::mul_.Tensor", 0, ten(y), ten(y))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9},
		uploads: map[uint64][]byte{1: f32(1, 2, 3)},
		want:    map[uint64][]byte{1: f32(1, 2, 3), 9: f32(1, 4, 9)},
	},
	{
		name: "copy makes its buffer, transposes and converts",
		build: func(b *builder) {
			t := b.view(0, ir.F32, sizes(3, 2), sizes(1, 3), 0)
			z := b.tensor(1, ir.I64, three, two)
			b.copy(z, t)
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9},
		uploads: map[uint64][]byte{1: f32(1, 2, 3, 4, 5, 6)},
		want:    map[uint64][]byte{9: i64(1, 4, 2, 5, 3, 6)},
	},
	{
		name: "copy into a window of an existing buffer",
		build: func(b *builder) {
			x := b.tensor(0, ir.F32, two)
			w := b.view(1, ir.F32, sizes(2), sizes(2), con(1))
			b.copy(w, x)
		},
		in: []uint32{0, 1}, out: map[uint32]uint64{1: 2},
		uploads: map[uint64][]byte{1: f32(7, 8), 2: f32(0, 0, 0, 0)},
		want:    map[uint64][]byte{2: f32(0, 7, 0, 8)},
	},
	{
		name: "alloc, zero_, fill_, free, and a buffer number used again",
		build: func(b *builder) {
			x, y := b.tensor(0, ir.F32, four), b.tensor(0, ir.I64, two)
			z := b.tensor(1, ir.F32, four)
			b.alloc(0, par(0))
			b.call("aten::zero_", 0, ten(x))
			b.call("aten::add.Tensor", z+1, ten(x), number(catalogue.NumberI64, 1), num(1))
			b.free(0)
			b.alloc(0, con(16))
			b.call("aten::fill_.Scalar", 0, ten(y), number(catalogue.NumberI64, 1))
		},
		out: map[uint32]uint64{0: 8, 1: 9}, params: []uint64{16, 3},
		want: map[uint64][]byte{8: i64(3, 3), 9: f32(3, 3, 3, 3)},
	},
	{
		name: "resize keeps the common prefix",
		build: func(b *builder) {
			b.tensor(0, ir.F32, two)
			w := b.tensor(0, ir.F32, four)
			b.resize(0, con(16))
			b.call("aten::fill_.Scalar", 0, ten(b.view(0, ir.F32, sizes(2), sizes(1), con(2))), number(catalogue.NumberF64, 0))
			b.call("aten::mul_.Tensor", 0, ten(w), ten(w))
			b.resize(0, con(12))
		},
		in: []uint32{0}, out: map[uint32]uint64{0: 1}, params: []uint64{f64bits(5)},
		uploads: map[uint64][]byte{1: f32(1, 2)},
		want:    map[uint64][]byte{1: f32(1, 4, 25)},
	},
	{
		name: "reductions, comparison and where",
		build: func(b *builder) {
			x := b.tensor(0, ir.F32, two, three)
			s, m, c := b.tensor(1, ir.F32, two), b.tensor(2, ir.F32, con(1), three), b.tensor(3, ir.Bool, two, three)
			w := b.tensor(4, ir.F32, two, three)
			b.call("aten::sum.dim_IntList", s+1, ten(x), ints(1), boolean(false), absent())
			b.call("aten::amax", m+1, ten(x), ints(0), boolean(true))
			b.call("aten::ge.Tensor", c+1, ten(x), ten(m))
			b.call("aten::where.self", w+1, ten(c), ten(x), ten(m))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 7, 3: 8, 4: 9},
		uploads: map[uint64][]byte{1: f32(1, 5, 3, 4, 2, 6)},
		want:    map[uint64][]byte{7: f32(9, 12), 8: {0, 1, 0, 1, 0, 1}, 9: f32(4, 5, 6, 4, 5, 6)},
	},
	{
		name: "cast",
		build: func(b *builder) {
			x, y := b.tensor(0, ir.F32, three), b.tensor(1, ir.BF16, three)
			b.call("aten::_to_copy", y+1, ten(x), dtype(ir.BF16), absent(), absent(), absent(), boolean(false), absent())
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9},
		uploads: map[uint64][]byte{1: f32(1, -2, 3.140625)},
		want:    map[uint64][]byte{9: {0x80, 0x3f, 0x00, 0xc0, 0x49, 0x40}},
	},
	{
		name: "no elements",
		build: func(b *builder) {
			x, z := b.tensor(0, ir.F32, con(0), three), b.tensor(1, ir.F32, con(0), three)
			b.call("aten::add.Tensor", z+1, ten(x), ten(x), num(1))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9},
		uploads: map[uint64][]byte{1: {}},
		want:    map[uint64][]byte{9: {}},
	},
	{
		name: "a result that isn't wanted, an output that isn't wanted",
		build: func(b *builder) {
			x, y := b.tensor(0, ir.F32, two), b.tensor(1, ir.F32, two)
			b.step(&program.Call{Op: "aten::neg", Args: []program.Arg{ten(x)}, Results: []uint32{0}})
			b.call("aten::neg", y+1, ten(x))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 0},
		uploads: map[uint64][]byte{1: f32(1, 2)},
		want:    map[uint64][]byte{1: f32(1, 2)},
	},
	{
		name: "after a failed step only earlier ops run",
		build: func(b *builder) {
			x, y, z, w := b.tensor(0, ir.F32, two), b.tensor(1, ir.F32, two), b.tensor(2, ir.F32, two), b.tensor(3, ir.F32, two)
			b.call("aten::add.Tensor", y+1, ten(x), ten(b.tensor(6, ir.F32, three)), num(1)) // sizes that do not broadcast
			b.call("aten::neg", z+1, ten(y))
			b.call("aten::neg", w+1, ten(x))
			b.copy(b.tensor(4, ir.F32, two), z)
			b.clone(5, 4)
			b.call("aten::neg", b.tensor(7, ir.F32, two)+1, ten(x))
			b.p.Records = []uint32{2, 3, 1, 4, 5, 6}
			b.versions(0, 3, 3, 3, 1, 1, 4, 1, 2, 5, 6, 5, 3, 6, 8, 6)
		},
		in: []uint32{0, 6}, out: map[uint32]uint64{2: 7, 3: 8, 5: 9, 7: 10},
		uploads: map[uint64][]byte{1: f32(1, 2), 2: f32(1, 2, 3)},
		want:    map[uint64][]byte{1: f32(1, 2), 8: f32(-1, -2)},
		poison:  map[uint64]uint32{7: 0, 9: 0, 10: 0}, failed: 1,
	},
	{
		name: "a storage that a failed op, or a later one, should have written keeps its content",
		build: func(b *builder) {
			x, y, z := b.tensor(0, ir.F32, two), b.tensor(1, ir.F32, three), b.tensor(2, ir.F32, two)
			b.call("aten::add_.Tensor", 0, ten(x), ten(y), num(1))
			b.call("aten::neg_", 0, ten(z))
			b.versions(0, 1, 1, 1, 1, 2, 3, 2)
		},
		in: []uint32{0, 1, 2}, out: map[uint32]uint64{0: 1, 2: 3},
		uploads: map[uint64][]byte{1: f32(1, 2), 2: f32(1, 2, 3), 3: f32(5, 6)},
		want:    map[uint64][]byte{1: f32(1, 2), 2: f32(1, 2, 3), 3: f32(5, 6)},
		failed:  1,
	},
	{
		name: "a storage that an earlier op writes has the content that the op gave it",
		build: func(b *builder) {
			x, y, z := b.tensor(0, ir.F32, two), b.tensor(1, ir.F32, three), b.tensor(2, ir.F32, two)
			b.call("aten::neg_", 0, ten(z))
			b.call("aten::add.Tensor", b.tensor(3, ir.F32, two)+1, ten(x), ten(y), num(1))
			b.call("aten::neg_", 0, ten(x))
			b.p.Records = []uint32{1, 2, 1}
			b.versions(0, 1, 1, 1, 1, 1, 3, 1)
		},
		in: []uint32{0, 1, 2}, out: map[uint32]uint64{0: 1, 2: 3},
		uploads: map[uint64][]byte{1: f32(1, 2), 2: f32(1, 2, 3), 3: f32(5, 6)},
		want:    map[uint64][]byte{1: f32(-1, -2), 2: f32(1, 2, 3), 3: f32(-5, -6)},
		failed:  1,
	},
	{
		name: "a storage has the last version from before the failed op, or is poisoned if that is overwritten",
		build: func(b *builder) {
			x, y, z := b.tensor(0, ir.F32, two), b.tensor(1, ir.F32, three), b.tensor(2, ir.F32, two)
			b.call("aten::neg_", 0, ten(x)) // the first of the two writes to x
			b.call("aten::neg_", 0, ten(z)) // of a later op
			b.call("aten::add.Tensor", b.tensor(3, ir.F32, two)+1, ten(x), ten(y), num(1))
			b.call("aten::neg_", 0, ten(x))
			b.p.Records = []uint32{1, 4, 2, 3}
			b.versions(0, 1, 1, 1, 0, 3, 1, 3, 1, 4, 3, 4)
		},
		in: []uint32{0, 1, 2}, out: map[uint32]uint64{0: 1, 2: 3},
		uploads: map[uint64][]byte{1: f32(1, 2), 2: f32(1, 2, 3), 3: f32(5, 6)},
		want:    map[uint64][]byte{1: f32(-1, -2), 2: f32(1, 2, 3)},
		poison:  map[uint64]uint32{3: 2}, failed: 1,
	},
	{
		name: "a result of another size than the program says is a failed step",
		build: func(b *builder) {
			x, y := b.tensor(0, ir.F32, two), b.tensor(1, ir.F32, par(0))
			b.call("aten::neg", y+1, ten(x))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9}, params: []uint64{1000},
		uploads: map[uint64][]byte{1: f32(1, 2)},
		poison:  map[uint64]uint32{9: 0}, failed: 1,
	},
	{
		name: "a window outside its storage is a failed step",
		build: func(b *builder) {
			x := b.view(0, ir.F32, []program.Dim{par(0)}, []program.Dim{par(1)}, par(2))
			b.call("aten::neg", b.tensor(1, ir.F32, two)+1, ten(x))
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9}, params: []uint64{2, 1 << 40, 1},
		uploads: map[uint64][]byte{1: f32(1, 2, 3)},
		poison:  map[uint64]uint32{9: 0}, failed: 1,
	},
	{
		name: "a negative size is a failed step",
		build: func(b *builder) {
			x := b.view(0, ir.F32, []program.Dim{par(0)}, sizes(1), 0)
			b.call("aten::neg", b.tensor(1, ir.F32, two)+1, ten(x))
			b.alloc(2, par(0))
			b.p.Records = []uint32{2, 1} // the first cause is the second step
		},
		in: []uint32{0}, out: map[uint32]uint64{1: 9, 2: 8}, params: []uint64{^uint64(0)},
		uploads: map[uint64][]byte{1: f32(1, 2, 3)},
		poison:  map[uint64]uint32{9: 1, 8: 1}, failed: 2,
	},
}
