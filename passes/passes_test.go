// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/tests/golden"
)

// TestGolden runs the cases of each pass: testdata/<pass>/*.txtar, with the passes of the header.
func TestGolden(t *testing.T) {
	expected := map[string]bool{}
	for _, p := range passes.Pipeline() {
		t.Run(p.Name, func(t *testing.T) {
			golden.Run(t, filepath.Join("testdata", p.Name), func(t *testing.T, c *golden.Case) {
				g, err := ir.Parse(c.File("in.ir"))
				require.NoError(t, err)
				w := new(watcher)
				only := c.Words("pass")
				require.Contains(t, only, p.Name)
				out, err := passes.Run(g, passes.Options{Check: 1, Only: only, Observer: w})
				require.NoError(t, err)
				c.Expect(w.changed)
				for _, name := range c.Words("expect") {
					expected[name] = true
				}
				c.Check("out.ir", out.String())
				if p.Name == "fuse" {
					require.Equal(t, c.Words("kernels"), []string{strconv.Itoa(cost.Kernels(out))}, "%s", out)
					c.Check("why.txt", w.refused.String())
				}
			})
		})
	}
	for _, p := range passes.Pipeline() {
		for _, r := range p.Rules {
			assert.Contains(t, expected, r.Name, "no case expects rule %s of %s", r.Name, p.Name)
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

// watcher notes the passes that changed the graph, and the rules.
type watcher struct {
	changed []string
	refused strings.Builder
}

func (w *watcher) Begin(*ir.Graph) {}
func (w *watcher) After(pass string, changed bool, fired []passes.Firing, _ *ir.Graph, _ time.Duration) {
	if changed {
		w.changed = append(w.changed, pass)
	}
	for _, f := range fired {
		w.changed = append(w.changed, f.Rule)
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
