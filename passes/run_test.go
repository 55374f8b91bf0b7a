// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

const text = `graph train.py:41 read {
  dims a=4@0
  %0: f32[a]             = input 0
  %1: f32[a]             = relu %0                        # model.py:12
  %2: f32[a]             = relu %0
  %3: f32[a]             = neg %0
  %4: f32[a]             = add %1 %2
  output %4 -> s1
}
`

func parse(t testing.TB, text string) *ir.Graph {
	g, err := ir.Parse(text)
	require.NoError(t, err)
	require.NoError(t, ir.Verify(g))
	return g
}

type events struct {
	begun   int
	after   []string
	changed []bool
	crashed []string
}

func (e *events) Begin(*ir.Graph) { e.begun++ }
func (e *events) After(pass string, changed bool, _ []Firing, _ *ir.Graph, _ time.Duration) {
	e.after, e.changed = append(e.after, pass), append(e.changed, changed)
}
func (e *events) Crash(pass string, _ *ir.Graph, _ error) { e.crashed = append(e.crashed, pass) }

func TestRun(t *testing.T) {
	g := parse(t, text)
	var changed []bool
	for _, name := range names() {
		changed = append(changed, name == "cse" || name == "dce" || name == "fuse")
	}
	for level := range 4 {
		var e events
		out, err := Run(g, Options{Check: level, Observer: &e})
		require.NoError(t, err)
		assert.Equal(t, text, g.String(), "the graph given stays")
		assert.Equal(t, 3, len(out.Nodes))
		assert.Equal(t, events{
			begun: 1, after: names(), changed: changed,
		}, e)
		again, err := Run(out, Options{Check: level})
		require.NoError(t, err)
		assert.Equal(t, out.Clone().String(), out.String())
		assert.Equal(t, len(out.Nodes), len(again.Nodes))
	}
}

func TestCheckFindsBrokenGraph(t *testing.T) {
	g := parse(t, text)
	g.Types[3].DType = ir.F64
	var e events
	_, err := Run(g, Options{Check: 1, Observer: &e})
	require.ErrorContains(t, err, "passes: capture: ir: node 3")
	assert.Equal(t, []string{"capture"}, e.crashed)
	var pe *Error
	require.True(t, errors.As(err, &pe))
	assert.Same(t, g, pe.Graph)
}

func TestGuarded(t *testing.T) {
	g := parse(t, text)
	out, err := (&checker{}).guarded(Pass{run: without(func(*ir.Graph) *ir.Graph { panic("oh") })}, nil, g)
	require.ErrorContains(t, err, "panic: oh")
	assert.Same(t, g, out)

	spoil := func(g *ir.Graph) *ir.Graph { g.Nodes[0].Slot = 9; return g }
	_, err = (&checker{level: 2}).guarded(Pass{run: without(spoil)}, nil, g)
	require.ErrorContains(t, err, "changed the graph it was given")
}

func TestSpec(t *testing.T) {
	all := names()
	for word, want := range map[string][]string{
		"":                                 all,
		"off":                              nil,
		"-cse":                             slices.DeleteFunc(names(), func(n string) bool { return n == "cse" }),
		"-" + strings.Join(names(), ", -"): nil,
		"until=cse":                        {"views", "cse"},
		"bisect=cse:0":                     all,
		"bisect=NegOfNeg:1":                all,
		"until=simplify,-cse":              {"views", "simplify"},
		"bisect=cse:1,off":                 nil,
		"-NegOfNeg":                        all,
	} {
		s, err := ParseSpec(word)
		require.NoError(t, err, word)
		var e events
		_, err = Run(parse(t, text), Options{Spec: s, Observer: &e})
		require.NoError(t, err)
		assert.Equal(t, want, e.after, word)
	}
	for word, want := range map[string]string{
		"of":             `unknown word "of"; the words are off, -NAME, until=NAME, bisect=NAME:COUNT`,
		"-dec":           `no pass "dec"; the passes are ` + strings.Join(all, ", ") + `; -NAME also leaves out a rule, as -`,
		"-negofneq":      `leaves out a rule, as -NegOfNeg`,
		"until=NegOfNeg": `no pass "NegOfNeg"`,
		"-":              `no pass ""`,
		"until=":         `no pass ""`,
		"until=x":        `no pass "x"`,
		"bisect=cse":     `"bisect=cse" needs a count, as in bisect=cse:10`,
		"bisect=cse:x":   "needs a count",
		"bisect=x:1":     `no pass "x"`,
	} {
		_, err := ParseSpec(word)
		assert.ErrorContains(t, err, want, word)
	}
}

// TestBisect: the first changes of a pass, of a rule, or of all happen, and the last of them has a text.
func TestBisect(t *testing.T) {
	negs := "graph f.py:1 read {\n  %0: f32[2] = input 0\n" + strings.Repeat("  %$: f32[2] = neg %^ # f.py:$\n", 4) +
		"  output %4 -> s1\n}\n"
	for i := 1; i <= 4; i++ {
		negs = strings.Replace(strings.Replace(strings.Replace(negs, "$", strconv.Itoa(i), 1), "^", strconv.Itoa(i-1), 1),
			"$", strconv.Itoa(i), 1)
	}
	for _, c := range []struct {
		word  string
		graph string
		nodes []int // after the passes, of the same graph again and again
		last  string
	}{
		{"bisect=cse:2", text, []int{3, 3, 4, 4}, "2 pass cse at"},
		{"bisect=all:0", text, []int{5, 5}, ""},
		{"bisect=all:2", text, []int{3, 5}, "2 pass dce at"},
		{"bisect=NegOfNeg:1", negs, []int{3, 5}, "1 rule NegOfNeg of pass simplify at f.py:2"},
		{"bisect=simplify:3", negs, []int{1, 3, 5}, "3 rule NegOfNeg of pass simplify at f.py:2"},
		{"bisect=simplify:9", negs, []int{1}, ""},
	} {
		s, err := ParseSpec(c.word)
		require.NoError(t, err)
		last := ""
		s.Last = func(number int64, change string) { last += fmt.Sprint(number, " ", change) }
		for i, want := range c.nodes {
			out, err := Run(parse(t, c.graph), Options{Spec: s, Check: 2})
			require.NoError(t, err)
			assert.Equal(t, want, len(out.Nodes), "%s: graph %d", c.word, i)
		}
		assert.Equal(t, c.last == "", last == "", last)
		assert.Contains(t, last, c.last)
	}
}

func TestOnly(t *testing.T) {
	out, err := Run(parse(t, text), Options{Only: []string{"dce"}})
	require.NoError(t, err)
	assert.Equal(t, 4, len(out.Nodes))
	_, err = Run(parse(t, text), Options{Only: []string{"fused"}})
	assert.ErrorContains(t, err, `no pass "fused"`)
}

func TestPipeline(t *testing.T) {
	require.NoError(t, checkPipeline(pipeline(), orders()))
	run := without(func(g *ir.Graph) *ir.Graph { return g })
	a, b := Pass{"a", "d", nil, run}, Pass{"b", "d", nil, run}
	why := []order{{"a", "b", "reason"}}
	assert.NoError(t, checkPipeline([]Pass{a, b}, why))
	assert.ErrorContains(t, checkPipeline([]Pass{b, a}, why), "a must come before b: reason")
	assert.ErrorContains(t, checkPipeline([]Pass{a}, why), "no such constraint")
	assert.ErrorContains(t, checkPipeline([]Pass{a, a}, nil), "there twice")
	assert.ErrorContains(t, checkPipeline([]Pass{{Name: "a"}}, nil), "incomplete")
	rule := Rule{"R", "d", ir.OpNeg, firstOperand, twin, becomeX}
	a.Rules, b.Rules = []Rule{rule, rule}, []Rule{rule}
	assert.NoError(t, checkPipeline([]Pass{a}, nil))
	assert.ErrorContains(t, checkPipeline([]Pass{a, b}, nil), "a and b both have a rule R")
	a.Rules = []Rule{{Name: "R"}}
	assert.ErrorContains(t, checkPipeline([]Pass{a}, nil), `rule "R" of a is incomplete`)
}

// TestShuffle: shuffle moves nodes, but keeps operands before uses and nodes with flags in order.
func TestShuffle(t *testing.T) {
	g := parse(t, `graph f.py:1 read {
  %0: f32[4] = input 0
  %1: f32[4] = aten.bernoulli %0 gen:0 !rng
  %2: f32[4] = aten.bernoulli %0 gen:0 !rng
  mycelya.manual_seed gen:0 !effect
  %3: f32[4] = aten.bernoulli %0 gen:0 !rng
  %4: f32[4] = exp %0
  %5: f32[4] = log %0
  %6: f32[4] = add %4 %5
  output %1 -> s1
  output %2 -> s2
  output %3 -> s3
  output %6 -> s4
}
`)
	s := shuffle(g)
	require.NoError(t, ir.Verify(s))
	assert.NotEqual(t, g.String(), s.String())
	assert.Equal(t, s.String(), shuffle(g).String(), "the same graph is shuffled the same way")
	assert.Equal(t, len(g.Nodes), len(s.Nodes))
	for level, want := range []string{g.String(), g.String(), s.String()} {
		out, err := Run(g, Options{Check: level, Only: []string{}})
		require.NoError(t, err)
		assert.Equal(t, want, out.String(), "level %d", level)
	}
	flagged := 0
	for i := range s.Nodes {
		if s.Nodes[i].Flags == 0 {
			continue
		}
		flagged++
		if flagged == 3 {
			assert.Equal(t, "mycelya::manual_seed", s.CallName(ir.NodeID(i)))
		} else {
			slot := map[int]uint32{1: 1, 2: 2, 4: 3}[flagged]
			for _, o := range s.Outputs {
				if o.Slot == slot {
					assert.Equal(t, s.Nodes[i].First, o.Value)
				}
			}
		}
	}
	assert.Equal(t, 4, flagged)
}
