// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestSource prints the launches and texts of graphs on a GPU with 132 multiprocessors, without the text of
// codegen/cuda/prelude.go.
func TestSource(t *testing.T) {
	golden.Run(t, "testdata/source", func(t *testing.T, c *golden.Case) {
		g, err := ir.Parse(c.File("in.ir"))
		require.NoError(t, err)
		g, err = passes.Run(g, passes.Options{})
		require.NoError(t, err)
		compiled, err := codegen.Compile(g, codegen.Options{Kernels: true})
		require.NoError(t, err)
		require.Empty(t, compiled.Unfused)
		template := c.Words("template")
		for i, b := range launched(t, c.Name, g, compiled) {
			var out strings.Builder
			for _, l := range cuda.Launches(b.k, b.instances, cuda.Device{SMs: 132}) {
				require.Equal(t, template[0], l.Variant.Template.String())
				s := cuda.Print(b.k, l.Variant)
				if l.Entry == s.Entries[0] {
					at := strings.Index(s.Text, "struct Args {")
					out.WriteString(comments(s.Text[:at]) + s.Text[at:])
				}
				fmt.Fprintf(&out, "// launch %s: %d blocks of %d x %d threads, %d words of arguments", l.Entry, l.Grid,
					l.Block[0], l.Block[1], len(l.Args[0]))
				if n := len(l.Args); n > 1 {
					fmt.Fprintf(&out, " for each of %d instances", n)
				}
				if l.Scratch > 0 {
					fmt.Fprintf(&out, ", %d bytes of scratch", l.Scratch)
				}
				out.WriteString("\n")
			}
			c.Check(fmt.Sprintf("kernel_%d.cu", i), out.String())
		}
	})
}

// comments returns the comment lines of a text.
func comments(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "//") {
			out.WriteString(line)
		}
	}
	return out.String()
}
