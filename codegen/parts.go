// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Unfused is a group that runs as its operators, or of which a part does, and why.
type Unfused struct {
	Group int
	Why   string
	Part  bool // the rest has kernels
}

// fuse emits a group of nodes that stand in a row.
func (p *planner) fuse(nodes []ir.NodeID) error {
	coded, why, err := p.coded(nodes)
	if why != "" {
		p.out.Unfused = append(p.out.Unfused, Unfused{int(p.g.Nodes[nodes[0]].Group) - 1, string(why), coded})
	}
	return err
}

// coded emits a group, or a part of one, and says whether something of it has kernels, and why something hasn't. A node by itself is left
// to its operator.
func (p *planner) coded(nodes []ir.NodeID) (coded bool, why refused, err error) {
	f := &group{p: p, nodes: nodes, of: map[ir.NodeID]ir.NodeID{}, reads: map[ir.ValueID]place{}, from: map[ir.ValueID]ir.ValueID{},
		stored: map[ir.ValueID][]ir.ValueID{}, next: map[ir.ValueID]int{}, temps: map[ir.ValueID]int{}}
	if why = f.split(); why == "" {
		parts, alone := f.parts()
		for _, part := range parts {
			some := false
			if f.computes(part) > 1 {
				some, _, err = p.coded(part)
			} else {
				err = p.emitNodes(part)
			}
			if err != nil {
				return false, "", err
			}
			coded = coded || some
		}
		if alone != "" {
			return coded, alone, nil
		}
		why = f.find()
	}
	first, buffers := len(p.out.Program.Steps), len(p.buffers)
	if err := p.emitNodes(nodes); err != nil {
		return false, "", err
	}
	if why == "" {
		why = f.kernels(first, buffers)
	}
	return why == "", why, nil
}

func (p *planner) emitNodes(nodes []ir.NodeID) error {
	for _, id := range nodes {
		if err := p.emitNode(id); err != nil {
			return err
		}
	}
	return nil
}

// parts are the rows of nodes between those that no kernel computes, which are parts of their own, and why the first of those is one;
// none if kernels compute all.
func (f *group) parts() (parts [][]ir.NodeID, why refused) {
	alone := map[ir.NodeID]bool{}
	for i, of := range f.e.Of {
		if no := f.alone(ir.NodeID(i)); no != "" {
			alone[f.of[of]] = true
			if why == "" {
				why = no
			}
		}
	}
	if why == "" {
		return nil, ""
	}
	for i, id := range f.nodes {
		if i == 0 || alone[id] || alone[f.nodes[i-1]] {
			parts = append(parts, nil)
		}
		last := &parts[len(parts)-1]
		*last = append(*last, id)
	}
	return parts, why
}

// computes counts the nodes that are no views.
func (f *group) computes(nodes []ir.NodeID) (n int) {
	for _, id := range nodes {
		if f.p.g.Nodes[id].Op != ir.OpView {
			n++
		}
	}
	return n
}

// alone says why no kernel computes a node of the expansion.
func (f *group) alone(id ir.NodeID) refused {
	g := f.e.Graph
	n := &g.Nodes[id]
	name := n.Op.String()
	if n.Op == ir.OpCall {
		name = g.CallName(id)
	}
	switch {
	case n.Op == ir.OpView || ir.Info(n.Op).Kind == ir.KindLeaf || f.loops.Counts(id):
		return ""
	case name == decomp.Draw:
		if f.p.o.Undrawn {
			return "it draws random numbers, which on this device are its own operators'"
		}
		return ""
	case f.loops.In(id) < 0:
		if why := f.e.Whole[f.e.Of[id]]; why != "" {
			name += ": " + why
		}
		return refused("no kernel computes " + name)
	case n.Op == ir.OpCall:
		return refused("no kernel computes " + name + " yet")
	}
	return ""
}
