// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// badStatements are the errors of statements that a text can hold, after the head of TestVerifyText.
var badStatements = map[string]string{
	"%10: f32[n] = relu %0 %0":              "relu takes 1 arguments, not 2",
	"%10: f32[n] = relu 1":                  "argument 0 is not an operand",
	"%10: f32[n] = relu %0!":                "only calls write",
	"%10: f32[n] = relu %0 !rng":            "only calls have flags",
	"%10: none = relu %0":                   "no dtype has the number 0",
	"%10: f64[n] = relu %0":                 "the result is f32, not f64",
	"%10: f32[m] = relu %0":                 "the result is f32[n], not f32[m]",
	"%10: f32[n] = add %0 %1":               "sizes n and m meet in a broadcast",
	"%10: f32[n] = add %3 %1":               "the result is f32[n,m], not f32[n]",
	"%10: f64[] = add %2 %2":                "no operand is a tensor",
	"%10: f64[] = neg %2":                   "no operand is a tensor",
	"%10: i64[n] = add %4 %2":               "the result is f32, not i64",
	"%10: b8[n] = sub %5 %5":                "sub does not take b8",
	"%10: f32[n] = where %0 %0 %0":          "the condition is f32, not a b8 tensor",
	"%10: f32[n] = fill %0 %0":              "fill needs a tensor and a number",
	"%10: f32[n] = sum %3 [1]":              "sum takes 3 arguments, not 2",
	"%10: f32[n] = sum %3 1 false":          "sum takes a list of dims and a bool",
	"%10: f32[n] = sum %3 [2] false":        "dim 2 is not one of a rank 2 operand",
	"%10: f32[n] = sum %3 [-1] false":       "dim -1 is not one of a rank 2 operand",
	"%10: f32[n] = sum %3 [1, 1] false":     "dim 1 is reduced twice",
	"%10: f32[n] = sum %3 [0] false":        "the result is f32[m], not f32[n]",
	"%10: f32[n,1] = sum %3 [1] false":      "the result is f32[n], not f32[n,1]",
	"%10: i64[n] = mean %4 ints[] false":    "mean does not take i64",
	"%10: f32[1] = param 9":                 "has no sizes",
	"%10: f32[] = param 9":                  "a number is f64, i64, b8 or c128, not f32",
	"%10: f64[] = param 1":                  "parameter slot 1 holds symbol 1",
	"%10: f64[] = const 1":                  "a constant is a literal f64, i64 or b8",
	"%10: c128[] = const 1.0":               "a constant is a literal f64, i64 or b8",
	"%10: f64[] = const %0":                 "a constant is a literal f64, i64 or b8",
	"%10: f64[] = const":                    "const takes 1 arguments, not 0",
	"%10: f64[1] = const 0.5":               "has no sizes",
	"fuse map {\n}":                         "0 of 1 groups have nodes",
	"fuse {\n%10: f32[n] = relu %0\n}":      "group 1 has no kernel",
	"%10: c128[] = scalar 4294967295":       "parameter slot 0 holds symbol 0",
	"%10: f64[] = view %2 offset=0":         "%2 is a param: it has no storage",
	"%10: f32[7] = view %7 offset=0":        "the region ends at byte 28 of a storage of 24",
	"%10: f32[2]{4} = view %7 offset=2":     "the region ends at byte 28 of a storage of 24",
	"%10: f64[1] = view %7 offset=3":        "the region ends at byte 32 of a storage of 24",
	"%10: f32[n] = update %6 %0 offset=0":   "%6 is a view: update needs a whole storage",
	"%10: f32[m] = update %0 %0 offset=0":   "the result is f32[m], but %0 is f32[n]",
	"%10: f32[n] = update %0 %2 offset=0":   "%2 is a number, not a tensor",
	"%10: f32[2,3] = update %7 %7 offset=1": "the region ends at byte 28 of a storage of 24",
	"%10: u8[8] = resize %7":                "a resize goes from u8[old] to u8[new]",
	"%10: f32[8] = resize %8":               "a resize goes from u8[old] to u8[new]",
	"%10: f32[n] = a.b %0! %1!":             "2 written operands, but 1 results",
	"%10: f32[m] = a.b %0!":                 "%10 is the new content of %0: it is f32[n], not f32[m]",
	"%10: f32[n] = a.b %6!":                 "%10 is the new content of %6: it is f32[n]{2}, not f32[n]",
	"%10: f64[] = a.b %2!":                  "%2 is written, but it is a param",
	"%10: c64[] = a.b %9!":                  "%9 is written, but it is a scalar",
	"%10: f32[n] = a.b gen:1":               "parameter slot 1 holds symbol 1",
	"%10: f32[n] = a.b ints[%0]":            "item 0 does not fit in a list of ints",
	"%10: f32[n] = a.b tensors[none]":       "item 0 does not fit in a list of tensors",
	"%10: f32[n] = a.b floats[%0]":          "item 0 does not fit in a list of floats",
	"%10: f32[n] = \"\" %0":                 "a call without a name",
	"output %6 -> s0":                       "%6 is a view, not a whole storage",
	"output %2 -> s0":                       "%2 is a param, not a whole storage",
	"output %0 -> s0\noutput %1 -> s0":      "slot 0 is an output already",
	"%10: none = a.b\n%11: f32[] = a.b %10": "%10 is undefined",
	"%10: none = a.b\noutput %10 -> s0":     "%10 is undefined",
	"dims k=1@0\n%10: f32[k] = input 7":     "parameter slot 0 holds symbols 0 and 2",
	"dims k=2@9,0\n%10: f32[k] = input 7":   "parameter slot 0 holds symbols 0 and 2",
}

// TestVerifyText adds each bad statement to valid ones.
func TestVerifyText(t *testing.T) {
	const head = `graph g r {
  dims n=4@0 m=5@1
  %0: f32[n] = input 0
  %1: f32[m] = input 1
  %2: f64[] = param 2
  %3: f32[n,m] = input 2
  %4: i64[n] = input 3
  %5: b8[n] = input 4
  %6: f32[n]{2} = view %3 offset=0
  %7: f32[2,3] = input 5
  %8: u8[16] = input 6
  %9: c64[] = scalar 10
`
	require.NoError(t, Verify(mustParse(t, head+"}")))
	for stmt, want := range badStatements {
		err := Verify(mustParse(t, head+stmt+"\n}"))
		if assert.Error(t, err, stmt) {
			assert.Contains(t, err.Error(), want, stmt)
		}
	}
	err := Verify(mustParse(t, head+"%10: f32[n] = relu %1 # model.py:3\n}"))
	assert.EqualError(t, err, `ir: node 10, "%10: f32[n]            = relu %1": the result is f32[m], not f32[n]`)
	for _, stmt := range []string{
		"%10: f64[n] = sqrt %4", // the default dtype of the user's program
		"%10: f32[0] = view %7 offset=99",
		"%10: f32[n,m] = update %3 %0 offset=m",
		"%10: u8[n] = resize %8",
		"%10: f32[n], %11: f32[n], %12: f32[m] = a.b [%0!, none] %1!",
		"output %0 -> s0\noutput %0 -> s1",
	} {
		assert.NoError(t, Verify(mustParse(t, head+stmt+"\n}")), stmt)
	}
}

func mustParse(t *testing.T, text string) *Graph {
	g, err := Parse(text)
	require.NoError(t, err, text)
	return g
}

// TestVerifyBroken: graphs that no text can represent. Printing such a graph never panics.
func TestVerifyBroken(t *testing.T) {
	const text = `graph g r {
  dims n=4@0
  %0: f32[n] = input 0
  %1: f32[n] = relu %0
  %2: f32[n] = a.b "s" [%0, %1] n [1] f16 gen:5 true layout:1
  output %2 -> s1
}
`
	for name, test := range map[string]struct {
		spoil func(g *Graph)
		want  string
	}{
		"types":         {func(g *Graph) { g.Types = g.Types[:2] }, "2 types for 3 values"},
		"def":           {func(g *Graph) { g.Def[1] = 0 }, "%1 is defined by node 1, not 0"},
		"first":         {func(g *Graph) { g.Nodes[1].First = 2 }, "node 1 defines %2, not %1"},
		"count":         {func(g *Graph) { g.Nodes[2].N = 9 }, "more values than the graph has"},
		"few":           {func(g *Graph) { g.Nodes = g.Nodes[:2] }, "the nodes define 2 values of 3"},
		"op":            {func(g *Graph) { g.Nodes[1].Op = NumOps }, "no such op"},
		"no op":         {func(g *Graph) { g.Nodes[1].Op = OpInvalid }, "no such op"},
		"args":          {func(g *Graph) { g.Nodes[1].ArgHi = 99 }, "arguments 0 to 99"},
		"args reversed": {func(g *Graph) { g.Nodes[1].ArgLo = 1; g.Nodes[1].ArgHi = 0 }, "arguments 1 to 0"},
		"flags":         {func(g *Graph) { g.Nodes[2].Flags = 8 }, "unknown flags 0x8"},
		"origin":        {func(g *Graph) { g.Nodes[2].Origin.Line = 3 }, "an origin with a line but no file"},
		"value":         {func(g *Graph) { g.Args[0].V = 77 }, "no value %77"},
		"negative":      {func(g *Graph) { g.Args[0].V = -1 }, "no value %-1"},
		"itself":        {func(g *Graph) { g.Args[0].V = 1 }, "%1 is used before its definition"},
		"later":         {func(g *Graph) { g.Args[0].V = 2 }, "%2 is used before its definition"},
		"kind":          {func(g *Graph) { g.Args[0].Kind = 99 }, "an argument of unknown kind 99"},
		"write":         {func(g *Graph) { g.Args[1].Write = true }, "no operand is marked as written"},
		"sub":           {func(g *Graph) { g.Args[1].Sub = 1 }, "no list has a kind of list"},
		"string":        {func(g *Graph) { g.Args[1].V = 9 }, "string 9 of 2"},
		"list":          {func(g *Graph) { g.Args[2].V = 5<<32 | 1 }, "list items 5 to 6 of 3"},
		"list kind":     {func(g *Graph) { g.Args[2].Sub = 7 }, "a list of unknown kind 7"},
		"nested":        {func(g *Graph) { g.ListArgs[0] = g.Args[4] }, "a list in a list"},
		"symbol":        {func(g *Graph) { g.Args[3].V = int64(SymDim(4)) }, "symbol 4 of 1"},
		"dtype":         {func(g *Graph) { g.Args[5].V = 99 }, "no dtype has the number 99"},
		"generator":     {func(g *Graph) { g.Args[6].V = -1 }, "generator in slot -1"},
		"bool":          {func(g *Graph) { g.Args[7].V = 2 }, "a bool of value 2"},
		"layout":        {func(g *Graph) { g.Args[8].V = 256 }, "256 is not a layout"},
		"name":          {func(g *Graph) { g.Nodes[2].Name = 99 }, "a call without a name"},
		"result dtype":  {func(g *Graph) { g.Types[2].DType = NumDTypes }, "no dtype has the number 21"},
		"result dim":    {func(g *Graph) { g.Types[2].Dims = []Dim{SymDim(7)} }, "symbol 7 of 1"},
		"strides":       {func(g *Graph) { g.Types[2].Strides = []Dim{} }, "0 strides for 1 sizes"},
		"rank":          {func(g *Graph) { g.Types[2].Dims = make([]Dim, 256) }, "rank 256 exceeds 255"},
		"undefined":     {func(g *Graph) { g.Types[2].DType = Invalid }, "an undefined tensor with sizes"},
		"output":        {func(g *Graph) { g.Outputs[0].Value = 9 }, "no value %9"},
		"group":         {func(g *Graph) { g.Nodes[1].Group = 2 }, "node 1 is of group 2 of 0, after group 0"},
		"group apart": {func(g *Graph) {
			g.Groups = []Group{{[]Template{TemplateMap}}}
			g.Nodes[0].Group, g.Nodes[2].Group = 1, 1
		}, "node 2 is of group 1 of 1, after group 1"},
		"template": {func(g *Graph) {
			g.Groups = []Group{{[]Template{NumTemplates}}}
			g.Nodes[1].Group = 1
		}, "group 1 has a kernel of no template"},
		"require":   {func(g *Graph) { g.Requires = []Require{{nil, []Dim{SymDim(1)}}} }, "requirement 0: symbol 1 of 1"},
		"equal":     {func(g *Graph) { g.equal = []Dim{SymDim(3)} }, "symbol 3 of 1"},
		"quotient":  {quotient(nil, nil), "symbol 1: a quotient begins with a symbol"},
		"constant":  {quotient([]Dim{6, SymDim(0)}, nil), "symbol 1: a quotient begins with a symbol"},
		"of itself": {quotient([]Dim{SymDim(1)}, nil), "symbol 1: it is a quotient of symbol 1, which is no earlier one"},
		"over none": {quotient([]Dim{SymDim(0)}, []Dim{SymDim(3)}), "symbol 1: symbol 3 of 2"},
		"over 0":    {quotient([]Dim{SymDim(0)}, []Dim{0}), "symbol 1: it is divided by 0"},
		"equal later": {func(g *Graph) {
			g.Syms = append(g.Syms, Symbol{Slot: 9})
			g.equal = []Dim{SymDim(1)}
		}, "later symbol 1"},
	} {
		g := mustParse(t, text)
		require.NoError(t, Verify(g))
		test.spoil(g)
		err := Verify(g)
		if assert.Error(t, err, name) {
			assert.Contains(t, err.Error(), test.want, name)
		}
		assert.NotPanics(t, func() { _ = g.String() }, name)
	}
}

func quotient(of, by []Dim) func(g *Graph) {
	return func(g *Graph) { g.Syms = append(g.Syms, Symbol{Quotient: &Quotient{of, by}}) }
}

// TestQuotient: the printer, products and the verifier handle a size that is a quotient.
func TestQuotient(t *testing.T) {
	g := mustParse(t, "graph g r {\n  dims n=2@0 c=6@1 h=4@2 k=12@c*h/2\n  %0: f32[n,c,h] = input 0\n"+
		"  %1: f32[n,2,k] = view %0 offset=0\n  %2: f32[n,2,k] = neg %1\n  output %2 -> s1\n}\n")
	require.NoError(t, Verify(g))
	c, h, k := SymDim(1), SymDim(2), SymDim(3)
	assert.Equal(t, Const(1), g.AddQuotient(nil, nil))
	assert.Equal(t, k, g.AddQuotient([]Dim{c, h}, []Dim{2}), "it is there")
	assert.Equal(t, c, g.AddQuotient([]Dim{k, 2}, []Dim{h}))
	assert.Equal(t, c, g.AddQuotient([]Dim{c, 6}, []Dim{3, 2}))
	assert.Equal(t, Const(0), g.AddQuotient([]Dim{c, 0}, []Dim{2}))
	assert.Equal(t, Const(3), g.AddQuotient([]Dim{c, 6}, []Dim{2, c}))
	third := g.AddQuotient([]Dim{c, 4}, []Dim{h, 6})
	assert.Equal(t, Symbol{First: 1, Quotient: &Quotient{[]Dim{c, 2}, []Dim{h, 3}}}, g.Syms[4])
	left, right := g.Reduce([]Dim{third, h}, []Dim{c})
	assert.Equal(t, [][]Dim{{2}, {3}}, [][]Dim{left, right})
	left, right = g.Reduce([]Dim{2, k, 1}, []Dim{c, h})
	assert.Empty(t, append(left, right...))

	g.Types[1].Strides = []Dim{k, k, 1}
	assert.ErrorContains(t, Verify(g), "a quotient is a size of row-major memory only")
}

func TestExtent(t *testing.T) {
	huge := Const(1 << 62)
	for _, test := range []struct {
		t      Type
		offset Dim
		bytes  uint64
		known  bool
	}{
		{Type{DType: F32}, 0, 4, true},
		{Type{DType: F32, Dims: []Dim{2, 3}}, 1, 28, true},
		{Type{DType: F64, Dims: []Dim{2, 3}, Strides: []Dim{0, 2}}, 0, 40, true},
		{Type{DType: F64, Dims: []Dim{2, 0}}, 5, 0, true},
		{Type{DType: F64, Dims: []Dim{SymDim(0)}}, 0, 0, false},
		{Type{DType: F64}, SymDim(0), 0, false},
		{Type{DType: F64, Dims: []Dim{huge, huge}}, 0, 0, false},
		{Type{DType: F64, Dims: []Dim{huge}, Strides: []Dim{huge}}, 0, 0, false},
	} {
		bytes, known := extent(test.t, test.offset)
		assert.Equal(t, test.known, known, "%v", test)
		assert.Equal(t, test.bytes, bytes, "%v", test)
	}
}

// TestCheckNode checks one node as capture does before it decides for an own op.
func TestCheckNode(t *testing.T) {
	g := mustParse(t, "graph g r {\n %0: i64[4] = input 0\n %1: f32[4] = sqrt %0\n %2: f16[5] = sqrt %0\n}")
	assert.NoError(t, g.Check(1))
	err := g.Check(2)
	assert.Error(t, err)
	assert.True(t, strings.Contains(err.Error(), "the result is f16[4], not f16[5]"), err)
}
