// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Options holds the facts that a graph does not contain.
type Options struct {
	// NoDraws keeps random numbers out of kernels, because the worker's own operators draw other numbers than the masks of
	// kernels.
	NoDraws bool
}

// Fused is what the groups of a graph are as loops.
type Fused struct {
	Groups []*Group    // in the order of their nodes
	Syms   []ir.Symbol // those of the graph, followed by the quotients of sizes that the loops use
}

// Group is a row of nodes with the loops that compute them. If Why is not empty, kernels do not compute all of it; the
// parts may have kernels of their own.
type Group struct {
	Nodes []ir.NodeID
	Why   string
	Parts []*Group // in order, all nodes of the group; nil if the group stays in one piece

	// The rest is empty where operators compute the nodes: if Why is not empty, and in a part of one node.

	Graph  *ir.Graph                   // of the primitives; an input is a value that the group reads
	Loops  []Loop                      // in the order in which they can run
	Reads  []ir.ValueID                // values of the given graph in memory, in the order of the inputs
	Draws  []ir.NodeID                 // of Graph: calls that make masks of random numbers before the loops
	Must   []ir.DType                  // by node of Graph: the dtype that must hold its numbers, see decomp.Expansion
	Source map[ir.ValueID]ir.ValueID   // by input of Graph: the value of the given graph
	Leaves map[ir.ValueID][]ir.ValueID // by value of Graph: the values of the given graph that others may read
	finder *finder
	in     []int32                 // by node of Graph: its loop, -1 for none
	seen   [][]int8                // by index in Graph.Args: along which dims of its loop's space an operand runs
	counts map[ir.ValueID][]ir.Dim // by value of Graph that only counts elements: the dims whose product it is
}

// Loop is one loop over all points of an index space. Its dims are in the order of the kernel: those that are reduced
// last, and otherwise in the order in which values lie in memory that are read in another space.
type Loop struct {
	Spaces  [][]ir.Dim  // without dims of size 1; more than one: the same points in the same order under other sizes
	Reduced int         // how many of the last dims of space 0 it reduces
	Members []ir.NodeID // the primitives, operands first
	order   [][]int8    // by space and dim of the cluster: the dim of the loop
}

// Loops finds the loops of a verified graph's groups. A group of one node has none.
func Loops(given *ir.Graph, o Options) *Fused {
	own := *given
	own.Syms = slices.Clip(own.Syms) // expansions add quotients, each of which has one number in all graphs
	s := &splitter{g: &own, options: o, out: &Fused{}}
	for i := 0; i < len(own.Nodes); {
		first := i
		for i++; own.Nodes[first].Group != 0 && i < len(own.Nodes) && own.Nodes[i].Group == own.Nodes[first].Group; i++ {
		}
		if i-first < 2 {
			continue
		}
		if s.last == nil {
			s.lastUses()
		}
		row := make([]ir.NodeID, i-first)
		for k := range row {
			row[k] = ir.NodeID(first + k)
		}
		s.out.Groups = append(s.out.Groups, s.group(row))
	}
	s.out.Syms = own.Syms
	return s.out
}

// splitter makes the groups of a graph.
type splitter struct {
	g       *ir.Graph
	options Options
	out     *Fused
	last    []ir.NodeID // by root: the last node that reads it, len(Nodes) for an output

	requires map[string]bool // by requireKey: what g requires
}

func (s *splitter) lastUses() {
	s.last = make([]ir.NodeID, len(s.g.Types))
	for i := range s.g.Nodes {
		if id := ir.NodeID(i); s.g.Nodes[i].Op != ir.OpView {
			for _, v := range s.g.Operands(id) {
				s.last[s.g.Root(v)] = id
			}
		}
	}
	for _, k := range s.g.Kept() {
		r := s.g.Root(k.Value)
		s.last[r] = max(s.last[r], k.Until)
	}
	for _, o := range s.g.Outputs {
		s.last[s.g.Root(o.Value)] = ir.NodeID(len(s.g.Nodes))
	}
}

// group finds the loops of nodes that stand in a row, or of its parts.
func (s *splitter) group(nodes []ir.NodeID) *Group {
	sub, of := s.extract(nodes)
	e := decomp.Expand(sub, nil)
	s.g.Syms = append(s.g.Syms, e.Graph.Syms[len(s.g.Syms):]...)
	f := newFinder(e, sub, s.options)
	f.run()
	if !s.stated(f) {
		return &Group{Nodes: nodes, Why: "its loops take sizes to be equal that the program doesn't require"}
	}
	group := &Group{Nodes: nodes, Graph: e.Graph, Must: e.Must, finder: f}
	group.split()
	if out := s.parts(group, of); out != nil {
		return out
	}
	if why := group.complete(); why != "" {
		return &Group{Nodes: nodes, Why: why}
	}
	return group
}

// extract makes a graph of nodes in a row, with what they read as inputs; of has the node by node of that graph.
func (s *splitter) extract(nodes []ir.NodeID) (sub *ir.Graph, of []ir.NodeID) {
	g := s.g
	first, last := nodes[0], nodes[len(nodes)-1]
	x := &extractor{g: g, sub: g.Bare(), to: map[ir.ValueID]ir.ValueID{}}
	x.sub.Strings = slices.Clone(g.Strings)
	in := func(v ir.ValueID) bool { return g.Def[v] >= first && g.Def[v] <= last }
	outside := func(v ir.ValueID) bool { return !in(v) || g.Nodes[g.Def[v]].Op == ir.OpView && !in(g.Root(v)) }
	for _, id := range nodes {
		n := g.Nodes[id]
		if n.Op == ir.OpView && !in(g.Root(n.First)) {
			continue // the view is an input
		}
		for _, v := range g.Operands(id) {
			if outside(v) {
				x.read(v)
			}
		}
		n.Group = 0
		made := x.sub.Add(n, x.args(g.NodeArgs(id)), g.Types[n.First:n.First+ir.ValueID(n.N)])
		for len(of) <= int(made) {
			of = append(of, id)
		}
		for i := range ir.ValueID(n.N) {
			x.to[n.First+i] = x.sub.Nodes[made].First + i
		}
	}
	for _, id := range nodes {
		n := &g.Nodes[id]
		if n.Op == ir.OpView {
			continue
		}
		// A written operand's new content is needed: the operand's storage may be read through other values.
		fresh := n.First + ir.ValueID(g.NumFresh(id))
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			if v >= fresh || s.last[v] > last {
				x.sub.Outputs = append(x.sub.Outputs, ir.Output{Value: x.to[v], Slot: uint32(v)})
			}
		}
	}
	return x.sub, of
}

// extractor copies nodes of a graph.
type extractor struct {
	g, sub *ir.Graph
	to     map[ir.ValueID]ir.ValueID
}

// read makes a value from elsewhere an input, or a number once more.
func (x *extractor) read(v ir.ValueID) {
	if _, done := x.to[v]; done {
		return
	}
	node, args := ir.Node{Op: ir.OpInput, Slot: uint32(v)}, []ir.Arg(nil)
	if x.g.Immediate(v) {
		n := &x.g.Nodes[x.g.Def[v]]
		node, args = ir.Node{Op: n.Op, Slot: n.Slot}, x.g.NodeArgs(x.g.Def[v])
	}
	x.to[v] = x.sub.Nodes[x.sub.Add(node, args, x.g.Types[v:v+1])].First
}

func (x *extractor) args(given []ir.Arg) []ir.Arg {
	args := slices.Clone(given)
	for i, a := range args {
		switch a.Kind {
		case ir.ArgValue:
			args[i].V = int64(x.to[ir.ValueID(a.V)])
		case ir.ArgList:
			args[i] = x.sub.AddList(a.Sub, x.args(x.g.List(a)))
		}
	}
	return args
}

// parts splits a group around the nodes that no kernel computes, each of which is a part of its own; nil if kernels
// compute all.
func (s *splitter) parts(group *Group, of []ir.NodeID) *Group {
	f := group.finder
	alone := map[ir.NodeID]bool{}
	why := ""
	for i, o := range f.obstacles {
		if o == computed || o == drawn || o == idle || f.counts[i] {
			continue
		}
		alone[of[f.of[i]]] = true
		if why == "" {
			why = f.text(ir.NodeID(i), o)
		}
	}
	if why == "" {
		return nil
	}
	out := &Group{Nodes: group.Nodes, Why: why}
	for first, i := 0, 1; i <= len(group.Nodes); i++ {
		if i < len(group.Nodes) && !alone[group.Nodes[i]] && !alone[group.Nodes[i-1]] {
			continue
		}
		nodes := group.Nodes[first:i]
		part := &Group{Nodes: nodes}
		if s.computing(nodes) > 1 {
			part = s.group(nodes)
		}
		out.Parts = append(out.Parts, part)
		first = i
	}
	return out
}

// computing counts the nodes that are no views.
func (s *splitter) computing(nodes []ir.NodeID) (n int) {
	for _, id := range nodes {
		if s.g.Nodes[id].Op != ir.OpView {
			n++
		}
	}
	return n
}
