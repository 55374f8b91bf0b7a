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

// sum is a kernel that adds up dims, of which the last folded are folded.
func sum(rank, folded int, order ...int8) *kernel.Kernel {
	k := &kernel.Kernel{Spaces: []int{rank}, Reduced: folded, Operands: []kernel.Operand{{DType: u8, Access: kernel.Read, Along: order}}}
	kept := []int8{}
	for d := range rank - folded {
		kept = append(kept, int8(d))
	}
	k.Operands = append(k.Operands, kernel.Operand{DType: i64, Access: kernel.Write, Along: kept})
	k.Code = []kernel.Instr{{Op: kernel.Load, Class: kernel.I64}}
	if folded > 0 {
		k.Code = append(k.Code, kernel.Instr{Op: kernel.Sum, Class: kernel.I64})
	}
	k.Code = append(k.Code, kernel.Instr{Op: kernel.Store, Class: kernel.I64, A: 1, B: uint64(folded)})
	if folded > 1 {
		k.Code[2].B = 1
	}
	return k
}

// TestWideIndices reads beyond what 32 bits count to, in each template: rows of a few bytes that lie 3 GiB apart.
func TestWideIndices(t *testing.T) {
	const apart = 3 << 30
	e := newEmulator()
	var want [][]int64
	for _, c := range []struct {
		template           cuda.Template
		k                  *kernel.Kernel
		rows, columns, sms int64
		column             int64 // stride of columns
	}{
		{cuda.Pointwise, sum(2, 0, 0, 1), 2, 100, 132, 1},
		{cuda.Persistent, sum(2, 1, 0, 1), 2, 100, 132, 1},
		{cuda.Looped, sum(2, 1, 0, 1), 2, 20000, 1, 1},
		{cuda.Looped, sum(2, 2, 0, 1), 2, 10000, 132, 1},
		{cuda.Column, sum(2, 1, 1, 0), 100, 2, 132, 1},
		{cuda.Transpose, sum(2, 0, 1, 0), 100, 9, 132, 1},
	} {
		rows, columns := c.rows, c.columns
		strides := []int64{apart, c.column}
		if c.template == cuda.Column || c.template == cuda.Transpose {
			strides = []int64{apart, 1} // along the columns, which are many times apart, and the rows
			rows, columns = c.columns, c.rows
		}
		j := &job{k: c.k, sms: int(c.sms)}
		var sums []int64
		total := int64(0)
		byColumn := make([]int64, columns)
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
		switch {
		case c.k.Reduced == 0:
			kept = []int64{c.columns, 1}
		case c.k.Reduced == 2:
			kept = nil
		}
		j.instances = []cuda.Instance{{Sizes: []int64{c.rows, c.columns}, Operands: []cuda.Operand{{Address: arena, Strides: strides}, {Address: out, Strides: kept}}}}
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
