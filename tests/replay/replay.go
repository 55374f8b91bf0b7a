// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package replay compiles captured graphs and summarises the results. The diff of two summaries shows what a change of
// the compiler does to real programs. It runs nothing.
package replay

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/passes"
)

// Result summarises the compilation of a graph.
type Result struct {
	Name           string
	Before, After  int           // nodes
	Calls, Kernels int           // launches node by node, and with the groups
	Steps, Buffers int           // of the program
	Apart, Moved   int64         // bytes, node by node and with the groups
	Peak           int64         // of the memory that the program allocates, bytes
	Coded, Unfused int           // groups with kernels for at least a part, and groups without kernels
	Groups         []string      // their templates and operators
	Took           time.Duration // the shortest time of passes and codegen; 0 if not measured
}

// Compile compiles each graph of a folder, in the order of their names. Each compilation is timed repeats times.
func Compile(folder string, check, repeats int) ([]Result, error) {
	paths, err := filepath.Glob(filepath.Join(folder, "*.ir"))
	if err != nil {
		return nil, err
	}
	slices.Sort(paths)
	var out []Result
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		g, err := ir.Parse(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s:%w", path, err)
		}
		r, err := compile(g, check, repeats)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		r.Name = strings.TrimSuffix(filepath.Base(path), ".ir")
		out = append(out, r)
	}
	if out == nil {
		return nil, fmt.Errorf("%s has no graph", folder)
	}
	return out, nil
}

func compile(before *ir.Graph, check, repeats int) (Result, error) {
	var g *ir.Graph
	var c *codegen.Compiled
	var took time.Duration
	for i := range repeats + 1 {
		start := time.Now()
		var err error
		if g, err = passes.Run(before, passes.Options{Check: check}); err != nil {
			return Result{}, err
		}
		if c, err = codegen.Compile(g, codegen.Options{}); err != nil {
			return Result{}, err
		}
		if now := time.Since(start); i == 1 || i > 1 && now < took {
			took = now
		}
	}
	apart := g.Ungrouped()
	r := Result{Before: len(before.Nodes), After: len(g.Nodes), Calls: cost.Kernels(apart), Kernels: cost.Kernels(g),
		Steps: len(c.Program.Steps), Buffers: int(c.Program.Buffers),
		Apart: cost.Traffic(apart), Moved: cost.Traffic(g), Took: took}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		if n.Group == 0 || n.Op == ir.OpView {
			continue
		}
		if int(n.Group) > len(r.Groups) {
			var kernels []string
			for _, t := range g.Groups[n.Group-1].Kernels {
				kernels = append(kernels, t.String())
			}
			r.Groups = append(r.Groups, strings.Join(kernels, "+")+":")
		}
		name := n.Op.String()
		if n.Op == ir.OpCall {
			name = strings.TrimPrefix(g.CallName(ir.NodeID(i)), "aten::")
		}
		r.Groups[n.Group-1] += " " + name
	}
	params, err := c.FirstSeen(g)
	if err != nil {
		return Result{}, err
	}
	peak, err := c.Peak(params)
	if err != nil {
		return Result{}, err
	}
	r.Peak = int64(peak.Bytes)
	coded, err := codegen.Compile(g, codegen.Options{Kernels: true})
	if err != nil {
		return Result{}, err
	}
	for _, u := range coded.Unfused {
		if !u.Part {
			r.Unfused++
		}
	}
	r.Coded = len(g.Groups) - r.Unfused
	return r, nil
}

// Text is a table of all results, followed by the groups of each graph. Equal groups share a line.
func Text(all []Result) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-14s %6s %6s %6s %8s %6s %8s %9s %9s %8s %6s %8s\n",
		"graph", "nodes", "after", "calls", "kernels", "steps", "buffers",
		"MiB apart", "MiB moved", "MiB peak", "coded", "unfused")
	const mib = 1 << 20
	for _, r := range all {
		fmt.Fprintf(&b, "%-14s %6d %6d %6d %8d %6d %8d %9.2f %9.2f %8.2f %6d %8d\n",
			r.Name, r.Before, r.After, r.Calls, r.Kernels, r.Steps, r.Buffers,
			float64(r.Apart)/mib, float64(r.Moved)/mib, float64(r.Peak)/mib, r.Coded, r.Unfused)
	}
	for _, r := range all {
		fmt.Fprintf(&b, "\n%s\n", r.Name)
		count := map[string]int{}
		for _, group := range r.Groups {
			count[group]++
		}
		for _, group := range r.Groups {
			if n := count[group]; n > 0 {
				fmt.Fprintf(&b, "%5d × %s\n", n, group)
				count[group] = 0
			}
		}
	}
	return b.String()
}
