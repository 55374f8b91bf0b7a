// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import (
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// item is the operator that an operator on lists applies to one tensor: its possible names, its arguments and
// results.
type item struct {
	names   []string
	args    []ir.Arg
	results []ir.ValueID
}

// Items is the number of tensors to which a call applies an operator one by one, 0 for all other nodes. Item i has
// element i of each list of that length, all arguments that are no such lists, and results i, i+Items, …
func Items(g *ir.Graph, id ir.NodeID) int {
	n := &g.Nodes[id]
	if n.Op != ir.OpCall || n.Flags != 0 || !strings.HasPrefix(g.CallName(id), catalogue.ForeachPrefix) ||
		find(g.CallName(id)).Whole != "" {
		return 0
	}
	return count(g, id)
}

func count(g *ir.Graph, id ir.NodeID) int {
	n := &g.Nodes[id]
	if n.ArgLo == n.ArgHi || g.Args[n.ArgLo].Kind != ir.ArgList {
		return 0
	}
	count := len(g.List(g.Args[n.ArgLo]))
	if count == 0 || int(n.N)%count != 0 {
		return 0
	}
	return count
}

// foreach lists the items of an operator on lists. It is false for other operators.
func foreach(g *ir.Graph, id ir.NodeID) ([]item, bool) {
	n := &g.Nodes[id]
	base, ok := strings.CutPrefix(g.CallName(id), catalogue.ForeachPrefix)
	if !ok {
		return nil, false
	}
	args, count := g.NodeArgs(id), count(g, id)
	if count == 0 {
		return nil, false
	}
	base, _, _ = strings.Cut(base, ".")
	base = "aten::" + strings.TrimSuffix(base, "_")
	items := make([]item, count)
	names := []string{base + ".Tensor", base + ".Scalar", base, base + ".Tensor_Scalar"}
	for i := range items {
		it := item{names: names, args: make([]ir.Arg, 0, len(args)+1)}
		for _, a := range args {
			if list := a.Kind == ir.ArgList; list && len(g.List(a)) == count {
				a = g.List(a)[i]
			}
			it.args = append(it.args, a)
		}
		for v := i; v < int(n.N); v += count {
			it.results = append(it.results, n.First+ir.ValueID(v))
		}
		items[i] = it
	}
	return items, true
}
