// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/passes/repro"
	"github.com/mycelya/mycelya/tests/graphs"
)

const merged = `graph f.py:1 read {
  %0: f32[2]             = input 0
  %1: f32[2]             = relu %0
  %2: f32[2]             = relu %0
  %3: f32[2]             = add %1 %1
  output %3 -> s1
}
`

const fused = `graph f.py:1 read {
  %0: f32[2]             = input 0
  fuse map {
    %1: f32[2]             = relu %0
    %2: f32[2]             = add %1 %1
  }
  output %2 -> s1
}
`

func call(stdin string, args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = run(args, strings.NewReader(stdin), &out, &errs)
	return status, out.String(), errs.String()
}

func TestOutput(t *testing.T) {
	for _, test := range []struct {
		args []string
		want string
	}{
		{nil, graphs.Twice},
		{[]string{"-passes="}, graphs.Twice},
		{[]string{"--passes=cse"}, merged},
		{[]string{"-passes=cse,dce", "-verify"}, graphs.Once},
		{[]string{"-passes=all"}, fused},
		{[]string{"-passes=all", "-print"}, "# as read\n" + graphs.Twice + "# after cse\n" + merged +
			"# after dce\n" + graphs.Once + "# after fuse\n" + fused},
	} {
		status, out, errs := call(graphs.Twice, test.args...)
		assert.Equal(t, 0, status, test.args)
		assert.Equal(t, test.want, out, test.args)
		assert.Empty(t, errs)
	}
	_, out, errs := call(graphs.Twice+graphs.Twice, "-passes=dce,cse", "-time")
	assert.Equal(t, merged+merged, out, "the passes run in the order that is asked for")
	assert.Regexp(t, `^(dce      .*s\ncse      .*s\n){2}$`, errs)
}

func TestRules(t *testing.T) {
	const signs = `graph f.py:1 read {
  %0: f32[2]             = input 0
  %1: f32[2]             = neg %0                         # f.py:3
  %2: f32[2]             = neg %1                         # f.py:4
  output %2 -> s1
}
`
	status, out, errs := call(signs, "-passes=all", "-rules")
	assert.Equal(t, 0, status)
	assert.Equal(t, "graph f.py:1 read {\n  %0: f32[2]             = input 0\n  output %0 -> s1\n}\n", out)
	assert.Equal(t, "simplify NegOfNeg        f.py:4\n", errs)
	status, out, errs = call(signs, "-passes=all", "-rules", "-without=NegOfNeg,cse,fuse")
	assert.Equal(t, 0, status)
	assert.Equal(t, signs, out)
	assert.Empty(t, errs)
	status, _, errs = call(signs, "-without=NegOfNge")
	assert.Equal(t, 2, status)
	assert.Contains(t, errs, `no pass "NegOfNge"; the passes are views, cse, `)
	assert.Contains(t, errs, `; -NAME also leaves out a rule`)
	_, _, errs = call("", "-help")
	assert.Contains(t, errs, "\n           NegOfNeg        neg (neg x) -> x\n")
}

func TestExplain(t *testing.T) {
	const apart = `graph f.py:1 read {
  %0: f32[2,2] = input 0
  %1: f32[2,2] = aten.mm %0 %0
  %2: f32[2] = sum %0 [1] false
  %3: f32[] = sum %2 ints[] false
  output %1 -> s1
  output %3 -> s2
}
`
	status, _, errs := call(apart, "-passes=fuse", "-explain")
	assert.Equal(t, 0, status)
	assert.Equal(t, `%1: f32[2,2]           = aten.mm %0 %0
    no kernel computes aten::mm: it has no decomposition
%2: f32[2]             = sum %0 [1] false
%3: f32[]              = sum %2 ints[] false
    it reduces the result of a reduction
`, errs)
}

func TestFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.ir")
	require.NoError(t, os.WriteFile(path, []byte(graphs.Twice), 0o644))
	status, out, _ := call("", path, path)
	assert.Equal(t, 0, status)
	assert.Equal(t, graphs.Twice+graphs.Twice, out)
}

func TestRepro(t *testing.T) {
	r := repro.Repro{Program: "f.py:1 read", Passes: []string{"cse", "dce"}, Capture: graphs.Twice, Out: graphs.Once}
	path := filepath.Join(t.TempDir(), "repro.txtar")
	write := func() { require.NoError(t, os.WriteFile(path, r.Format(), 0o644)) }
	write()
	status, out, errs := call("", "-repro", path, "-print")
	assert.Equal(t, 0, status)
	assert.Equal(t, "# as read\n"+graphs.Twice+"# after cse\n"+merged+"# after dce\n"+graphs.Once+
		path+": the same graph after cse, dce\n", out)
	assert.Empty(t, errs)

	r.Passes = r.Passes[:1]
	write()
	status, out, _ = call("", "-repro", path)
	assert.Equal(t, 1, status)
	assert.Contains(t, out, ": another graph after cse: line 4 of out.ir is the first that differs\n")

	r.Capture = strings.Replace(graphs.Twice, "relu %0\n  %2", "relu %2\n  %2", 1) // %1 needs %2, which needs %0
	write()
	status, out, errs = call("", "-repro", path)
	assert.Equal(t, 2, status)
	assert.Empty(t, out)
	assert.Equal(t, "mycopt: "+path+":10:33: expected a value defined above, found %2\n", errs)

	status, _, errs = call("", "-repro", path+".none")
	assert.Equal(t, 2, status)
	assert.Contains(t, errs, "no such file")
	status, _, errs = call("", "-repro", path, "-passes=cse")
	assert.Equal(t, 2, status)
	assert.Contains(t, errs, "leave out -passes, -without, -verify and other files")
}

func TestErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.ir")
	require.NoError(t, os.WriteFile(path, []byte("graph x y {\n %0: f32[2] = relu %1\n}"), 0o644))
	for _, test := range []struct {
		stdin  string
		args   []string
		status int
		want   string
	}{
		{"", []string{path}, 1, "mycopt: " + path + ":2:20: expected a value defined above, found %1\n"},
		{"graph x y {\n} }", nil, 1, "mycopt: stdin:2:3: expected the end of the line, found \"}\"\n"},
		{strings.Replace(graphs.Twice, "%3: f32", "%3: f64", 1), nil, 1, "mycopt: stdin:5:28: graph f.py:1: ir: node 3, " +
			"\"%3: f64[2]             = add %1 %2\": the result is f32, not f64\n"},
		{"graph x y {\n  dims n=2@0\n  %0: f32[n,n] = input 0\n  fuse rows {\n    %1: f32[n,n] = aten.mm %0 %0\n  }\n}",
			nil, 1,
			"mycopt: stdin:5:20: graph x: ir: node 1, \"%1: f32[n,n]           = aten.mm %0 %0\": no kernel computes aten::mm"},
		{"\n# no graph\n", nil, 1, "mycopt: stdin:1:1: expected a graph, found none"},
		{graphs.Twice, []string{"-passes=fused"}, 1,
			"no pass \"fused\"; the passes are [views cse "},
		{"", []string{"nothing.ir"}, 1, "nothing.ir: no such file"},
		{"", []string{"-fast"}, 2, "usage: mycopt [flags] [file.ir ...]"},
		{"", []string{"-h"}, 0, "cse      one value for two nodes that compute the same"},
	} {
		status, out, errs := call(test.stdin, test.args...)
		assert.Equal(t, test.status, status, test.args)
		assert.Empty(t, out)
		assert.Contains(t, errs, test.want)
	}
}
