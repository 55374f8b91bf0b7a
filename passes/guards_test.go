// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/golden"
	"github.com/mycelya/mycelya/tests/graphs"
)

// TestGuards takes the guard of each rule to be true, one at a time, and requires that a case of the rule fails then.
// The header "unguarded:" of a case that expects a rule not to fire is what the rule would break without its guard:
//
//	type      the verifier refuses the graph, or an output has another type
//	value     an output has another value in ir/eval
//	write     a content that a call writes in place is shared, or a content that is overwritten is kept
//	torch     no value in ir/eval, but one in PyTorch, as the case explains
//	pattern   nothing: the pattern does not match, and the rule does not fire
//
// Cases of passes without rules have no such header; TestMutants changes their conditions. Package fusion tests the
// guards of fuse.
func TestGuards(t *testing.T) {
	for _, p := range passes.Pipeline() {
		if len(p.Rules) == 0 {
			continue
		}
		guarded := map[string]bool{}
		t.Run(p.Name, func(t *testing.T) {
			golden.Run(t, filepath.Join("testdata", p.Name), func(t *testing.T, c *golden.Case) {
				c.Skip("out.ir")
				rule, fires := subject(t, p, c)
				g, only, want := parse(t, c), c.Words("pass"), strings.Join(c.Words("unguarded"), " ")
				if fires {
					return
				}
				got := withoutGuard(g, only, rule)
				guarded[rule] = guarded[rule] || got != "pattern"
				if want != "torch" || got != "nothing" && got != "write" {
					assert.Equal(t, got, want, "what the rule breaks without its guard")
				}
			})
		})
		for _, rule := range rulesOf(p) {
			assert.True(t, guarded[rule], "every case of %s passes without the guard of %s", p.Name, rule)
		}
	}
}

// withoutGuard returns what a rule without its guard breaks.
func withoutGuard(g *ir.Graph, only []string, rule string) string {
	w := new(watcher)
	out, err := passes.Run(g, passes.Unguarded(passes.Options{Check: 1, Only: only, Observer: w}, rule))
	switch {
	case err != nil:
		return "type"
	case !slices.Contains(w.fired, rule):
		return "pattern"
	case !sameTypes(g, out):
		return "type"
	case !sameValues(g, out):
		return "value"
	case writes(g):
		return "write"
	}
	return "nothing"
}

func sameTypes(a, b *ir.Graph) bool {
	for i, o := range a.Outputs {
		if !assert.ObjectsAreEqual(a.Types[o.Value], b.Types[b.Outputs[i].Value]) {
			return false
		}
	}
	return true
}

func writes(g *ir.Graph) bool {
	for id := range g.Nodes {
		if len(g.Writes(ir.NodeID(id))) > 0 {
			return true
		}
	}
	return false
}

// sameValues compares the outputs of two graphs on random bits. Graphs that ir/eval can't run count as equal.
func sameValues(a, b *ir.Graph) bool {
	random := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		params, inputs := randomInputs(a, random)
		want, err := eval.Run(a, params, inputs)
		if err != nil {
			return true
		}
		got, err := eval.Run(b, params, inputs)
		if err != nil {
			return false
		}
		for _, o := range a.Outputs {
			if !graphs.Same(a.Types[o.Value].DType, want[o.Slot], got[o.Slot]) {
				return false
			}
		}
	}
	return true
}

// randomInputs makes parameters, symbols with the values first seen among them, and inputs that are large enough for
// each window of a case.
func randomInputs(g *ir.Graph, random *rand.Rand) (params []uint64, inputs map[uint32][]byte) {
	params, inputs = make([]uint64, 16), map[uint32][]byte{}
	for i := range params {
		params[i] = math.Float64bits(random.NormFloat64())
	}
	for _, s := range g.Syms {
		if s.Quotient == nil {
			params[s.Slot] = uint64(s.First)
		}
	}
	for _, n := range g.Nodes {
		if n.Op == ir.OpParam && n.ArgLo < n.ArgHi { // the number first seen
			params[n.Slot] = uint64(g.Args[n.ArgLo].V)
		}
		if n.Op == ir.OpInput {
			data := make([]byte, 1024)
			for i := range data {
				data[i] = byte(random.Uint32())
			}
			inputs[n.Slot] = data
		}
	}
	return params, inputs
}

// TestUnguardedNeedsOption: without the option of tests, no rule fires where its guard is false.
func TestUnguardedNeedsOption(t *testing.T) {
	g, err := ir.Parse("graph f.py:1 read {\n  %0: u8[4] = input 0\n  %1: u8[4] = neg %0\n" +
		"  %2: u8[4] = abs %1\n  output %2 -> s1\n}\n")
	require.NoError(t, err)
	for rule, want := range map[string][]string{"": nil, "NegOfNeg": nil, "AbsOfNeg": {"AbsOfNeg"}} {
		w := new(watcher)
		_, err := passes.Run(g, passes.Unguarded(passes.Options{Only: []string{"simplify"}, Observer: w}, rule))
		require.NoError(t, err)
		assert.Equal(t, want, w.fired, rule)
	}
}
