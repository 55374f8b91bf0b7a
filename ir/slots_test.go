// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

// TestBySlot uses the slots of a captured graph, and those of a file with a very large one.
func TestBySlot(t *testing.T) {
	for _, largest := range []uint32{5, 1<<32 - 1} {
		g := ir.NewGraph("", "")
		f32 := []ir.Type{{DType: ir.F32}}
		g.Add(ir.Node{Op: ir.OpInput, Slot: 2}, nil, f32)
		g.Add(ir.Node{Op: ir.OpInput, Slot: 1}, nil, f32)
		g.Outputs = []ir.Output{{Value: 0, Slot: largest}}
		g.Versions = []ir.Version{{Slot: 3}}
		s := ir.NewBySlot[int](g)
		for i, slot := range []uint32{1, 2, 3, largest} {
			require.Zero(t, *s.At(slot))
			*s.At(slot) = i + 1
		}
		for i, slot := range []uint32{1, 2, 3, largest} {
			require.Equal(t, i+1, *s.At(slot))
		}
	}
}
