// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/kernel"
)

const u8, i64 = 1, 5

// sum returns a kernel that sums over the last dims of its operand; reduced is their number.
func sum(rank, reduced int, order ...int8) *kernel.Kernel {
	k := &kernel.Kernel{Spaces: []int{rank}, Reduced: reduced,
		Operands: []kernel.Operand{{DType: u8, Access: kernel.Read, Along: order}}}
	kept := []int8{}
	for d := range rank - reduced {
		kept = append(kept, int8(d))
	}
	k.Operands = append(k.Operands, kernel.Operand{DType: i64, Access: kernel.Write, Along: kept})
	k.Code = []kernel.Instr{{Op: kernel.Load, Class: kernel.I64}}
	if reduced > 0 {
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Sum, Class: kernel.I64})
	}
	k.Code = append(k.Code, kernel.Instr{Op: kernel.Store, Class: kernel.I64, A: 1, B: uint64(reduced)})
	if reduced > 1 {
		k.Code[2].B = 1
	}
	return k
}

// wideCase is a kernel over rows that lie 3 GiB apart.
type wideCase struct {
	template           cuda.Template
	k                  *kernel.Kernel
	rows, columns, sms int64
}

const apart = 3 << 30

// TestWideIndices reads beyond the range of 32-bit indices, in each template. The rows have a few bytes and lie 3 GiB
// apart.
func TestWideIndices(t *testing.T) {
	e := newEmulator()
	var want [][]int64
	for _, c := range []wideCase{
		{cuda.Pointwise, sum(2, 0, 0, 1), 2, 100, 132},
		{cuda.Persistent, sum(2, 1, 0, 1), 2, 100, 132},
		{cuda.Looped, sum(2, 1, 0, 1), 2, 20000, 1},
		{cuda.Looped, sum(2, 2, 0, 1), 2, 10000, 132},
		{cuda.Column, sum(2, 1, 1, 0), 100, 2, 132},
		{cuda.Transpose, sum(2, 0, 1, 0), 100, 9, 132},
	} {
		j, sums := c.job()
		require.NoError(t, c.k.Verify())
		for _, l := range e.add(j) {
			require.Equal(t, c.template, l.Variant.Template, l.Variant.String())
			require.True(t, l.Variant.Wide)
		}
		want = append(want, sums)
	}
	for n, data := range e.run(t) {
		data = data[len(data)-8*len(want[n]):]
		var got []int64
		for i := range want[n] {
			got = append(got, int64(word(data[8*i:8*i+8])))
		}
		require.Equal(t, want[n], got, "%s", e.jobs[n].k)
	}
}

// job returns the kernel on its data, with the expected results.
func (c wideCase) job() (*job, []int64) {
	rows, columns := c.rows, c.columns
	if c.template == cuda.Column || c.template == cuda.Transpose {
		rows, columns = columns, rows // the kernel's columns lie apart
	}
	j := &job{k: c.k, sms: int(c.sms)}
	var sums []int64
	total, byColumn := int64(0), make([]int64, columns)
	for r := range rows {
		data := make([]byte, columns)
		own := int64(0)
		for i := range data {
			data[i] = byte(int64(i)*7 + r*31)
			own += int64(data[i])
			byColumn[i] += int64(data[i])
			if c.k.Reduced == 0 {
				sums = append(sums, int64(data[i]))
			}
		}
		total += own
		if c.k.Reduced == 1 && c.template != cuda.Column {
			sums = append(sums, own)
		}
		j.segments = append(j.segments, segment{arena + uint64(r)*apart, data})
	}
	switch {
	case c.template == cuda.Column:
		sums = byColumn
	case c.k.Reduced == 2:
		sums = []int64{total}
	case c.template == cuda.Transpose:
		turned := make([]int64, len(sums))
		for i, v := range sums {
			turned[int64(i)%columns*rows+int64(i)/columns] = v
		}
		sums = turned
	}
	out := arena + uint64(rows)*apart
	j.segments = append(j.segments, segment{out, make([]byte, 8*len(sums))})
	j.bytes = out - arena + uint64(8*len(sums))
	kept := []int64{1}
	switch c.k.Reduced {
	case 0:
		kept = []int64{c.columns, 1}
	case 2:
		kept = nil
	}
	operands := []cuda.Operand{{Address: arena, Strides: []int64{apart, 1}}, {Address: out, Strides: kept}}
	j.instances = []cuda.Instance{{Sizes: []int64{c.rows, c.columns}, Operands: operands}}
	return j, sums
}
