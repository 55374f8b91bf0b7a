// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
)

// TestUndrawn checks that a group with a dropout has a kernel. With Undrawn, for devices with another random generator,
// it has none, and the program gives the reason.
func TestUndrawn(t *testing.T) {
	g, err := ir.Parse(`
graph model.py:1 sync {
  dims n=64@0
  %0: f32[n] = input 0
  %1: f32[n] = exp %0
  %2: f32[n], %3: b8[n] = aten.native_dropout %1 0.5 true !rng
  %4: f32[n] = relu %2
  output %4 -> s1
}
`)
	require.NoError(t, err)
	g, err = passes.Run(g, passes.Options{Check: 1})
	require.NoError(t, err)
	for _, undrawn := range []bool{false, true} {
		c, err := codegen.Compile(g, codegen.Options{Kernels: true, Undrawn: undrawn})
		require.NoError(t, err)
		require.Equal(t, undrawn, len(c.Program.Kernels) == 0, c.Text())
		if undrawn {
			require.Len(t, c.Unfused, 1)
			require.Equal(t, "it draws random numbers, which on this device are its own operators'", c.Unfused[0].Why)
		}
	}
}
