// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package replay

import (
	"flag"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write summary.txt")

// TestSummary: what becomes of the corpus is what summary.txt says. A change of the compiler that changes it shows what it has done.
func TestSummary(t *testing.T) {
	all, err := Compile("corpus", 2)
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
