// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/graphs"
	"github.com/mycelya/mycelya/worker/conformance"
)

// TestPassesKeepMeaningInLibtorch runs random graphs over all own ops and dtypes in libtorch, before and after the
// passes, and compares every byte. Passes may choose other kernels of PyTorch, but must not change results. All NaNs
// are equal.
func TestPassesKeepMeaningInLibtorch(t *testing.T) {
	torch, err := conformance.Torch(t).Load()
	require.NoError(t, err)
	ran := 0
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Own(t)
		after, err := passes.Run(p.Graph, passes.Options{Check: 2})
		require.NoError(t, err, p.Graph.String())
		results := func(g *ir.Graph) map[uint32][]byte {
			c, err := codegen.Compile(g, codegen.Options{Scratch: make([]bool, 64)})
			require.NoError(t, err, g.String())
			if !c.Holds(p.Params) {
				t.Skip("a pass requires equal sizes") // the sizes of this run break that
			}
			out, _ := runOn(t, torch, c, p.Params, p.Inputs)
			return out
		}
		want, got := results(p.Graph), results(after)
		if len(want) == 0 {
			return // the graph fails, for example by an integer division by zero; a pass may remove that node
		}
		ran++
		for _, o := range p.Graph.Outputs {
			if p.Graph.Types[o.Value].Strides != nil {
				continue // the bytes between the elements are undefined
			}
			if d := p.Graph.Types[o.Value].DType; !graphs.Same(d, want[o.Slot], got[o.Slot]) {
				t.Fatalf("storage %d is %x, not %x\n%s\nbecomes\n%s", o.Slot, got[o.Slot], want[o.Slot], p.Graph, after)
			}
		}
	})
	require.Greater(t, ran, 20, "too few graphs ran")
}
