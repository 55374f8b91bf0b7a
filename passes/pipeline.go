// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
)

// Pass turns a graph into a better one with the same meaning, or returns the graph it was given. It never changes that
// graph, and never prints, times or verifies: the driver does.
type Pass struct {
	Name  string
	Doc   string
	Rules []Rule // that it has, each of which can be switched off
	run   func(*ir.Graph, *rules) *ir.Graph
}

// without is a pass that has no rules.
func without(run func(*ir.Graph) *ir.Graph) func(*ir.Graph, *rules) *ir.Graph {
	return func(g *ir.Graph, _ *rules) *ir.Graph { return run(g) }
}

// order is a constraint on the pipeline.
type order struct{ before, after, why string }

// pipeline lists the passes in the order in which they run.
func pipeline() []Pass {
	return []Pass{
		{"views", "shorter chains of views, writes through them and reads of what was written", viewsRules(), rewrite},
		{"cse", "one value for what is computed twice", nil, without(cse)},
		{"simplify", "algebra that is exact", simplifyRules(), rewrite},
		{"fold", "what is the same everywhere is a fill, and a fill is a number", foldRules(), rewrite},
		{"dce", "drop what no output needs", nil, without(dce)},
		{"order", "values are computed when they are needed, where that frees memory", nil, without(later)},
		{"fuse", "groups of nodes that kernels compute together", nil, fuse},
	}
}

// orders says again what the order of the pipeline must respect, and why.
func orders() []order {
	return []order{
		{"views", "cse", "equal views of one storage are one value only when they name the same operand"},
		{"cse", "simplify", "x and y of where c x y are the same value only when they are one"},
		{"cse", "dce", "cse takes the users from a value computed twice; only dce drops its node"},
		{"simplify", "dce", "what a rule goes past is left without users"},
		{"simplify", "fold", "a fill that an op goes past may be all that is left of it"},
		{"fold", "dce", "a fill that is a number now is left without users"},
		{"dce", "fuse", "a value that nobody needs would be computed with those that somebody does"},
		{"dce", "order", "a use that nobody needs would hold a node in its place"},
		{"order", "fuse", "the nodes of a group stay together"},
	}
}

// checkPipeline says what is wrong with the table.
func checkPipeline(passes []Pass, orders []order) error {
	at, rules := map[string]int{}, map[string]string{}
	for i, p := range passes {
		if _, dup := at[p.Name]; dup || p.Name == "" || p.Doc == "" || p.run == nil {
			return fmt.Errorf("passes: row %d of the pipeline, %q, is incomplete or there twice", i, p.Name)
		}
		at[p.Name] = i
		for _, r := range p.Rules {
			if r.Name == "" || r.Doc == "" || r.Op == ir.OpInvalid || r.match == nil || r.replace == nil {
				return fmt.Errorf("passes: rule %q of %s is incomplete", r.Name, p.Name)
			}
			if rules[r.Name] != "" && rules[r.Name] != p.Name {
				return fmt.Errorf("passes: %s and %s both have a rule %s", rules[r.Name], p.Name, r.Name)
			}
			rules[r.Name] = p.Name
		}
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
