// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
)

// TestParts checks groups with nodes that no kernel computes. The other nodes still have kernels, except for a single
// node, and for copies that take the buffer of their operand. tests/e2e/kernels.py checks their results.
func TestParts(t *testing.T) {
	for name, c := range map[string]struct {
		text   string
		groups int // with kernels
		want   codegen.Unfused
	}{
		"around": {`
graph model.py:1 sync {
  dims n=64@0 m=8@1
  %0: f32[n,m] = input 0
  %1: f32[n,m] = input 1
  %2: f32[n,m] = exp %0
  %3: f32[n,m] = neg %2
  %4: f32[n,m] = aten.bernoulli %3 none
  %5: f32[n,m] = mul %4 %1
  %6: f32[n,m] = add %5 %2
  output %6 -> s2
}`, 2, codegen.Unfused{Why: "no kernel computes aten::bernoulli yet", Part: true}},
		"before": {`
graph model.py:1 sync {
  dims n=64@0 m=8@1
  %0: f32[n,m] = input 0
  %1: f32[n,m] = exp %0
  %2: f32[n,m] = aten._log_softmax %1 1 false
  %3: f32[n,m] = aten.bernoulli %2 none
  output %3 -> s2
}`, 1, codegen.Unfused{Why: "no kernel computes aten::bernoulli yet", Part: true}},
		"one by one": {`
graph model.py:1 sync {
  dims n=64@0 m=8@1
  %0: f32[n,m] = input 0
  %1: f32[n,m] = exp %0
  %2: f32[n,m] = aten.bernoulli %1 none
  %3: f32[n,m] = neg %2
  output %3 -> s1
}`, 0, codegen.Unfused{Why: "no kernel computes aten::bernoulli yet"}},
		"nothing to compute": {`
graph model.py:1 sync {
  dims n=64@0 m=8@1
  %0: f32[n,m] = input 0
  %1: f32[n,m] = aten.bernoulli %0 none
  %2: f32[n,m] = copy %1
  %3: f32[n,m] = copy %2
  %4: f32[n,m] = aten.neg_ %2!
  output %3 -> s1
}`, 0, codegen.Unfused{Why: "no kernel computes aten::bernoulli yet"}},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := ir.Parse(c.text)
			require.NoError(t, err)
			g, err = passes.Run(g, passes.Options{Check: 1})
			require.NoError(t, err)
			require.Len(t, g.Groups, 1, g.String())
			got, err := codegen.Compile(g, codegen.Options{Kernels: true})
			require.NoError(t, err)
			groups := 0
			for _, s := range got.Program.Steps {
				if _, ok := s.(*program.Fused); ok {
					groups++
				}
			}
			require.Equal(t, c.groups, groups, got.Text())
			require.Equal(t, []codegen.Unfused{c.want}, got.Unfused)
		})
	}
}
