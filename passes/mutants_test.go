// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"testing"

	"github.com/mycelya/mycelya/tests/mutants"
)

// TestMutants changes each clause of each condition of the rules and passes, one at a time, and requires that a test of
// this package fails, unless alive.txt lists the mutant. With -v it prints the table of the mutants and their
// killers.
func TestMutants(t *testing.T) {
	mutants.Run(t, mutants.Package{
		Files: []string{"rules.go", "views.go", "simplify.go", "fold.go", "cse.go", "dce.go", "order.go"},
		Args:  []string{"-rapid.seed=1", "-rapid.nofailfile", "-rapid.shrinktime=0s"},
		Alive: "alive.txt",
	})
}
