// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package replay

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write summary.txt")

// TestSummary compares the compiled corpus with summary.txt. The diff of that file shows the effect of a change of the
// compiler.
func TestSummary(t *testing.T) {
	all, err := Compile("corpus", 1, 0)
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(all), 10)
	got := Text(all)
	if *update {
		require.NoError(t, os.WriteFile("summary.txt", []byte(got), 0o644))
	}
	want, err := os.ReadFile("summary.txt")
	require.NoError(t, err)
	require.Equal(t, string(want), got, "go test ./tests/replay -update writes it")
	for _, r := range all {
		require.LessOrEqual(t, r.Moved, r.Apart, r.Name)
		require.Less(t, r.Kernels, r.Calls, "%s: nothing is fused", r.Name)
	}
}

// budgets are the maximum numbers of launches. An operator of PyTorch, such as a matrix product or attention, counts
// too.
var budgets = map[string]int{
	"adam": 2, "adamw": 2, "adamw_one_by_one": 1,
	"batch_norm": 2, "best": 1,
	"bias":  3,     // two products, and the gradient of the activation with the sum
	"block": 5 + 6, // four products and attention, and six kernels
	"chain": 1, "chosen": 1, "column_norm": 1, "cross_entropy": 2, "cross_entropy_step": 3, "greedy": 1, "images": 1,
	"logsumexp": 1, "lower": 1, "smooth_step": 4, "standard": 2,
	"layer_norm": 1, "masked_softmax": 1, "rms_norm": 1, "rotary": 1, "shuffled": 1,
	"swiglu":          1,
	"scores":          1 + 1, // the scaled queries and keys, and their product
	"divided":         1 + 1, // and the product
	"transposed_bias": 2 + 3, // two kernels, a copy and two products
	"unused":          0,
}

// TestBudgets checks that pieces of programs take no more kernels than their budget.
func TestBudgets(t *testing.T) {
	for check := 1; check <= 2; check++ { // 2: with the nodes in another order
		all, err := Compile("budgets", check, 0)
		require.NoError(t, err)
		for _, r := range all {
			most, ok := budgets[r.Name]
			require.True(t, ok, "budgets/%s.ir has no number", r.Name)
			if check == 2 && r.Name == "adamw_one_by_one" {
				continue // in another order, 800 nodes of one tensor may stand between those of another
			}
			assert.LessOrEqual(t, r.Kernels, most, "%s: %q", r.Name, r.Groups)
		}
		assert.Len(t, all, len(budgets))
	}
}
