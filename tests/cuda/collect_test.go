// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/tools/txtar"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/codegen/bind"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/tests/graphs"
)

// bindable is a kernel of a program, with the instances of the step that launches it.
type bindable struct {
	graph     string
	k         *kernel.Kernel
	instances []cuda.Instance
}

// collect returns the kernels of all graphs of the tests: the replay corpus and the golden files of all stages.
func collect(t *testing.T) []bindable {
	var out []bindable
	graphs := 0
	take := func(name, text string) {
		g, err := ir.Parse(text)
		if err != nil {
			return // a golden file of an invalid graph
		}
		if g, err = passes.Run(g, passes.Options{}); err != nil {
			return
		}
		c, err := codegen.Compile(g, codegen.Options{Kernels: true, Scratch: make([]bool, 4096)})
		if err != nil {
			return
		}
		graphs++
		out = append(out, launched(t, name, g, c)...)
	}
	root := filepath.Join("..", "..")
	for _, folder := range []string{"tests/replay/corpus", "tests/replay/budgets", "tests/program/testdata",
		"passes/testdata", "codegen/testdata", "ir/testdata"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(root, folder), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			name := filepath.Base(path)
			if filepath.Ext(path) == ".ir" {
				take(name, string(text))
				return nil
			}
			for _, f := range txtar.Parse(text).Files {
				if strings.HasPrefix(string(f.Data), "graph ") {
					take(name+" "+f.Name, string(f.Data))
				}
			}
			return nil
		}))
	}
	require.Greater(t, graphs, 60)
	return out
}

// drawn returns the kernels of random graphs, which tests/program runs too.
func drawn(t *testing.T, graphsOf int) (out []bindable) {
	generator := rapid.Custom(graphs.Own)
	for i := range graphsOf {
		g, err := passes.Run(generator.Example(int(*seed)*100000+i).Graph, passes.Options{})
		require.NoError(t, err)
		c, err := codegen.Compile(g, codegen.Options{Kernels: true, Scratch: make([]bool, 64)})
		require.NoError(t, err)
		if len(c.Program.Kernels) > 0 {
			out = append(out, launched(t, fmt.Sprintf("graph %d", i), g, c)...)
		}
	}
	return out
}

// launched returns the kernels of a program, with the sizes first seen.
func launched(t *testing.T, name string, g *ir.Graph, c *codegen.Compiled) (out []bindable) {
	words, err := c.FirstSeen(g)
	require.NoError(t, err, name)
	for _, s := range c.Program.Steps {
		op, ok := s.(*program.Kernel)
		if !ok {
			continue
		}
		k := c.Program.Kernels[op.Kernel]
		instances, err := bind.Instances(k, c.Program, op, words)
		require.NoError(t, err, name)
		out = append(out, bindable{name, k, instances})
	}
	return out
}
