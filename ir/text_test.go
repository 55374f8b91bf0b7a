// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/tests/graphs"
)

// sample is the graph of the README, with each part of the text form.
const sample = `graph train.py:41 item {
  dims n=64@0 i=784@1 o=128@2,9,12
  require n*i = o
  require 1 = n
  %0: f32[n,i]           = input 0
  %1: f32[i,o]           = input 1
  %2: f32[n,o]           = aten.mm %0 %1                  # model.py:12
  %3: f32[n,o]           = relu %2                        # model.py:13
  %4: f32[o,n]{1,o}      = view %3 offset=0               # model.py:14
  %5: f64[]              = param 3
  %6: f32[o,n]{1,o}      = mul %5 %4
  %7: f32[o], %8: i64[o] = aten.max.dim %6 1 false
  %9: none, %10: f32[o]  = my.op.x [%7, none] tensors[] [n, 2] dim:7 %7! "a\"#b" f16 layout:0 device:0 memfmt:1` +
	" gen:5 !rng !effect\n" + `  mycelya.manual_seed gen:5 %5 !effect
  %11: f32[o]            = my.foo [1.5, -inf, nan, -0.0] [true, false] floats[] scalars[%5, 3]` +
	" nan:7ff8000000000001 1e+100\n" + `  %12: f32[n,o]          = empty
  %13: f32[n,o]          = update %12 %11 offset=o
  %14: f32[]             = scalar 4
  fuse rows all {
    %15: f64[]             = const 0.5                    # model.py:15
    %16: f32[o]            = mul %7 %15
  }
  fuse map {
    %17: b8[]              = const true
  }
  %18: i64[]             = const -3
  output %3 -> s12
  output %13 -> s13
}
`

func TestTextRoundTrip(t *testing.T) {
	g, err := ir.Parse(sample)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(g))
	assert.Equal(t, sample, g.String())
	assert.Equal(t, "aten::max.dim", g.CallName(7))
	assert.Equal(t, ir.Origin{File: "model.py", Line: 12}, g.Nodes[2].Origin)
	assert.Equal(t, uint64(0x7ff8000000000001), uint64(g.NodeArgs(10)[4].V))
	assert.Equal(t, math.Float64bits(math.Copysign(0, -1)), uint64(g.List(g.NodeArgs(10)[0])[3].V))
	assert.Equal(t, ir.FlagRNG|ir.FlagEffect, g.Nodes[8].Flags)
	assert.True(t, g.NodeArgs(8)[4].Write)
	assert.Equal(t, sample, g.Clone().String())
}

// TestLooseText: the parser accepts text that a person writes, with other numbers, other spaces and comments.
func TestLooseText(t *testing.T) {
	graphs, err := ir.ParseAll("# two graphs\r\ngraph \"\" read{\n %7:f32[ 2 , 3 ]=input 0 # not an origin\n\n" +
		"%3 : f32[3,2] { 1 , 3 } = view %7 offset=0\n}\ngraph \"a b\" \"\" {\n}\n")
	require.NoError(t, err)
	require.Len(t, graphs, 2)
	want := "graph \"\" read {\n  %0: f32[2,3]           = input 0\n  %1: f32[3,2]{1,3}      = view %0 offset=0\n}\n"
	assert.Equal(t, want, graphs[0].String())
	assert.Equal(t, "a b", graphs[1].Name)
	graphs, err = ir.ParseAll(" \n# nothing\n")
	assert.NoError(t, err)
	assert.Empty(t, graphs)
	_, err = ir.Parse("")
	assert.EqualError(t, err, "1:1: expected one graph, found 0")
}

// TestSyntaxErrors: each line of the file is "text ### error", put into a graph; the position is that in the line.
func TestSyntaxErrors(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("testdata", "syntax.txt"))
	require.NoError(t, err)
	n := 0
	for line := range strings.Lines(string(data)) {
		text, want, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ### ")
		if !ok {
			continue
		}
		n++
		_, err := ir.Parse("graph g r {\n dims n=1@0\n %0: f32[n] = input 0\n" + text + "\n}\n")
		assert.EqualError(t, err, "4:"+want, text)
		var se *ir.SyntaxError
		assert.True(t, errors.As(err, &se))
	}
	assert.Greater(t, n, 40)
	for text, want := range map[string]string{
		"grap x y {":               "1:1: expected graph, found \"grap\"",
		"graph":                    "1:6: expected the graph's name, found the end of the line",
		"graph x":                  "1:8: expected the reason of the cut, found the end of the line",
		"graph x y":                "1:10: expected {, found the end of the line",
		"graph x y { }":            "1:13: expected the end of the line, found \"}\"",
		"graph x y {\n":            "2:1: expected }, found the end of the line",
		"graph x y {\n} }":         "2:3: expected the end of the line, found \"}\"",
		"graph x y {\n}\n}":        "3:1: expected graph, found \"}\"",
		"graph \"x y {\n}":         "1:7: expected a quoted string, found \"\\\"x\"",
		"graph x y {\ngraph z q {": "2:1: expected an op, found \"graph\"",
	} {
		_, err := ir.Parse(text)
		assert.EqualError(t, err, want, text)
	}
}

func TestRandomRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := graphs.Any(t)
		text := g.String()
		parsed, err := ir.Parse(text)
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if err := ir.Verify(parsed); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		if again := parsed.String(); again != text {
			t.Fatalf("%s\nbecomes\n%s", text, again)
		}
		clone := g.Clone()
		clone.NameSymbols()
		if err := ir.Verify(clone); err != nil || clone.String() != text {
			t.Fatalf("%v\n%s\nhas the clone\n%s", err, text, clone)
		}
		assert.Equal(t, keys(g), keys(parsed), "same nodes")
	})
}

// keys lists the nodes' structure without what the text may change: numbers of strings and symbols.
func keys(g *ir.Graph) []string {
	out := make([]string, len(g.Nodes))
	for id := range g.Nodes {
		n := &g.Nodes[id]
		for _, a := range g.NodeArgs(ir.NodeID(id)) {
			out[id] += string(rune('A' + a.Kind))
			for _, item := range listOf(g, a) {
				out[id] += string(rune('a'+item.Kind)) + string(rune('0'+a.Sub))
			}
		}
		out[id] += g.NodeString(ir.NodeID(id)) + string(rune('0'+n.Flags)) + n.Origin.File
	}
	return out
}

func listOf(g *ir.Graph, a ir.Arg) []ir.Arg {
	if a.Kind != ir.ArgList {
		return nil
	}
	return g.List(a)
}

func FuzzParse(f *testing.F) {
	f.Add(sample)
	f.Add("graph \"\" x {\n dims a=1@2\n %1: none = \"q\" ints[] \n}")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := ir.ParseAll(text)
		if err != nil {
			return
		}
		for _, g := range all {
			printed := g.String()
			if ir.Verify(g) != nil {
				continue
			}
			again, err := ir.Parse(printed)
			require.NoError(t, err, printed)
			require.Equal(t, printed, again.String())
		}
	})
}

// TestReadmeGraph: the graph of the README is what the printer prints, but for comments.
func TestReadmeGraph(t *testing.T) {
	data, err := os.ReadFile("README.md")
	require.NoError(t, err)
	_, text, _ := strings.Cut(string(data), "\n    graph ")
	text, _, ok := strings.Cut("graph "+text, "\n\n")
	require.True(t, ok)
	g, err := ir.Parse(text)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(g))
	assert.Len(t, g.Nodes, 8)
}
