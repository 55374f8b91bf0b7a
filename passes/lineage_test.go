// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

// stages is an observer that keeps the graphs.
type stages []*ir.Graph

func (s *stages) Begin(g *ir.Graph) { *s = append(*s, g) }
func (s *stages) After(_ string, _ bool, _ []Firing, g *ir.Graph, _ time.Duration) {
	*s = append(*s, g)
}
func (s *stages) Crash(string, *ir.Graph, error) {}

// TestLineage: a place is "stage.value". The places of a pair in alike hold one value, those of a pair in unlike two.
func TestLineage(t *testing.T) {
	for _, test := range []struct {
		name, graph   string
		passes        []string
		last          string // what the last stage is
		alike, unlike [][2]string
	}{
		{"cse merges two values into the one that stays", `
  %0: f32[4] = input 0
  %1: f32[4] = relu %0
  %2: f32[4] = relu %0
  %3: f32[4] = add %1 %2
  output %3 -> s1
`, []string{"cse", "dce"}, `
  %0: f32[4] = input 0
  %1: f32[4] = relu %0
  %2: f32[4] = add %1 %1
  output %2 -> s1
`, [][2]string{{"0.1", "2.1"}, {"0.2", "2.1"}, {"0.2", "1.2"}, {"0.3", "2.2"}, {"0.0", "2.0"}},
			[][2]string{{"0.0", "0.1"}, {"0.3", "2.1"}}},
		{"a rule replaces a value by an older one", `
  %0: f32[4] = input 0
  %1: f32[4] = neg %0
  %2: f32[4] = neg %1
  %3: f32[4] = exp %2
  output %3 -> s1
`, []string{"simplify", "dce"}, `
  %0: f32[4] = input 0
  %1: f32[4] = exp %0
  output %1 -> s1
`, [][2]string{{"0.0", "2.0"}, {"0.2", "2.0"}, {"0.3", "2.1"}}, [][2]string{{"0.1", "2.0"}}},
		{"a rule replaces an op by another one", `
  %0: f32[4] = input 0
  %1: f32[4] = neg %0
  %2: f32[4] = input 1
  %3: f32[4] = sub %2 %1
  output %3 -> s1
`, []string{"simplify", "dce"}, `
  %0: f32[4] = input 0
  %1: f32[4] = input 1
  %2: f32[4] = add %1 %0
  output %2 -> s1
`, [][2]string{{"0.3", "2.2"}, {"0.2", "2.1"}}, [][2]string{{"0.1", "2.2"}, {"0.1", "2.0"}}},
		{"a view of a view becomes a view of the base", `
  %0: f32[8] = input 0
  %1: f32[4] = view %0 offset=0
  %2: f32[2] = view %1 offset=0
  %3: f32[2] = exp %2
  output %3 -> s1
`, []string{"views", "dce"}, `
  %0: f32[8] = input 0
  %1: f32[2] = view %0 offset=0
  %2: f32[2] = exp %1
  output %2 -> s1
`, [][2]string{{"0.2", "2.1"}}, [][2]string{{"0.1", "2.0"}, {"0.0", "0.1"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			var all stages
			_, err := Run(parse(t, "graph g read {"+test.graph+"}\n"), Options{Only: test.passes, Observer: &all})
			require.NoError(t, err)
			require.Equal(t, parse(t, "graph g read {"+test.last+"}\n").String(), all[len(all)-1].String())
			family := func(place string) int {
				g := all[place[0]-'0']
				return g.Lineage().Family(g.Names()[place[2]-'0'])
			}
			for _, pair := range test.alike {
				assert.Equal(t, family(pair[0]), family(pair[1]), "%v", pair)
			}
			for _, pair := range test.unlike {
				assert.NotEqual(t, family(pair[0]), family(pair[1]), "%v", pair)
			}
		})
	}
}
