// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package replay

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
)

// BenchmarkCompile measures a whole compilation, passes, kernels and program, for each graph of the corpus.
func BenchmarkCompile(b *testing.B) {
	paths, err := filepath.Glob("corpus/*.ir")
	require.NoError(b, err)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		require.NoError(b, err)
		before, err := ir.Parse(string(text))
		require.NoError(b, err)
		b.Run(strings.TrimSuffix(filepath.Base(path), ".ir"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				g, err := passes.Run(before, passes.Options{})
				require.NoError(b, err)
				_, err = codegen.Compile(g, codegen.Options{Kernels: true})
				require.NoError(b, err)
			}
		})
	}
}
