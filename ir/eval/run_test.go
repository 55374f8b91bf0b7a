// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval_test

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
)

func f32s(v ...float32) []byte {
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

func readF32s(b []byte) []float32 {
	var out []float32
	for ; len(b) >= 4; b = b[4:] {
		out = append(out, math.Float32frombits(binary.LittleEndian.Uint32(b)))
	}
	return out
}

func runText(t *testing.T, text string, params []uint64, inputs map[uint32][]byte) (map[uint32][]byte, error) {
	g, err := ir.Parse(text)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(g))
	before := g.String()
	args := len(g.ListArgs)
	out, err := eval.Run(g, params, inputs)
	assert.Equal(t, before, g.String(), "the graph stays")
	assert.Len(t, g.ListArgs, args)
	return out, err
}

// TestRunMemory: views of views, a view of another dtype, overlapping windows, partial writes, growth and shrinkage.
func TestRunMemory(t *testing.T) {
	in := f32s(0, 1, 2, 3, 4, 5)
	out, err := runText(t, `graph g r {
  dims n=2@0 m=3@1
  %0: f32[n,m] = input 0
  %1: f32[m,n]{1,m} = view %0 offset=0
  %2: f32[m,n] = copy %1
  %3: f32[n]{m} = view %1 offset=1
  %4: f32[n]{m} = neg %3
  %5: f32[n,m] = update %0 %4 offset=n
  %6: f32[4,3]{1,1} = view %0 offset=0
  %7: f32[4] = sum %6 [1] false
  %8: i32[6] = view %0 offset=0
  %9: i32[6] = copy %8
  %10: u8[24] = view %0 offset=0
  %11: u8[24] = copy %10
  %12: u8[28] = resize %11
  %13: u8[4] = resize %11
  %14: f32[n]{m} = copy %3
  %15: f32[0] = view %0 offset=99
  %16: f32[] = sum %15 ints[] false
  output %2 -> s1
  output %5 -> s2
  output %7 -> s3
  output %9 -> s4
  output %12 -> s5
  output %13 -> s6
  output %14 -> s7
  output %16 -> s8
  output %0 -> s0
}
`, []uint64{2, 3}, map[uint32][]byte{0: in})
	require.NoError(t, err)
	assert.Equal(t, []float32{0, 3, 1, 4, 2, 5}, readF32s(out[1]))
	assert.Equal(t, []float32{0, 1, -1, 3, 4, -4}, readF32s(out[2]))
	assert.Equal(t, []float32{3, 6, 9, 12}, readF32s(out[3]))
	assert.Equal(t, in, out[4])
	assert.Equal(t, append(append([]byte{}, in...), 0, 0, 0, 0), out[5])
	assert.Equal(t, in[:4], out[6])
	assert.Equal(t, []float32{1, 0, 0, 4}, readF32s(out[7]), "the storage reaches to the last element")
	assert.Equal(t, []float32{0}, readF32s(out[8]))
	assert.Equal(t, in, out[0], "the input stays")
}

// TestRunSizes runs one graph with several sizes.
func TestRunSizes(t *testing.T) {
	const text = `graph g r {
  dims n=2@0
  %0: f32[n,1] = input 0
  %1: f64[] = param 1
  %2: f32[n,1] = mul %0 %1
  %3: f32[1,n]{1,1} = view %2 offset=0
  %4: f32[n,n] = add %2 %3
  output %4 -> s0
}
`
	half := math.Float64bits(0.5)
	out, err := runText(t, text, []uint64{2, half}, map[uint32][]byte{0: f32s(2, 4)})
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 3, 3, 4}, readF32s(out[0]))
	out, err = runText(t, text, []uint64{3, half}, map[uint32][]byte{0: f32s(2, 4, 6)})
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 3, 4, 3, 4, 5, 4, 5, 6}, readF32s(out[0]))
}

// TestRunCalls: calls that have the meaning of own ops, in place too.
func TestRunCalls(t *testing.T) {
	out, err := runText(t, `graph g r {
  %0: f32[2,2] = input 0
  %1: c128[] = param 0
  %2: f32[2,2] = aten.add.Tensor %0 %0 1
  %3: f32[2] = aten.sum.dim_IntList %2 [-1] false none
  %4: f32[2]{2} = view %0 offset=1
  %5: f32[2]{2} = aten.mul_.Tensor %4! %3
  %6: f32[2,2] = update %0 %5 offset=1
  %7: c64[2] = aten.mul.Tensor %3 %1
  %8: i16[] = scalar 2
  %9: f32[2] = mul %3 %8
  output %2 -> s1
  output %3 -> s2
  output %6 -> s0
  output %7 -> s3
  output %9 -> s4
}
`, []uint64{math.Float64bits(2), math.Float64bits(-1), 0xffff}, map[uint32][]byte{0: f32s(1, 2, 3, 4)})
	require.NoError(t, err)
	assert.Equal(t, []float32{2, 4, 6, 8}, readF32s(out[1]))
	assert.Equal(t, []float32{6, 14}, readF32s(out[2]))
	assert.Equal(t, []float32{1, 12, 3, 56}, readF32s(out[0]))
	assert.Equal(t, []float32{12, -6, 28, -14}, readF32s(out[3]))
	assert.Equal(t, []float32{-6, -14}, readF32s(out[4]))
}

func TestRunErrors(t *testing.T) {
	const head = "graph g r {\n dims n=2@0\n %0: f32[n] = input 0\n %1: i64[2] = input 1\n %2: f64[] = param 1\n"
	for stmt, want := range map[string]string{
		"%3: f32[n] = aten.hardswish %0": `eval: node 3, "%3: f32[n]             = aten.hardswish %0": ` +
			`no own op has the meaning of aten::hardswish with these arguments`,
		"%3: f32[n] = aten.hardswish.out %0 %0!":               "no own op has the meaning of aten::hardswish.out",
		"%3: f32[n], %4: f32[n] = my.two %0":                   "no own op has the meaning of my::two",
		"%3: f32[n] = aten.add.Tensor %0 %0 2":                 "no own op has the meaning",
		"%3: i64[2] = remainder %1 %1":                         "integer division or modulo by zero",
		"%3: f32[n] = view %0 offset=1":                        "the elements end at byte 12 of a storage of 8",
		"%3: f32[n] = input 7":                                 "no input 7",
		"%3: f64[] = param 7":                                  "no parameter 7",
		"%3: c128[] = param 1":                                 "no parameter 2",
		"%3: f8e5m2[n] = cast %0":                              "no arithmetic in f8e5m2",
		"%3: c32[n] = cast %0":                                 "no arithmetic in c32",
		"%3: f32[4] = input 0":                                 "the elements end at byte 16 of a storage of 8",
		"%3: f32[4611686018427387904,4] = empty":               "out of bounds",
		"%3: f32[0] = empty\n%4: f32[] = amax %3 ints[] false": "amax of no elements",
	} {
		_, err := runText(t, head+stmt+"\n}", []uint64{2, 0}, map[uint32][]byte{0: f32s(1, 2), 1: make([]byte, 16)})
		if assert.Error(t, err, stmt) {
			assert.Contains(t, err.Error(), want, stmt)
		}
	}
}

// TestEvalArguments: single ops without a graph, as the reference worker uses them.
func TestEvalArguments(t *testing.T) {
	x := &eval.Tensor{DType: ir.F32, Sizes: []int64{2}, Strides: []int64{1}, Data: f32s(1, 2)}
	same := eval.Arg{Tensor: x}
	require.NoError(t, eval.Eval(ir.OpAdd, []eval.Arg{same, same}, x), "in place")
	assert.Equal(t, []float32{2, 4}, readF32s(x.Data))
	reversed := &eval.Tensor{DType: ir.F32, Sizes: []int64{2}, Strides: []int64{0}, Data: x.Data}
	require.NoError(t, eval.Copy(x, reversed))
	assert.Equal(t, []float32{2, 2}, readF32s(x.Data), "source and target overlap")

	i, err := eval.New(ir.I32, []int64{2}, nil)
	require.NoError(t, err)
	require.NoError(t, eval.Eval(ir.OpDiv, []eval.Arg{same, same}, i), "the result is converted to the target")
	assert.Equal(t, []byte{1, 0, 0, 0, 1, 0, 0, 0}, i.Data)

	f8 := &eval.Tensor{DType: ir.F8E5M2, Sizes: []int64{2}, Strides: []int64{1}, Data: []byte{1, 2}}
	to, err := eval.New(ir.F8E5M2, []int64{2}, nil)
	require.NoError(t, err)
	require.NoError(t, eval.Eval(ir.OpCopy, []eval.Arg{{Tensor: f8}}, to))
	assert.Equal(t, f8.Data, to.Data)

	wide := &eval.Tensor{DType: ir.F32, Sizes: []int64{3}, Strides: []int64{1}, Data: f32s(1, 2, 3)}
	short := &eval.Tensor{DType: ir.F32, Sizes: []int64{3}, Strides: []int64{1}, Data: f32s(1, 2)}
	for text, call := range map[string]struct {
		op   ir.Op
		args []eval.Arg
		dst  *eval.Tensor
	}{
		"eval: view: not an own op":                                 {ir.OpView, []eval.Arg{same}, x},
		"eval: add: 1 operands, not 2":                              {ir.OpAdd, []eval.Arg{same}, x},
		"eval: add: an operand is missing":                          {ir.OpAdd, []eval.Arg{same, {}}, x},
		"eval: add: sizes [3] do not broadcast to [2]":              {ir.OpAdd, []eval.Arg{same, {Tensor: wide}}, x},
		"eval: relu: the elements end at byte 12 of a storage of 8": {ir.OpRelu, []eval.Arg{{Tensor: short}}, wide},
		"eval: add: sizes [2] do not broadcast to [3]":              {ir.OpAdd, []eval.Arg{same, {Tensor: wide}}, wide},
		"eval: where: the condition is f32, not b8":                 {ir.OpWhere, []eval.Arg{same, same, same}, x},
		"eval: bit_not: it does not take f32":                       {ir.OpBitNot, []eval.Arg{same}, x},
		"eval: sum: dim 1 is not one of a rank 1 operand":           {ir.OpSum, []eval.Arg{same, {Dims: []int64{1}}}, x},
		"eval: sum: sizes [2] reduced over [] do not give [2]":      {ir.OpSum, []eval.Arg{same}, x},
		"eval: neg: no arithmetic in f8e5m2":                        {ir.OpNeg, []eval.Arg{{Tensor: f8}}, x},
	} {
		assert.EqualError(t, eval.Eval(call.op, call.args, call.dst), text)
	}
}

// TestHalf walks all f16 and bf16 values: reading and rounding are inverse, and rounding goes to the nearest, ties to
// even.
func TestHalf(t *testing.T) {
	for _, d := range []ir.DType{ir.F16, ir.BF16} {
		all := make([]byte, 1<<17)
		for i := range 1 << 16 {
			binary.LittleEndian.PutUint16(all[2*i:], uint16(i))
		}
		x := &eval.Tensor{DType: d, Sizes: []int64{1 << 16}, Strides: []int64{1}, Data: all}
		wide, err := eval.New(ir.F32, x.Sizes, nil)
		require.NoError(t, err)
		require.NoError(t, eval.Eval(ir.OpCast, []eval.Arg{{Tensor: x}}, wide))
		values := readF32s(wide.Data)
		back, err := eval.New(d, x.Sizes, nil)
		require.NoError(t, err)
		require.NoError(t, eval.Eval(ir.OpCast, []eval.Arg{{Tensor: wide}}, back))
		between := make([]float32, len(values)) // half way to the next value
		for i, v := range values {
			bits := binary.LittleEndian.Uint16(back.Data[2*i:])
			if v == v {
				require.Equal(t, uint16(i), bits, "%v", v)
			}
			if next := values[(i+1)%len(values)]; i&0x7fff < 0x7fff && v == v && next == next {
				between[i] = float32((float64(v) + float64(next)) / 2)
			}
		}
		wide.Data = f32s(between...)
		require.NoError(t, eval.Eval(ir.OpCast, []eval.Arg{{Tensor: wide}}, back))
		for i, v := range between {
			if v == 0 || v != v || math.IsInf(float64(v), 0) {
				continue
			}
			even := uint16(i + i&1)
			require.Equal(t, even, binary.LittleEndian.Uint16(back.Data[2*i:]), "%v", v)
		}
	}
}
