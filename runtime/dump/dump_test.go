// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
)

func TestParse(t *testing.T) {
	s, err := Parse("-,passes,only=train.py,max=3,plan")
	require.NoError(t, err)
	require.Equal(t, &Spec{To: "-", Passes: true, Plan: true, Only: "train.py", Max: 3}, s)
	s, err = Parse("/tmp/x")
	require.NoError(t, err)
	require.Equal(t, &Spec{To: "/tmp/x"}, s)
	s, err = Parse("")
	require.NoError(t, err)
	require.Nil(t, s)

	for value, want := range map[string]string{
		"-,pases":  `MYCELYA_DUMP has no word "pases"`,
		"-,max=no": `MYCELYA_DUMP has no word "max=no"`,
		"-,plan=1": `MYCELYA_DUMP has no word "plan=1"`,
		"-,":       `MYCELYA_DUMP has no word ""`,
		",plan":    `MYCELYA_DUMP begins with - for stderr, or with a folder`,
		"plan":     `MYCELYA_DUMP begins with - for stderr, or with a folder, not with the word "plan" (./plan is a folder)`,
	} {
		_, err := Parse(value)
		require.EqualError(t, err, want+`. It is - or a folder, then any of these words, with commas between:
  passes     on stderr, the graph after each pass that changed it, not only after the last
  all        passes that changed nothing too
  rules      on stderr, the rules that passes have applied, and to which lines, too
  plan       on stderr, the steps, parameters and memory of each program too
  only=TEXT  only programs with TEXT in their name, such as train.py:41
  max=N      only the first N programs`, value)
	}
}

func graph(name string, outputs int) *ir.Graph {
	g := ir.NewGraph(name, "read")
	x := g.Add(ir.Node{Op: ir.OpInput, Record: -1}, nil, []ir.Type{{DType: ir.F32}})
	for i := range outputs {
		g.Outputs = append(g.Outputs, ir.Output{Value: g.Nodes[x].First, Slot: uint32(i)})
	}
	return g
}

func TestStderr(t *testing.T) {
	var out bytes.Buffer
	d := New(&Spec{To: "-", Only: "a.py", Max: 1}, &out, slog.Default())
	require.Nil(t, d.Program("b.py:1", []byte{1}))
	p := d.Program("a.py:1", []byte{0xab, 0xcd})
	p.Stage("capture", graph("a.py:1", 2))
	p.Rule("cse", "NegOfNeg", ir.Origin{File: "model.py", Line: 12})
	p.Stage("cse", graph("a.py:1", 1))
	p.Plan(graph("a.py:1", 1), &codegen.Compiled{Program: &proto.Program{}})
	require.Nil(t, d.Program("a.py:2", []byte{1}))
	require.Equal(t, "# program 0, key abcd\n"+graph("a.py:1", 1).String(), out.String())
	graphs, err := ir.ParseAll(out.String())
	require.NoError(t, err)
	require.Len(t, graphs, 1)

	out.Reset()
	p = New(&Spec{To: "-", Rules: true}, &out, slog.Default()).Program("a.py:1", []byte{0xab, 0xcd})
	p.Rule("cse", "NegOfNeg", ir.Origin{File: "model.py", Line: 12})
	p.Plan(graph("a.py:1", 1), &codegen.Compiled{Program: &proto.Program{}})
	require.Contains(t, out.String(), "# program 0, key abcd, rules\n00-cse        NegOfNeg         model.py:12\n")
}

func TestFolder(t *testing.T) {
	dir := t.TempDir()
	d := New(&Spec{To: dir}, os.Stderr, slog.Default())
	p := d.Program("x/a.py:1", []byte{1, 2, 3, 4, 5})
	p.Stage("capture", graph("a", 2))
	p.Stage("cse", graph("a", 2))
	p.Rule("dce", "NegOfNeg", ir.Origin{File: "model.py", Line: 12})
	p.Rule("dce", "Again", ir.Origin{})
	p.Stage("dce", graph("a", 1))
	p.Plan(graph("a", 1), &codegen.Compiled{Program: &proto.Program{Buffers: 7}})
	d.Program("b", []byte{9}).Failed(errors.New("too bad"))
	var names []string
	require.NoError(t, filepath.WalkDir(dir, func(path string, e os.DirEntry, err error) error {
		if !e.IsDir() {
			name, _ := filepath.Rel(dir, path)
			names = append(names, name)
		}
		return err
	}))
	require.Equal(t, []string{"000-x_a.py:1-01020304/00-capture.ir", "000-x_a.py:1-01020304/02-dce.ir", "000-x_a.py:1-01020304/plan.txt",
		"000-x_a.py:1-01020304/rules.txt", "001-b-09/error.txt", "summary.txt"}, names)
	rules, err := os.ReadFile(filepath.Join(dir, names[3]))
	require.NoError(t, err)
	require.Equal(t, "02-dce        NegOfNeg         model.py:12\n02-dce        Again            ?\n", string(rules))
	summary, err := os.ReadFile(filepath.Join(dir, "summary.txt"))
	require.NoError(t, err)
	require.Contains(t, string(summary), "key 0102030405  1 nodes, 0 steps, 7 buffers")
}

func TestAFolderThatCannotBeWrittenOnlyWarns(t *testing.T) {
	var log bytes.Buffer
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	d := New(&Spec{To: file}, os.Stderr, slog.New(slog.NewTextHandler(&log, nil)))
	p := d.Program("a", []byte{1})
	p.Stage("capture", graph("a", 1))
	p.Stage("dce", graph("a", 2))
	require.Equal(t, 1, bytes.Count(log.Bytes(), []byte("can't be written")))
}
