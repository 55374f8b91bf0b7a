// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval_test

import (
	"bufio"
	"encoding/json"
	"math"
	"math/cmplx"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
)

// line is one line of testdata/cases.json: an array, which has a name, or a case.
type line struct {
	Name    string
	DType   string
	Sizes   []int64
	Strides []int64
	Offset  int64
	Number  bool
	Data    []byte

	Op    string
	Args  []string
	Dims  []int64
	Keep  bool
	Error string
}

func (l *line) tensor(t testing.TB) *eval.Tensor {
	d, ok := ir.ParseDType(l.DType)
	require.True(t, ok, l.DType)
	strides := l.Strides
	if strides == nil {
		strides = eval.Contiguous(l.Sizes)
	}
	return &eval.Tensor{DType: d, Sizes: l.Sizes, Strides: strides, Offset: l.Offset, Data: l.Data}
}

func readCases(t testing.TB) (arrays map[string]*line, cases []*line) {
	f, err := os.Open("testdata/cases.json")
	require.NoError(t, err)
	defer f.Close()
	arrays = map[string]*line{}
	s := bufio.NewScanner(f)
	s.Buffer(nil, 1<<20)
	for s.Scan() {
		l := new(line)
		require.NoError(t, json.Unmarshal(s.Bytes(), l))
		if l.Name != "" {
			arrays[l.Name] = l
		} else {
			cases = append(cases, l)
		}
	}
	require.NoError(t, s.Err())
	return arrays, cases
}

// exact ops give the same bits as PyTorch, but for NaN payloads; the others are within a few units in the last place.
func exact(op ir.Op, d ir.DType) bool {
	if d.Is(ir.Bools | ir.Ints) {
		return true
	}
	switch op {
	case ir.OpNeg, ir.OpAbs, ir.OpSqrt, ir.OpRelu, ir.OpReciprocal, ir.OpFloor, ir.OpCeil, ir.OpSign, ir.OpTrunc,
		ir.OpRound, ir.OpCast, ir.OpAdd, ir.OpSub, ir.OpMul, ir.OpDiv, ir.OpFmod, ir.OpRemainder,
		ir.OpFma, ir.OpWhere, ir.OpFill, ir.OpCopy:
		return d.Is(ir.Floats)
	}
	return false
}

// TestTorch compares every own op with PyTorch, over NaN, infinities, -0, subnormals and integer overflow.
func TestTorch(t *testing.T) {
	arrays, cases := readCases(t)
	require.Greater(t, len(cases), 1500)
	seen := map[ir.Op]int{}
	for _, c := range cases {
		op, ok := ir.ByName(c.Op)
		require.True(t, ok, c.Op)
		seen[op]++
		name := c.Op + " " + strings.Join(c.Args, " ")
		g, id := graphOf(t, arrays, c, op)
		want, result := inferred(g, op, id, c)
		if c.Error != "" {
			continue // decided below by evaluating
		}
		if want != "" || c.DType != result.DType.String() || !slices.Equal(c.Sizes, sizesOf(result)) {
			t.Errorf("%s: Infer says %s %s, PyTorch %s%v", name, g.TypeString(result), want, c.DType, c.Sizes)
		}
	}
	for op := ir.OpNeg; op < ir.NumOps; op++ {
		require.Positive(t, seen[op], "no case of %s", op)
	}
	for _, c := range cases {
		op, _ := ir.ByName(c.Op)
		name := c.Op + " " + strings.Join(c.Args, " ")
		got, err := run(t, arrays, c, op)
		if c.Error != "" {
			assert.Error(t, err, "%s: PyTorch says %s", name, c.Error)
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		compareTensors(t, name, op, c.tensor(t), got)
	}
}

// graphOf is a graph with the case's operands as inputs and params, and the own op's arguments.
func graphOf(t testing.TB, arrays map[string]*line, c *line, op ir.Op) (*ir.Graph, []ir.Arg) {
	g := ir.NewGraph("case", "test")
	var args []ir.Arg
	for _, name := range c.Args {
		a := arrays[name]
		require.NotNil(t, a, name)
		d, _ := ir.ParseDType(a.DType)
		n := ir.Node{Op: ir.OpInput, Record: -1}
		if a.Number {
			n.Op = ir.OpParam
		}
		id := g.Add(n, nil, []ir.Type{{DType: d, Dims: dimsOf(a.Sizes)}})
		args = append(args, ir.Value(g.Nodes[id].First))
	}
	if ir.Info(op).Kind == ir.KindReduce {
		var items []ir.Arg
		for _, d := range c.Dims {
			items = append(items, ir.Arg{Kind: ir.ArgInt, V: d})
		}
		keep := ir.Arg{Kind: ir.ArgBool}
		if c.Keep {
			keep.V = 1
		}
		args = append(args, g.AddList(ir.ListInts, items), keep)
	}
	return g, args
}

func inferred(g *ir.Graph, op ir.Op, args []ir.Arg, c *line) (string, ir.Type) {
	d, _ := ir.ParseDType(c.DType)
	result, err := g.Infer(op, args, d)
	if err != nil {
		return err.Error(), result
	}
	return "", result
}

func dimsOf(sizes []int64) []ir.Dim {
	out := make([]ir.Dim, len(sizes))
	for i, s := range sizes {
		out[i] = ir.Const(s)
	}
	return out
}

func sizesOf(t ir.Type) []int64 {
	out := make([]int64, len(t.Dims))
	for i, d := range t.Dims {
		out[i] = int64(d)
	}
	return out
}

func run(t testing.TB, arrays map[string]*line, c *line, op ir.Op) (*eval.Tensor, error) {
	var args []eval.Arg
	for _, name := range c.Args {
		args = append(args, eval.Arg{Tensor: arrays[name].tensor(t), Number: arrays[name].Number})
	}
	if ir.Info(op).Kind == ir.KindReduce {
		args = append(args, eval.Arg{Dims: c.Dims, KeepDim: c.Keep})
	}
	d, ok := ir.ParseDType(c.DType)
	sizes := c.Sizes
	if !ok { // PyTorch refuses: any result will do
		g, own := graphOf(t, arrays, c, op)
		r, err := g.Infer(op, own, ir.F32)
		if err != nil {
			return nil, err
		}
		d, sizes = r.DType, sizesOf(r)
	}
	dst, err := eval.New(d, sizes, nil)
	require.NoError(t, err)
	return dst, eval.Eval(op, args, dst)
}

// compareTensors compares two contiguous tensors element by element.
func compareTensors(t testing.TB, name string, op ir.Op, want, got *eval.Tensor) {
	w, g := floats(want), floats(got)
	require.Equal(t, len(w), len(g), name)
	for i := range w {
		if !close(op, want.DType, w[i], g[i]) {
			t.Errorf("%s: element %d of %v: PyTorch has %v, eval has %v", name, i, want.Sizes, w[i], g[i])
			return
		}
	}
	if want.DType.Is(ir.Bools | ir.Ints) {
		require.Equal(t, want.Data, got.Data, name)
	}
}

// floats reads all elements; large integers lose bits, and are compared as bytes besides.
func floats(t *eval.Tensor) []complex128 {
	d := ir.F64
	if t.DType.Is(ir.Complexes) {
		d = ir.C128
	}
	wide, err := eval.New(d, t.Sizes, nil)
	if err == nil {
		err = eval.Eval(ir.OpCast, []eval.Arg{{Tensor: t}}, wide)
	}
	if err != nil {
		panic(err)
	}
	var out []complex128
	for at := 0; at < len(wide.Data); at += d.Size() {
		c := complex(bitsAt(wide.Data[at:]), 0)
		if d == ir.C128 {
			c = complex(real(c), bitsAt(wide.Data[at+8:]))
		}
		out = append(out, c)
	}
	return out
}

func bitsAt(b []byte) float64 {
	var v uint64
	for _, x := range slices.Backward(b[:8]) {
		v = v<<8 | uint64(x)
	}
	return math.Float64frombits(v)
}

// epsilon is the spacing of the dtype's numbers at 1.
var epsilon = map[ir.DType]float64{
	ir.F16: 0x1p-10, ir.BF16: 0x1p-7, ir.F32: 0x1p-23, ir.F64: 0x1p-52, ir.C64: 0x1p-23, ir.C128: 0x1p-52,
}

func close(op ir.Op, d ir.DType, want, got complex128) bool {
	if d.Is(ir.Complexes) {
		scale := max(cmplx.Abs(want), 1)
		if finite(want) && finite(got) {
			return cmplx.Abs(want-got) <= 64*epsilon[d]*scale
		}
		return finite(want) == finite(got) // C's complex arithmetic leaves open which infinity or NaN it is
	}
	w, g := real(want), real(got)
	switch {
	case w != w || g != g:
		return w != w && g != g
	case exact(op, d):
		return w == g && math.Signbit(w) == math.Signbit(g)
	case w == g || math.Abs(w-g) <= smallest(d): // fast kernels flush subnormal numbers
		return true
	}
	scale := math.Abs(w)
	switch op {
	case ir.OpSin, ir.OpCos:
		scale = 1
	case ir.OpSum, ir.OpMean:
		scale = max(scale, 32) // of the terms
	case ir.OpPow:
		scale *= 16
	}
	return math.Abs(w-g) <= 4*epsilon[d]*scale
}

func finite(c complex128) bool { return !cmplx.IsInf(c) && !cmplx.IsNaN(c) }

// smallest is where the spacing of the dtype's numbers stops shrinking.
func smallest(d ir.DType) float64 {
	switch d {
	case ir.F16:
		return 0x1p-14
	case ir.BF16, ir.F32:
		return 0x1p-126
	}
	return 0x1p-1022
}
