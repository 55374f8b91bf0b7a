// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
)

// Pass turns a graph into a better one with the same meaning, or returns the graph that it was given. A pass never
// changes that graph and never prints, times or verifies: the driver does.
type Pass struct {
	Name  string
	Doc   string
	Rules []Rule // each can be switched off by name
	run   func(*ir.Graph, *rules) *ir.Graph
}

// without is a run function that needs no rules.
func without(run func(*ir.Graph) *ir.Graph) func(*ir.Graph, *rules) *ir.Graph {
	return func(g *ir.Graph, _ *rules) *ir.Graph { return run(g) }
}

// order is a constraint on the pipeline.
type order struct{ before, after, why string }

// pipeline lists the passes in the order in which they run.
func pipeline() []Pass {
	return []Pass{
		{"views", "shorter chains of views, of writes through views and of reads of written windows", viewsRules(), rewrite},
		{"cse", "one value for two nodes that compute the same", nil, without(cse)},
		{"simplify", "exact algebra", simplifyRules(), rewrite},
		{"fold", "constant folding: storages that are filled become fills, and fills become numbers", foldRules(), rewrite},
		{"dce", "drop nodes that no output needs", nil, without(dce)},
		{"overlap", "wait for collectives when their values are needed", nil, without(overlap)},
		{"order", "compute values when they are needed, where that frees memory", nil, without(later)},
		{"fuse", "groups of nodes that kernels compute together", nil, fuse},
	}
}

// orders states the constraints on the order of the pipeline, with their reasons.
func orders() []order {
	return []order{
		{"views", "cse", "equal views of one storage are one value only when they name the same operand"},
		{"cse", "simplify", "x and y of where c x y are the same value only when they are one"},
		{"cse", "dce", "cse leaves the second of two equal nodes without users; only dce drops it"},
		{"simplify", "dce", "rules leave nodes without users"},
		{"simplify", "fold", "a rule may leave a fill as the operand of an op"},
		{"fold", "dce", "a fill whose number is taken is left without users"},
		{"dce", "fuse", "a group would compute values that no output needs"},
		{"dce", "order", "an unneeded use would hold a node in its place"},
		{"dce", "overlap", "an unneeded use would hold a wait in its place"},
		{"overlap", "order", "a wait is an effect, and no node goes past it"},
		{"order", "fuse", "the nodes of a group stay together"},
	}
}

// checkPipeline returns an error if the table is incomplete, ambiguous or in a wrong order.
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
