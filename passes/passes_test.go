// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestGolden runs the cases of each pass: testdata/<pass>/*.txtar, with the passes of the header. A case is about one
// rule and one polarity: "expect:" or "expect-not:" names the rule, or the pass if it has no rules. A case that expects
// a rule not to fire fails when the rule fires, with -update too.
func TestGolden(t *testing.T) {
	positive, negative := map[string]bool{}, map[string]bool{}
	for _, p := range passes.Pipeline() {
		t.Run(p.Name, func(t *testing.T) {
			golden.Run(t, filepath.Join("testdata", p.Name), func(t *testing.T, c *golden.Case) {
				rule, fires := subject(t, p, c)
				if fires {
					positive[rule] = true
				} else {
					negative[rule] = true
				}
				require.Equal(t, !fires && len(p.Rules) > 0, c.Words("unguarded") != nil, "see TestGuards")
				w := new(watcher)
				only := c.Words("pass")
				require.Contains(t, only, p.Name)
				out, err := passes.Run(parse(t, c), passes.Options{Check: 1, Only: only, Observer: w})
				require.NoError(t, err)
				c.Expect(w.fired)
				c.Check("out.ir", out.String())
				if p.Name == "fuse" {
					require.Equal(t, c.Words("kernels"), []string{strconv.Itoa(cost.Kernels(out))}, "%s", out)
					c.Check("why.txt", w.refused.String())
				}
			})
		})
	}
	for _, p := range passes.Pipeline() {
		for _, rule := range rulesOf(p) {
			assert.True(t, positive[rule], "no case expects %s of %s", rule, p.Name)
			assert.True(t, negative[rule], "no case of %s expects %s not to fire", p.Name, rule)
		}
	}
	folders, err := os.ReadDir("testdata")
	require.NoError(t, err)
	for _, f := range folders {
		found := f.Name() == "rapid" // where a failed property test leaves its case
		for _, p := range passes.Pipeline() {
			found = found || p.Name == f.Name()
		}
		assert.True(t, found, "testdata/%s belongs to no pass", f.Name())
	}
}

func parse(t *testing.T, c *golden.Case) *ir.Graph {
	g, err := ir.Parse(c.File("in.ir"))
	require.NoError(t, err)
	return g
}

// rulesOf lists the rules of a pass, each name once. A pass without rules is its own only rule.
func rulesOf(p passes.Pass) []string {
	if len(p.Rules) == 0 {
		return []string{p.Name}
	}
	var out []string
	for _, r := range p.Rules {
		if !slices.Contains(out, r.Name) {
			out = append(out, r.Name)
		}
	}
	return out
}

// subject is the rule that a case is about, and whether it must fire. The name of the case says both: neg_of_neg.txtar
// and neg_of_neg_not_sum.txtar, or calls.txtar and not_calls.txtar for a pass without rules.
func subject(t *testing.T, p passes.Pass, c *golden.Case) (rule string, fires bool) {
	t.Helper()
	rules := rulesOf(p)
	ours := func(words []string) []string {
		return slices.DeleteFunc(slices.Clone(words), func(w string) bool { return !slices.Contains(rules, w) })
	}
	yes, no := ours(c.Words("expect")), ours(c.Words("expect-not"))
	require.Len(t, append(yes, no...), 1, "the case must name one rule of %s: one of %v", p.Name, rules)
	rule = append(yes, no...)[0]
	fires = len(yes) == 1
	stem := ""
	if len(p.Rules) > 0 {
		stem = snake(rule) + "_"
	}
	assert.True(t, strings.HasPrefix(c.Name+"_", stem), "the name of the case must start with %s", stem)
	assert.Equal(t, !fires, strings.HasPrefix(c.Name, stem+"not_"), "%snot_ starts the names of negative cases", stem)
	return rule, fires
}

// snake turns NegOfNeg into neg_of_neg.
func snake(name string) string {
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// watcher notes the rules that fired, and the passes without rules that changed the graph. If a case begins
// with groups and a pass finds the same groups, the text of the graph stays, and the pass does not count.
type watcher struct {
	text    string // of the graph before the next pass
	fired   []string
	refused strings.Builder
}

func (w *watcher) Begin(g *ir.Graph) { w.text = g.String() }
func (w *watcher) After(pass string, changed bool, fired []passes.Firing, g *ir.Graph, _ time.Duration) {
	before := w.text
	w.text = g.String()
	if changed && len(fired) == 0 && (len(g.Groups) == 0 || w.text != before) {
		w.fired = append(w.fired, pass)
	}
	for _, f := range fired {
		w.fired = append(w.fired, f.Rule)
	}
}
func (w *watcher) Refused(_ string, all []passes.Refusal) {
	for _, r := range all {
		fmt.Fprintln(&w.refused, r)
	}
}
func (w *watcher) Crash(string, *ir.Graph, error) {}

// TestReadme: the README has a row for each pass.
func TestReadme(t *testing.T) {
	data, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for _, p := range passes.Pipeline() {
		assert.Contains(t, string(data), "\n| `"+p.Name+"` |")
	}
}
