// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cost_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
)

func TestWeight(t *testing.T) {
	of := func(text string, params ...uint64) float64 {
		g, err := ir.Parse("graph f read {\n" + text + "  output %0 -> s0\n}\n")
		require.NoError(t, err)
		w := cost.WeightOf(g)
		return w.Nanoseconds(params)
	}
	const operands = "  dims a=6@1 b=50@2 c=7@3\n  %0: f32[a,b] = input 0\n  %1: f32[b,c] = input 1\n"
	const mm = operands + "  %2: f32[a,c] = aten.mm %0 %1\n"
	near := func(want, got float64) { require.InEpsilon(t, want, got, 1e-9) }
	near(4.0*(6*50+50*7)/15+6*50*7/25.0, of(mm, 0, 6, 50, 7))
	near(4.0*(600*50+50*7)/15+600*50*7/25.0, of(mm, 0, 600, 50, 7))
	const addmm = operands + "  %2: f32[c] = input 2\n  %3: f32[a,c] = aten.addmm %2 %0 %1 1 1\n"
	near(4.0*(6*50+50*7+7)/15+6*50*7/25.0, of(addmm, 0, 6, 50, 7))
	near(4.0*6*50/15, of(operands+"  %2: f32[a,b] = add %0 %0\n", 0, 6, 50, 7))
	near(8.0*6*50/15, of(operands+"  %2: f32[a,b] = add %0 %0\n  output %2 -> s1\n", 0, 6, 50, 7))
	require.Zero(t, of(operands+"  %2: f32[a,b] = add %0 %0\n", 0, 0, 50, 7))
}
