// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"fmt"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/codegen/bind"
	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/program"
)

// code lists the kernels of a program, and the groups that have no kernels, or kernels only for a part.
func code(c *codegen.Compiled) string {
	var b strings.Builder
	for _, u := range c.Unfused {
		runs := "runs as its operators"
		if u.Part {
			runs = "runs as kernels and operators"
		}
		fmt.Fprintf(&b, "\ngroup %d %s: %s\n", u.Group+1, runs, u.Why)
	}
	for i, k := range c.Program.Kernels {
		fmt.Fprintf(&b, "\n# kernel %d\n%s", i, k)
	}
	return b.String()
}

// source is the CUDA text of a program's kernels for an H100, which has 132 multiprocessors, in the sizes first seen,
// by file. Each text appears once, with its launches.
func source(c *codegen.Compiled, params []uint64) map[string]string {
	gpu := cuda.Device{SMs: 132}
	files, seen := map[string]string{}, map[string]bool{}
	for i, s := range c.Program.Steps {
		op, ok := s.(*program.Kernel)
		if !ok {
			continue
		}
		k := c.Program.Kernels[op.Kernel]
		name := fmt.Sprintf("kernel_%d.cu", op.Kernel)
		instances, err := bind.Instances(k, c.Program, op, params)
		if err != nil {
			files[name] += fmt.Sprintf("// step %d isn't launched: %v\n", i, err)
			continue
		}
		for _, l := range cuda.Launches(k, instances, gpu) {
			text := cuda.Print(k, l.Variant).Text
			if !seen[text] {
				seen[text] = true
				files[name] += text
			}
			files[name] += fmt.Sprintf("// step %d launches %s: %d blocks of %d x %d threads\n", i, l.Entry, l.Grid,
				l.Block[0], l.Block[1])
		}
	}
	return files
}

// kernels lists the groups of a graph: the kernels that fusion expects for each, what they read and write, and how many
// values are never written to memory. planned is the number of kernels in the program, which may be less.
func kernels(g *ir.Graph, planned int) string {
	if len(g.Groups) == 0 {
		return ""
	}
	users := g.Users()
	output := make([]bool, len(g.Types))
	for _, o := range g.Outputs {
		output[o.Value] = true
	}
	text := g.NodeStrings()
	var b strings.Builder
	alone := cost.Kernels(g)
	for _, group := range g.Groups {
		alone -= len(group.Kernels)
	}
	fmt.Fprintf(&b, "%s of groups, %s alone\n", count(planned, "kernel"), count(alone, "operator"))
	for i, group := range g.Groups {
		number := uint32(i + 1)
		fmt.Fprintf(&b, "\ngroup %d:", number)
		for _, t := range group.Kernels {
			fmt.Fprintf(&b, " %s", t)
		}
		b.WriteByte('\n')
		var reads, writes []string
		inside := 0
		seen := map[ir.ValueID]bool{}
		var nodes []string
		for id := range g.Nodes {
			n := &g.Nodes[id]
			if n.Group != number {
				continue
			}
			nodes = append(nodes, text(ir.NodeID(id)))
			for _, v := range g.Operands(ir.NodeID(id)) {
				if g.Nodes[g.Def[v]].Group != number && !seen[v] {
					seen[v] = true
					reads = append(reads, fmt.Sprintf("%%%d", v))
				}
			}
			for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
				if output[v] || slices.ContainsFunc(users[v], func(u ir.NodeID) bool { return g.Nodes[u].Group != number }) {
					writes = append(writes, fmt.Sprintf("%%%d", v))
				} else {
					inside++
				}
			}
		}
		fmt.Fprintf(&b, "  reads  %s\n  writes %s\n  inside %s\n", strings.Join(reads, " "),
			strings.Join(writes, " "), count(inside, "value"))
		for _, line := range nodes {
			fmt.Fprintf(&b, "    %s\n", line)
		}
	}
	return b.String()
}
