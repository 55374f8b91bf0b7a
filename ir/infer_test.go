// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/tests/golden"
)

// triples reads lines "a b c".
func triples(t *testing.T, name string) [][]string {
	data, err := os.ReadFile(filepath.Join("testdata", name))
	require.NoError(t, err)
	var out [][]string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		require.Len(t, f, 3, line)
		out = append(out, f)
	}
	return out
}

func dtypeName(d ir.DType, ok bool) string {
	if !ok {
		return "none"
	}
	return d.String()
}

// TestPromote compares every pair of dtypes with PyTorch.
func TestPromote(t *testing.T) {
	lines := triples(t, "promote.txt")
	assert.Len(t, lines, int(ir.NumDTypes-1)*int(ir.NumDTypes-1))
	for _, f := range lines {
		a, ok := ir.ParseDType(f[0])
		b, ok2 := ir.ParseDType(f[1])
		require.True(t, ok && ok2, f)
		assert.Equal(t, f[2], dtypeName(ir.Promote(a, b)), f)
	}
	_, ok := ir.Promote(ir.Invalid, ir.Invalid)
	assert.False(t, ok)
}

// TestResultType compares pairs of tensors, 0-dim tensors and numbers with PyTorch.
func TestResultType(t *testing.T) {
	operand := func(s string) ir.PromoteOperand {
		o := ir.PromoteOperand{Rank: 1}
		name, scalar := strings.CutSuffix(s, "[]")
		name, number := strings.CutSuffix(name, "#")
		o.DType, _ = ir.ParseDType(name)
		require.True(t, o.DType.Valid(), s)
		if o.Number = number; scalar || number {
			o.Rank = 0
		}
		return o
	}
	lines := triples(t, "results.txt")
	assert.Greater(t, len(lines), 1000)
	for _, f := range lines {
		d, err := ir.ResultType(operand(f[0]), operand(f[1]))
		assert.Equal(t, f[2], dtypeName(d, err == nil), f)
	}
}

// TestUnify adds nodes one by one to the graph of each case, as capture does, and compares the sizes.
func TestHolds(t *testing.T) {
	for d, ends := range map[ir.DType][2]int64{
		ir.Bool: {0, 1}, ir.U8: {0, 255}, ir.I8: {-128, 127}, ir.I16: {-1 << 15, 1<<15 - 1}, ir.U16: {0, 1<<16 - 1},
		ir.I32: {math.MinInt32, math.MaxInt32}, ir.U32: {0, math.MaxUint32}} {
		assert.True(t, d.Holds(ends[0]) && d.Holds(ends[1]), d)
		assert.False(t, d.Holds(ends[0]-1) || d.Holds(ends[1]+1), d)
	}
	assert.True(t, ir.I64.Holds(math.MinInt64) && ir.I64.Holds(math.MaxInt64) && ir.U64.Holds(math.MaxInt64))
	assert.False(t, ir.U64.Holds(-1))
}

func TestExactly(t *testing.T) {
	for v, want := range map[float64][2]bool{
		0: {true, true}, 0.5: {true, true}, 0.3: {false, false}, 255: {true, true}, 257: {true, false}, 2049: {false, false},
		65504: {true, false}, 65536: {false, true}, 0x1p-24: {true, true},
		0x1p-25: {false, true}, 0x1.8p-24: {false, true}, 0x1p-133: {false, true},
		0x1p-134: {false, false}, -0x1.fep127: {false, true}, 0x1p128: {false, false}, math.Inf(-1): {true, true}} {
		assert.Equal(t, want, [2]bool{ir.F16.Exactly(v), ir.BF16.Exactly(v)}, v)
	}
	assert.True(t, ir.F32.Exactly(0.3))
}

func TestUnify(t *testing.T) {
	golden.Run(t, filepath.Join("testdata", "unify"), func(t *testing.T, c *golden.Case) {
		g, err := ir.Parse(c.File("in.ir"))
		require.NoError(t, err)
		for id := range g.Nodes {
			g.InferCall(ir.NodeID(id))
		}
		require.NoError(t, ir.Verify(g))
		c.Check("out.ir", g.String())
		again, err := ir.Parse(g.String())
		require.NoError(t, err)
		assert.Equal(t, g.String(), again.String())
		assert.Equal(t, g.String(), g.Clone().String())
	})
}

// TestSymbolNames: two symbols never share a name, and a name that has another meaning is not used.
func TestSymbolNames(t *testing.T) {
	g := ir.NewGraph("g", "r")
	var dims []ir.Dim
	for i, name := range []string{"n", "n", "", "none", "a", "1x", "f32"} {
		dims = append(dims, g.AddSymbol(uint32(i), 7))
		g.Syms[i].Name = name
	}
	g.AddSymbol(99, 7) // no type has it
	g.Add(ir.Node{Op: ir.OpInput, Record: -1}, nil, []ir.Type{{DType: ir.F32, Dims: dims}})
	for range 30 {
		dims = append(dims, g.AddSymbol(uint32(len(dims)), 7))
	}
	g.Add(ir.Node{Op: ir.OpInput, Slot: 1, Record: -1}, nil,
		[]ir.Type{{DType: ir.F32, Dims: dims[7:27], Strides: dims[17:37]}})
	require.NoError(t, ir.Verify(g))
	text := g.String()
	assert.Contains(t, text, "f32[n,b,c,d,a,e,f]")
	assert.Contains(t, text, ",z,d26]{r,s,")
	parsed, err := ir.Parse(text)
	require.NoError(t, err)
	assert.Equal(t, text, parsed.String())
	g.NameSymbols()
	assert.Equal(t, text, g.String())
	assert.Equal(t, "b", g.Syms[1].Name)
	assert.Empty(t, g.Syms[7].Name)
}

func TestUnifyDims(t *testing.T) {
	g := ir.NewGraph("g", "r")
	var s [6]ir.Dim
	for i := range s {
		s[i] = g.AddSymbol(uint32(i), 7)
	}
	assert.True(t, g.UnifyDims(s[4], s[2]))
	assert.True(t, g.UnifyDims(s[5], s[4]))
	assert.Equal(t, s[2], g.Find(s[5]), "the earliest stands for all")
	assert.True(t, g.UnifyDims(s[1], s[5]))
	assert.Equal(t, s[1], g.Find(s[4]))
	assert.True(t, g.Same(s[2], s[5]))
	assert.False(t, g.Same(s[0], s[5]))
	assert.False(t, g.UnifyDims(s[5], ir.Const(1)), "a symbol is never 1")
	assert.False(t, g.UnifyDims(ir.Const(0), s[5]))
	assert.False(t, g.UnifyDims(ir.Const(3), ir.Const(4)))
	assert.True(t, g.UnifyDims(ir.Const(3), ir.Const(3)))
	assert.True(t, g.UnifyDims(s[2], ir.Const(7)))
	assert.Equal(t, ir.Const(7), g.Find(s[4]), "a constant stands for all")
	assert.False(t, g.UnifyDims(s[1], ir.Const(8)))
	late := g.AddSymbol(9, 7)
	assert.Equal(t, late, g.Find(late))
	assert.True(t, g.UnifyDims(late, s[0]))
	assert.Equal(t, s[0], g.Find(late))
	require.NoError(t, ir.Verify(g))
	assert.Equal(t, "7", g.DimString(s[4]))
}
