// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/passes/repro"
	"github.com/mycelya/mycelya/proto/transport"
)

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	about := About{Mycelya: "0.1.0", Passes: "-cse", Check: 2}
	d := New(&Spec{To: dir, Wire: true, Max: 1}, about, os.Stderr, slog.Default())
	of := key(1, 2, 3, 4, 5)
	of.Place = "x/a.py:1"
	compile(t, d, of, sample)
	of.Number, of.Device = 2, 1
	compile(t, d, of, sample) // max: no folder
	d.Frame(0, true, transport.Call, 7, 120)
	files := tree(t, dir)
	folder := "001-x_a.py:1-01020304/"
	// views is there only if the shuffle of Check 2 moves nodes, which depends on the numbers of ops.
	moved := func(name string) bool { return name == folder+"01-views.ir" }
	require.Equal(t, []string{folder + "00-capture.ir", folder + "02-cse.ir", folder + "03-simplify.ir",
		folder + "04-dce.ir", folder + "graph.html", folder + "plan.txt", folder + "repro.txtar", folder + "rules.txt",
		"events.jsonl", "index.html", "summary.txt", "why.txt", "wire.txt"}, slices.DeleteFunc(names(files), moved))
	require.Equal(t, "03-simplify   NegOfNeg         a.py:5\n", files[folder+"rules.txt"])
	rest := "  x/a.py:1                 read    key 0102030405" +
		"  5 ops, 3 nodes, 2 steps, 2 buffers, 1 parameter, 1 input, 1 output\n"
	require.Equal(t, "001"+rest+"002 of mycelya:1"+rest, files["summary.txt"])
	require.Equal(t, `cut 1 at x/a.py:1 because a value was read: 5 ops, program #1, a new one
  #1: Record 1 of 5 is the first that differs.
    here:  <b> "&"
cut 2 of mycelya:1 at x/a.py:1 because a value was read: 5 ops, program #2, a new one
  #2: Record 1 of 5 is the first that differs.
    here:  <b> "&"
`, files["why.txt"])
	require.Equal(t, "sent     Call            7  120 bytes\n", files["wire.txt"])

	r, err := repro.Parse("repro.txtar", []byte(files[folder+"repro.txtar"]))
	require.NoError(t, err)
	require.Equal(t, "x/a.py:1 read", r.Program)
	require.Equal(t, "2.15.0", r.Torch)
	require.Equal(t, files[folder+"00-capture.ir"], r.Capture)
	require.Equal(t, files[folder+"04-dce.ir"], r.Out)
	r.Words = "" // the run above did without it
	text, same, err := r.Replay(nil)
	require.NoError(t, err)
	require.True(t, same, text)

	var kinds []string
	for line := range strings.Lines(files["events.jsonl"]) {
		var e map[string]any
		require.NoError(t, json.Unmarshal([]byte(line), &e), line)
		kinds = append(kinds, e["event"].(string))
	}
	program := []string{"cut", "pass", "pass", "pass", "pass", "compile"}
	require.Equal(t, slices.Concat([]string{"run"}, program, program), kinds)
	require.Contains(t, files["events.jsonl"], `"why":"Record 1 of 5 is the first that differs.`+
		`\n  here:  \u003cb\u003e \"\u0026\"","error":"","folder":"","seconds":0}`)
}

// TestTwoRunsWriteTheSame, except for durations.
func TestTwoRunsWriteTheSame(t *testing.T) {
	write := func() map[string]string {
		dir := t.TempDir()
		d := New(&Spec{To: dir, All: true}, About{Mycelya: "0.1.0"}, os.Stderr, slog.Default())
		for i := range 5 {
			of := key(byte(i))
			of.Number = i + 1
			compile(t, d, of, sample)
			compile(t, d, Of{Number: i + 1, Device: 1, Place: "b.py:2", Reason: "sync"}, chain(20*i+3))
		}
		return tree(t, dir)
	}
	first := write()
	require.Greater(t, len(first), 80)
	require.Equal(t, first, write())
	for name, text := range first {
		if name != "events.jsonl" && name != "index.html" {
			require.NotContains(t, text, "seconds", name)
		}
	}
}

// TestASecondRunLeavesNothingOfTheFirst in the files and folders that both write.
func TestASecondRunLeavesNothingOfTheFirst(t *testing.T) {
	dir := t.TempDir()
	program := filepath.Join(dir, "001-a.py:9-01")
	require.NoError(t, os.Mkdir(program, 0o755))
	for _, name := range []string{"crash.ir", "error.txt", "notes.md"} {
		require.NoError(t, os.WriteFile(filepath.Join(program, name), nil, 0o644))
	}
	for range 2 {
		d := New(&Spec{To: dir}, About{}, os.Stderr, slog.Default())
		compile(t, d, key(1), sample)
	}
	files := tree(t, dir)
	require.NotContains(t, files, "001-a.py:9-01/crash.ir")
	require.NotContains(t, files, "001-a.py:9-01/error.txt")
	require.Contains(t, files, "001-a.py:9-01/notes.md", "it is somebody's own")
	require.Equal(t, 1, strings.Count(files["summary.txt"], "\n"))
	require.Equal(t, 1, strings.Count(files["index.html"], `"event":"compile"`))
}

func TestCrash(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir}, About{Check: 1}, os.Stderr, slog.Default())
	p := d.Program(key(1))
	g := parsed(t, sample)
	p.Begin(g)
	p.After("views", false, nil, g, 0)
	panicked := errors.New("panic: no luck\ngoroutine 7 [running]:\nmain.f(0xc000123, {0x1, 0x2})\n\ta.go:3 +0x1d")
	p.Crash("cse", g, panicked)
	p.End(5, "passes: cse: "+panicked.Error(), 0)
	files := tree(t, dir)
	folder := "001-a.py:9-01/"
	require.Equal(t, []string{folder + "00-capture.ir", folder + "crash.ir", folder + "error.txt",
		folder + "graph.html", folder + "repro.txtar", "events.jsonl", "index.html", "summary.txt", "why.txt"}, names(files))
	require.Equal(t, g.String(), files[folder+"crash.ir"])
	require.Equal(t, "pass cse: panic: no luck\n… [running]:\nmain.f(…, {…, …})\n\ta.go:3 +…\n", files[folder+"error.txt"])
	require.Equal(t, "  #1: could not be compiled: passes: cse: panic: no luck\n", files["why.txt"])
	require.Contains(t, files["events.jsonl"], `"why":"","error":"passes: cse: panic: no luck","folder":"001-a.py:9-01"`)
	require.Contains(t, files[folder+"graph.html"], "pass cse: panic: no luck")
	r, err := repro.Parse("r", []byte(files[folder+"repro.txtar"]))
	require.NoError(t, err)
	require.Equal(t, []string{"views", "cse"}, r.Passes)
	require.Equal(t, "panic: no luck", r.Crash)
	text, same, err := r.Replay(nil)
	require.NoError(t, err)
	require.False(t, same)
	require.Contains(t, text, "no crash any more after views, cse")
}

func TestACrashBeforeTheFirstPass(t *testing.T) {
	dir := t.TempDir()
	p := New(&Spec{To: dir}, About{Check: 1}, os.Stderr, slog.Default()).Program(key(1))
	g := parsed(t, strings.Replace(sample, "%5: f32", "%5: f64", 1))
	_, err := passes.Run(g, passes.Options{Check: 1, Observer: p})
	require.Error(t, err)
	p.End(5, err.Error(), 0)
	files := tree(t, dir)
	r, err := repro.Parse("r", []byte(files["001-a.py:9-01/repro.txtar"]))
	require.NoError(t, err)
	text, same, err := r.Replay(nil)
	require.NoError(t, err)
	require.True(t, same, text)
	require.Contains(t, files["001-a.py:9-01/graph.html"], "the result is f32, not f64")
}

func TestATraceThatCouldNotBeCaptured(t *testing.T) {
	dir := t.TempDir()
	p := New(&Spec{To: dir}, About{}, os.Stderr, slog.Default()).Program(key(1))
	p.End(5, "decoding a trace: bad words", 0)
	files := tree(t, dir)
	require.Equal(t, []string{"events.jsonl", "index.html", "summary.txt", "why.txt"}, names(files))
	require.Contains(t, files["summary.txt"], "could not be compiled: decoding a trace: bad words\n")
	require.Contains(t, files["events.jsonl"], `"folder":""`)
}

// TestLongRuns: the number of listed cuts has a limit, and the cost of a cut does not depend on the number of earlier
// ones.
func TestLongRuns(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir}, About{}, os.Stderr, slog.Default())
	cut := Cut{Place: "a.py:9", Reason: "read", Why: "a value was read", Ops: 5, Program: 1}
	d.Cut(cut)
	size := func(name string) int64 {
		info, err := os.Stat(filepath.Join(dir, name))
		require.NoError(t, err)
		return info.Size()
	}
	one := size("index.html")
	for range 2000 {
		d.Cut(cut)
	}
	require.Less(t, size("index.html"), one+2000*150)
	d.cuts = maxCuts
	before := size("events.jsonl")
	for range 10 {
		d.Cut(cut)
	}
	require.Equal(t, before, size("events.jsonl"))
	last := "… later cuts are not listed: there are more than 100000.\n"
	require.Equal(t, 1, strings.Count(tree(t, dir)["why.txt"], last))
}

func TestAFolderThatCannotBeWrittenOnlyWarns(t *testing.T) {
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	d := New(&Spec{To: file, Wire: true}, About{}, os.Stderr, slog.New(slog.NewTextHandler(&log, nil)))
	compile(t, d, key(1), sample)
	compile(t, d, key(2), sample)
	d.Frame(0, true, transport.Call, 1, 2)
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("can't be written")))
}
