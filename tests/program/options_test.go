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

// TestCopies checks that a kernel makes a concatenation that a product needs in memory. With Copies, for devices whose
// operators copy faster, the operator makes it. The loop that is its only reader makes a concatenation on all devices.
func TestCopies(t *testing.T) {
	for _, c := range []struct {
		reader        string
		fused, copied int // kernels
	}{
		{"aten.mm %2 %1", 1, 0},
		{"exp %2", 1, 1},
	} {
		g, err := ir.Parse(`
graph model.py:1 sync {
  dims n=4@0 m=8@1
  %0: f32[n,n] = input 0
  %1: f32[m,m] = input 1
  %2: f32[n,m] = aten.cat [%0, %0] 1
  %3: f32[n,m] = relu %2
  %4: f32[n,m] = ` + c.reader + `
  output %3 -> s2
  output %4 -> s3
}
`)
		require.NoError(t, err)
		g, err = passes.Run(g, passes.Options{Check: 1})
		require.NoError(t, err)
		for _, copies := range []bool{false, true} {
			made, err := codegen.Compile(g, codegen.Options{Kernels: true, Copies: copies})
			require.NoError(t, err)
			want := c.fused
			if copies {
				want = c.copied
			}
			require.Len(t, made.Program.Kernels, want, made.Text())
		}
	}
}
