// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
)

// Pass turns a graph into a better one with the same meaning, or returns the graph it was given. It never changes that graph, and
// never prints, times or verifies: the driver does.
type Pass struct {
	Name string
	Doc  string
	Run  func(*ir.Graph) *ir.Graph
}

// order is a constraint on the pipeline.
type order struct{ before, after, why string }

// pipeline lists the passes in the order in which they run.
func pipeline() []Pass {
	return []Pass{
		{"cse", "one value for what is computed twice", cse},
		{"dce", "drop what no output needs", dce},
	}
}

// orders says again what the order of the pipeline must respect, and why.
func orders() []order {
	return []order{
		{"cse", "dce", "cse takes the users from a value computed twice; only dce drops its node"},
	}
}

// checkPipeline says what is wrong with the table.
func checkPipeline(passes []Pass, orders []order) error {
	at := map[string]int{}
	for i, p := range passes {
		if _, dup := at[p.Name]; dup || p.Name == "" || p.Doc == "" || p.Run == nil {
			return fmt.Errorf("passes: row %d of the pipeline, %q, is incomplete or there twice", i, p.Name)
		}
		at[p.Name] = i
	}
	for _, o := range orders {
		b, ok := at[o.before]
		a, ok2 := at[o.after]
		if !ok || !ok2 || o.why == "" {
			return fmt.Errorf("passes: no such constraint: %s before %s", o.before, o.after)
		}
		if b >= a {
			return fmt.Errorf("passes: %s must come before %s: %s", o.before, o.after, o.why)
		}
	}
	return nil
}

// Pipeline returns the passes in the order in which they run.
func Pipeline() []Pass { return pipeline() }
