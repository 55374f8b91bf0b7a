// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/graphs"
	"github.com/mycelya/mycelya/worker/conformance"
)

// TestPassesKeepMeaningInLibtorch runs random graphs over all own ops and dtypes in libtorch, as they are and after the
// passes, and compares every byte: the passes may change which kernels of PyTorch's run, not what they give. A NaN is a
// NaN.
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
				t.Skip("a chance that a pass relies on") // the sizes first seen are not these
			}
			out, _ := runOn(t, torch, c, p.Params, p.Inputs)
			return out
		}
		want, got := results(p.Graph), results(after)
		if len(want) == 0 {
			return // it fails: an integer divided by zero, say, which a pass may drop
		}
		ran++
		for _, o := range p.Graph.Outputs {
			if p.Graph.Types[o.Value].Strides != nil {
				continue // what lies between the elements is anybody's
			}
			if d := p.Graph.Types[o.Value].DType; !alike(d, want[o.Slot], got[o.Slot]) {
				t.Fatalf("storage %d is %x, not %x\n%s\nbecomes\n%s", o.Slot, got[o.Slot], want[o.Slot], p.Graph, after)
			}
		}
	})
	require.Greater(t, ran, 20, "hardly a graph ran")
}

// alike says whether two storages hold the same elements; not-a-number counts as one number.
func alike(d ir.DType, a, b []byte) bool {
	if len(a) != len(b) {
		return false
	}
	if d.Is(ir.Complexes) {
		d = d.Real()
	}
	for i := 0; i < len(a); i += d.Size() {
		x, y := a[i:i+d.Size()], b[i:i+d.Size()]
		if !bytes.Equal(x, y) && !(d.Is(ir.Floats) && isNaN(d, x) && isNaN(d, y)) {
			return false
		}
	}
	return true
}

// isNaN says whether the bits of a float, lowest byte first, are those of a NaN: all ones in the exponent, and not all
// zeros after it.
func isNaN(d ir.DType, bits []byte) bool {
	mantissa := map[ir.DType]int{ir.F16: 10, ir.BF16: 7, ir.F32: 23, ir.F64: 52}[d]
	var v uint64
	for i := len(bits) - 1; i >= 0; i-- {
		v = v<<8 | uint64(bits[i])
	}
	exponent := uint64(1)<<(8*d.Size()-1-mantissa) - 1
	return v>>mantissa&exponent == exponent && v&(1<<mantissa-1) != 0
}
