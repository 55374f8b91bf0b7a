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

	// Two readers, and again the first one's operand: each reads it once.
	const two = operands + "  %2: f32[a,b] = add %0 %0\n  %3: f32[a,b] = mul %0 %2\n  %4: f32[a,b] = add %0 %3\n"
	near(4.0*7*6*50/15, of(two, 0, 6, 50, 7))
	// Tensors that share their first size only, and constant sizes.
	const first = "  dims a=6@1 b=50@2 c=7@3\n  %0: f32[a,b] = input 0\n  %1: f32[a,c] = input 1\n" +
		"  %2: f32[a,b] = add %0 %0\n  %3: f32[a,c] = add %1 %1\n  output %2 -> s1\n  output %3 -> s2\n"
	near(8.0*6*(50+7)/15, of(first, 0, 6, 50, 7))
	near(8.0*9*(2+1000)/15, of(first, 0, 9, 2, 1000))
	const constant = "  dims a=6@1\n  %0: f32[a,3] = input 0\n  %1: f16[a,3] = input 1\n  %2: f32[a,5] = input 2\n" +
		"  %3: f32[a,3] = neg %0\n  %4: f16[a,3] = neg %1\n  %5: f32[a,5] = neg %2\n" +
		"  output %3 -> s1\n  output %4 -> s2\n  output %5 -> s3\n"
	near(2.0*10*(4*3+2*3+4*5)/15, of(constant, 0, 10))
}
