// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestFromTraceToProgram follows a trace through every stage of the client.
func TestFromTraceToProgram(t *testing.T) {
	golden.Run(t, "testdata/stages", func(t *testing.T, c *golden.Case) {
		names := capture.NewTable()
		tr, err := asm.Parse(c.File("trace"), names)
		require.NoError(t, err)
		wanted := make([]bool, len(tr.Alive))
		for i, a := range tr.Alive {
			wanted[i] = a != 0
		}
		captured, err := names.Build(tr, wanted, tr.Params, true)
		require.NoError(t, err)
		c.Check("capture.ir", captured.Graph.String())
		g, err := passes.Run(captured.Graph, passes.Options{Check: 1})
		require.NoError(t, err)
		c.Check("final.ir", g.String())
		scratch := make([]bool, len(wanted))
		for i := range scratch {
			scratch[i] = captured.Changed[i] && captured.Inputs[i]
		}
		compiled, err := codegen.Compile(g, codegen.Options{Scratch: scratch})
		require.NoError(t, err)
		require.NoError(t, compiled.Program.Validate())
		c.Check("plan", compiled.Text())
	})
}
