// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/worker/conformance"
	"github.com/mycelya/mycelya/worker/executor"
)

// resident returns the resident memory of this process.
func resident(t *testing.T) int {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("this system does not report a process's memory")
	}
	var total, pages int
	_, err = fmt.Sscan(string(statm), &total, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

// TestSizeOfPreparedPrograms compares the measured memory of prepared programs with the growth of the process.
func TestSizeOfPreparedPrograms(t *testing.T) {
	b, err := conformance.Torch(t).Load()
	require.NoError(t, err)
	x, err := b.New("")
	require.NoError(t, err)
	defer x.Close()
	var all []executor.Prepared // dropped at the end: a later program would take the memory
	for _, name := range []string{"budgets/adamw", "corpus/bert", "corpus/lstm", "corpus/resnet18", "corpus/mlp"} {
		text, err := os.ReadFile(filepath.Join("..", "replay", name+".ir"))
		require.NoError(t, err)
		g, err := ir.Parse(string(text))
		require.NoError(t, err)
		g, err = passes.Run(g, passes.Options{})
		require.NoError(t, err)
		c, err := codegen.Compile(g, codegen.Options{Kernels: true})
		require.NoError(t, err)
		words := c.Program.Words()
		n := max(20, int(64<<20/executor.PreparedBytes(c.Program)))
		programs := make([]executor.Prepared, n)
		for i := range 4 { // what the first ones leave in caches does not count
			programs[i], err = x.Prepare(c.Program, words)
			require.NoError(t, err)
		}
		before := resident(t)
		for i := 4; i < n; i++ {
			programs[i], err = x.Prepare(c.Program, words)
			require.NoError(t, err)
		}
		grown := resident(t) - before
		measured := executor.PreparedBytes(c.Program) * int64(n-4)
		t.Logf("%s: %d bytes are measured as %d: %.2f", name, grown/(n-4), measured/int64(n-4),
			float64(measured)/float64(grown))
		require.InDelta(t, 1, float64(measured)/float64(grown), 0.3, name)
		all = append(all, programs...)
	}
	for _, p := range all {
		x.Drop(p)
	}
}
