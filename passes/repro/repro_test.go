// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package repro

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/graphs"
)

func good() *Repro {
	return &Repro{Program: "f.py:1 read", Mycelya: "0.1.0", Torch: "2.15.0", Passes: []string{"cse", "dce"},
		Words: "-NegOfNeg,until=dce", Check: 2, Capture: graphs.Twice, Out: graphs.Once}
}

func TestAFileReadsBackAsItself(t *testing.T) {
	for _, want := range []*Repro{good(), {Program: "p", Passes: []string{}, Capture: graphs.Twice, Out: graphs.Twice},
		{Program: "p", Passes: []string{"views", "cse"}, Capture: graphs.Twice, Crash: "panic: no luck"}} {
		data := want.Format()
		got, err := Parse("r", data)
		require.NoError(t, err, string(data))
		require.Equal(t, want, got)
		require.Equal(t, string(data), string(got.Format()))
	}
	long := good()
	long.Crash = "panic: no luck\ngoroutine 1 at 0xc0001230"
	require.NotContains(t, string(long.Format()), "goroutine", "what lies below the first line differs each time")
}

func TestReplay(t *testing.T) {
	change := func(f func(*Repro)) *Repro { r := good(); f(r); return r }
	for _, test := range []struct {
		r    *Repro
		text string
		same bool
	}{
		{good(), "the same graph after cse, dce", true},
		{change(func(r *Repro) { r.Passes, r.Out, r.Check = nil, graphs.Twice, 1 }), "the same graph without a pass", true},
		{change(func(r *Repro) { r.Passes = []string{"cse"} }),
			"another graph after cse: line 4 of out.ir is the first that differs\n" +
				"  was:   %2: f32[2]             = add %1 %1\n  is:    %2: f32[2]             = relu %0", false},
		{change(func(r *Repro) { r.Out, r.Crash = "", "panic: no luck" }),
			"no crash any more after cse, dce; it was \"panic: no luck\" in dce", false},
		{change(func(r *Repro) { r.Capture = strings.Replace(graphs.Twice, "%3: f32", "%3: f64", 1) }),
			"capture crashes, and did not: ir: node 3, \"%3: f64[2]             = add %1 %2\": " +
				"the result is f32, not f64", false},
	} {
		text, same, err := test.r.Replay(nil)
		require.NoError(t, err)
		assert.Equal(t, test.text, text)
		assert.Equal(t, test.same, same)
	}
	// A crash before the first pass is the only one that a test can make without a broken pass.
	broken := change(func(r *Repro) {
		r.Capture, r.Passes = strings.Replace(graphs.Twice, "%3: f32", "%3: f64", 1), []string{FirstPass}
	})
	text, _, err := broken.Replay(nil)
	require.NoError(t, err)
	broken.Crash = text[strings.Index(text, "ir: "):]
	r, err := Parse("r", broken.Format())
	require.NoError(t, err)
	text, same, err := r.Replay(nil)
	require.NoError(t, err)
	assert.True(t, same, text)
	assert.Contains(t, text, "the same crash, in capture: ir: node 3")
	r.Crash = "something else"
	text, same, err = r.Replay(nil)
	require.NoError(t, err)
	assert.False(t, same)
	assert.Contains(t, text, "another crash, in capture: ir: node 3")
}

// TestMistakes: each mistake is reported with its line and column, for every file of the archive.
func TestMistakes(t *testing.T) {
	text := string(good().Format())
	lines := strings.Split(text, "\n")
	require.Equal(t, "-- capture.ir --", lines[10], "the line numbers below count on it")
	edit := func(old, with string) string {
		require.Contains(t, text, old)
		return strings.Replace(text, old, with, 1)
	}
	for _, test := range []struct{ text, want string }{
		{edit("relu %0\n  %2", "relu %2\n  %2"), "r:14:33: expected a value defined above, found %2"}, // a cycle: %2 needs %1
		{edit("= input 0", "= inptu 0"), "r:13:28: expected an op, found \"inptu\""},
		{edit("%3: f32[2]", "%3: f64[2]"), "r:16:28: expected a valid graph: ir: node 3, "},
		{edit(graphs.Once, graphs.Once[:60]), "r:22:6: expected a type like f32[n], found the end of the line"},
		{edit(graphs.Once, strings.Replace(graphs.Once, "add", "adt", 1)), "r:23:28: expected an op, found \"adt\""},
		{edit("passes: cse dce", "passes: cse fuses"), "r:8:13: expected a pass (views, cse, "},
		{edit("passes: cse dce", "passes: capture"), "r:8:9: expected a pass (views, cse, "},
		{edit("-NegOfNeg", "-NegOfNge"), "r:9:8: expected words of MYCELYA_PASSES: no pass \"NegOfNge\""},
		{edit("check: 2", "check: two"), "r:10:8: expected a level like 2, found \"two\""},
		{edit("check: 2", "chekc: 2"), "r:10:1: expected program, mycelya, torch, passes, words or check, found \"chekc\""},
		{edit("check: 2", "torch: 2"), "r:10:1: expected torch: once, found it again"},
		{edit("-- out.ir --", "-- capture.ir --"), "r:19:1: expected capture.ir once, found it again"},
		{edit("-- out.ir --", "-- output.ir --"), "r:19:1: expected capture.ir, out.ir or crash.txt, found \"output.ir\""},
		{text + "-- crash.txt --\nno luck\n", "r:26:1: expected out.ir or crash.txt, found both"},
		{text + "-- crash.txt --\n", "r:27:1: expected the first line of an error, found nothing"},
		{text[:strings.Index(text, "-- out")], "r:19:1: expected -- out.ir -- or -- crash.txt --, found the end of the file"},
		{text[:strings.Index(text, "-- cap")], "r:11:1: expected -- capture.ir --, found the end of the file"},
		{"", "r:1:1: expected a line with the passes that ran, as in \"passes: cse dce\", found none"},
	} {
		_, err := Parse("r", []byte(test.text))
		if assert.Error(t, err, test.want) {
			assert.True(t, strings.HasPrefix(err.Error(), test.want), "%v is not %s", err, test.want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(string(good().Format()))
	f.Fuzz(func(t *testing.T, text string) {
		r, err := Parse("r", []byte(text))
		if err != nil {
			return
		}
		if g, err := ir.Parse(r.Capture); err != nil || r.Crash == "" && ir.Verify(g) != nil {
			t.Fatalf("a bad graph is taken: %v", err)
		}
		if _, err := passes.ParseSpec(r.Words); err != nil {
			t.Fatal(err)
		}
	})
}
