// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/kernel"
)

var h100 = Device{SMs: 132}

// softmax is the reduction and the map of its gradient, over the last dim of f32 rows: x - sum(x) * x.
func softmax(t *testing.T) *kernel.Kernel {
	k := &kernel.Kernel{Spaces: []int{2}, Reduced: 1,
		Operands: []kernel.Operand{
			{DType: 7, Access: kernel.Read, Along: []int8{0, 1}}, {DType: 7, Access: kernel.Write, Along: []int8{0, 1}}},
		Code: []kernel.Instr{{Op: kernel.Load, Class: kernel.F32}, {Op: kernel.Sum, Class: kernel.F32},
			{Op: kernel.Mul, Class: kernel.F32, A: 0, B: 1},
			{Op: kernel.Sub, Class: kernel.F32, A: 0, B: 2}, {Op: kernel.Store, Class: kernel.F32, A: 1, B: 3}}}
	require.NoError(t, k.Verify())
	return k
}

// add adds n operands of f32 along one dim.
func add(t *testing.T, n int) *kernel.Kernel {
	k := &kernel.Kernel{Spaces: []int{1}}
	for i := range n {
		k.Operands = append(k.Operands, kernel.Operand{DType: 7, Access: kernel.Read, Along: []int8{0}})
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Load, Class: kernel.F32, A: uint64(i)})
	}
	total := uint64(0)
	for i := 1; i < n; i++ {
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Add, Class: kernel.F32, A: total, B: uint64(i)})
		total = uint64(len(k.Code) - 1)
	}
	k.Operands = append(k.Operands, kernel.Operand{DType: 7, Access: kernel.Write, Along: []int8{0}})
	k.Code = append(k.Code, kernel.Instr{Op: kernel.Store, Class: kernel.F32, A: uint64(n), B: total})
	require.NoError(t, k.Verify())
	return k
}

// at is a contiguous instance in memory that is aligned as CUDA's allocator aligns.
func at(k *kernel.Kernel, sizes ...int64) Instance {
	in := Instance{Sizes: sizes}
	for i, o := range k.Operands {
		strides, step := make([]int64, len(o.Along)), int64(1)
		for d := len(strides) - 1; d >= 0; d-- {
			strides[d] = step
			step *= sizes[o.Along[d]]
		}
		in.Operands = append(in.Operands, Operand{Buffer: uint32(i), Address: uint64(i+1) << 30, Strides: strides})
	}
	return in
}

// TestShapesShareTexts: thousands of shapes need few texts. A text depends on the template and the vector width, not on
// the row length.
func TestShapesShareTexts(t *testing.T) {
	k := softmax(t)
	texts := map[string]bool{}
	for n := int64(1); n <= 20000; n += 1 + n/50 {
		for _, rows := range []int64{2, 500, 100000} {
			for _, l := range Launches(k, []Instance{at(k, rows, n), at(k, rows, n/4*4+4)}, h100) {
				texts[Print(k, l.Variant).Text] = true
			}
		}
	}
	// persistent and looped, looped and split, vectors of 4, 2 and 1; two instances in a table or one; rows of one point
	// have no dim.
	require.LessOrEqual(t, len(texts), 20)
}

// TestDeterministic: equal kernels and instances give equal launches and equal texts.
func TestDeterministic(t *testing.T) {
	for range 20 {
		launch := func() []Launch { return Launches(softmax(t), []Instance{at(softmax(t), 3, 100000)}, h100) }
		a, b := launch(), launch()
		require.Equal(t, a, b)
		require.Equal(t, Print(softmax(t), a[0].Variant), Print(softmax(t), b[0].Variant))
	}
}

// TestInFlight: a thread loads at least 64 bytes or sixteen elements at once, for every dtype.
func TestInFlight(t *testing.T) {
	for n := 1; n <= 6; n++ {
		k := add(t, n)
		l := Launches(k, []Instance{at(k, 1<<20)}, h100)
		require.Len(t, l, 1)
		v := &l[0].Variant
		require.Equal(t, 4, v.Vector)
		each := v.Vector * analyse(k).unroll(v)
		require.GreaterOrEqual(t, 4*n*each, inFlight)
		require.LessOrEqual(t, 4*n*each, mostInFlight)
		require.EqualValues(t, ceil(1<<20, int64(each)*mapThreads), l[0].Grid)
	}
}

// TestSmallMapsSpread: a map too small for all multiprocessors has smaller blocks.
func TestSmallMapsSpread(t *testing.T) {
	k := add(t, 2)
	require.EqualValues(t, 256, Launches(k, []Instance{at(k, 1<<20)}, h100)[0].Block[0])
	require.EqualValues(t, 64, Launches(k, []Instance{at(k, 1<<17)}, h100)[0].Block[0])
	require.EqualValues(t, 32, Launches(k, []Instance{at(k, 100)}, h100)[0].Block[0])
}

// TestParametersFit: more than 4 KiB of arguments go through memory.
func TestParametersFit(t *testing.T) {
	require.False(t, Launches(add(t, 400), []Instance{at(add(t, 400), 100)}, h100)[0].Variant.Table)
	l := Launches(add(t, 600), []Instance{at(add(t, 600), 100)}, h100)[0]
	require.True(t, l.Variant.Table)
	require.Len(t, l.Chunks, int(l.Grid))
}

// TestInstances: instances with the same text share one launch, and each of its blocks has one instance. Empty
// instances have no blocks.
func TestInstances(t *testing.T) {
	k := add(t, 2)
	list := Launches(k, []Instance{at(k, 5000), at(k, 0), at(k, 40000), at(k, 1)}, h100)
	require.Len(t, list, 2) // one point has no dim
	require.Len(t, list[0].Args, 2)
	blocks := map[uint64]uint64{}
	for _, c := range list[0].Chunks {
		require.Equal(t, blocks[c&math32], c>>32)
		blocks[c&math32]++
	}
	each := uint64(list[0].Block[0]) * uint64(list[0].Variant.Vector*analyse(k).unroll(&list[0].Variant))
	require.Equal(t, map[uint64]uint64{0: (5000 + each - 1) / each, 1: (40000 + each - 1) / each}, blocks)
}

// TestManyPoints: a launch has fewer than 2^31 blocks for every shape, offsets that nearly overflow 64 bits count as
// wide, and instances with many blocks do not share one launch.
func TestManyPoints(t *testing.T) {
	k := softmax(t)
	for bits := range 37 {
		rows, columns := int64(1)<<bits, int64(MaxPoints)>>bits
		for _, strides := range [][]int64{{columns, 1}, {1, rows}, {0, 0}, {3 << 40, 1 << 5}} {
			in := Instance{Sizes: []int64{rows, columns}, Operands: []Operand{{Strides: strides}, {Strides: strides}}}
			for _, l := range Launches(k, []Instance{in}, h100) {
				require.Less(t, l.Grid, uint32(1<<31))
				require.GreaterOrEqual(t, int64(l.Grid)*128, rows, "%v %s", in.Sizes, &l.Variant) // no block has more rows
			}
		}
	}
	in := at(add(t, 1), 1<<27)
	require.Len(t, Launches(add(t, 1), []Instance{in, in, in, in, in}, h100), 3)
	for stride, wide := range map[int64]bool{30000: false, 40000: true} { // 2^16 points beyond the end count, too
		strided := Instance{Sizes: []int64{3}, Operands: []Operand{{Strides: []int64{stride}}, {Strides: []int64{1}}}}
		require.Equal(t, wide, Launches(add(t, 1), []Instance{strided}, h100)[0].Variant.Wide)
	}
	far := Instance{Sizes: []int64{2}, Operands: []Operand{{Strides: []int64{1 << 60}}, {Strides: []int64{1}}}}
	require.True(t, Launches(add(t, 1), []Instance{far}, h100)[0].Variant.Wide)
}

// TestAlignment: the least aligned operand decides the vector width.
func TestAlignment(t *testing.T) {
	k := softmax(t)
	for _, c := range []struct {
		offset uint64
		n      int64
		want   int
	}{{0, 64, 4}, {8, 64, 2}, {4, 64, 1}, {0, 66, 2}, {0, 65, 1}} {
		in := at(k, 100, c.n)
		in.Operands[1].Address += c.offset
		require.Equal(t, c.want, Launches(k, []Instance{in}, h100)[0].Variant.Vector, "%+v", c)
	}
}

// TestApart: loads go through the read-only cache only if no instance of the launch writes a buffer that it reads.
func TestApart(t *testing.T) {
	k := add(t, 2)
	apart, inPlace := at(k, 1000), at(k, 1000)
	inPlace.Operands[2] = inPlace.Operands[0]
	for _, c := range []struct {
		instances []Instance
		want      bool
	}{
		{[]Instance{apart}, true}, {[]Instance{inPlace}, false}, {[]Instance{apart, apart}, true},
		{[]Instance{apart, inPlace}, false}, {[]Instance{inPlace, apart}, false},
	} {
		launches := Launches(k, c.instances, h100)
		require.Len(t, launches, 1)
		text := Print(k, launches[0].Variant).Text
		require.Equal(t, c.want, launches[0].Variant.Apart)
		require.Equal(t, c.want, strings.Contains(text, "load<4, true>"), text)
		require.Equal(t, !c.want, strings.Contains(text, "load<4, false>"), text)
	}
	long := at(softmax(t), 1000, 100000)
	require.True(t, Launches(softmax(t), []Instance{long}, h100)[0].Variant.Apart)
	short := at(softmax(t), 1000, 100)
	require.False(t, Launches(softmax(t), []Instance{short}, h100)[0].Variant.Apart, "it reads each row once")
}

// TestDivisor: quotients of 31 bits are exact.
func TestDivisor(t *testing.T) {
	over := func(n uint32, by uint64) uint32 {
		return (uint32(uint64(n)*(by&math32)>>32) + n) >> (by >> 32)
	}
	r := rand.New(rand.NewPCG(1, 1))
	check := func(n, d uint32) { require.Equal(t, n/d, over(n, divisor(int64(d))), "%d / %d", n, d) }
	const most = 1<<31 - 1
	for range 200000 {
		d := 1 + r.Uint32N(most)>>r.UintN(31)
		q := most / d
		for _, n := range []uint32{0, d - 1, d, most, q * d, q*d - 1, r.Uint32N(most)} {
			check(n&most, d)
		}
	}
}

// BenchmarkLaunches plans the step of an optimizer on a hundred tensors.
func BenchmarkLaunches(b *testing.B) {
	k := &kernel.Kernel{Spaces: []int{1}}
	for i := range 4 {
		k.Operands = append(k.Operands, kernel.Operand{DType: 7, Access: kernel.Read, Along: []int8{0}})
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Load, Class: kernel.F32, A: uint64(i)})
	}
	for i := range 30 {
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Mul, Class: kernel.F32, A: uint64(i), B: uint64(i + 1)})
	}
	k.Operands = append(k.Operands, kernel.Operand{DType: 7, Access: kernel.Write, Along: []int8{0}})
	k.Code = append(k.Code, kernel.Instr{Op: kernel.Store, Class: kernel.F32, A: 4, B: 33})
	require.NoError(b, k.Verify())
	var list []Instance
	for i := range 100 {
		list = append(list, at(k, int64(1000+i)))
	}
	b.ReportAllocs()
	for b.Loop() {
		Launches(k, list, h100)
	}
}
