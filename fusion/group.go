// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Options holds the facts that a graph does not contain.
type Options struct {
	// NoDraws keeps random numbers out of kernels, because the worker's own operators draw other numbers than the masks of
	// kernels.
	NoDraws bool
	// Copies is for workers whose operators copy tensors faster than a kernel does that looks up for each element the
	// tensor that has it. No kernel makes a concatenation or a stack that has to be in memory.
	Copies bool
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

	Graph   *ir.Graph                   // of the primitives; an input is a value that the group reads
	Loops   []Loop                      // in the order in which they can run
	Reads   []ir.ValueID                // values of the given graph in memory, in the order of the inputs
	classes []*Class                    // by loop: the rows that it stands for, nil if it stands for itself only
	numbers map[ir.ValueID]ir.ValueID   // by number of Graph of a first row: the number of the given graph
	Draws   []ir.NodeID                 // of Graph: calls that make masks of random numbers before the loops
	Checks  []ir.NodeID                 // of Graph: calls that check indices and divisors before the loops
	Must    []ir.DType                  // by node of Graph: the dtype that must hold its numbers, see decomp.Expansion
	Source  map[ir.ValueID]ir.ValueID   // by input of Graph: the value of the given graph
	Leaves  map[ir.ValueID][]ir.ValueID // by value of Graph: the values of the given graph that others may read
	finder  *finder
	in      []int32                 // by node of Graph: its loop, -1 for none
	seen    [][]int8                // by index in Graph.Args: along which dims of its loop's space an operand runs
	counts  map[ir.ValueID][]ir.Dim // by value of Graph that only counts elements: the dims whose product it is
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
	last    []ir.NodeID  // by root: the last node that reads it, len(Nodes) for an output
	to      []ir.ValueID // see extracted; None between two groups

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
	x := s.extract(nodes)
	e := decomp.Expand(x.graph, nil)
	s.g.Syms = append(s.g.Syms, e.Graph.Syms[len(s.g.Syms):]...)
	f := newFinder(e, x.graph, s.options)
	f.run()
	if s.options.Copies {
		if copied := f.copied(x.graph); len(copied) > 0 {
			e = decomp.Expand(x.graph, copied)
			f = newFinder(e, x.graph, s.options)
			f.run()
		}
	}
	if !s.stated(f) {
		x.end()
		return &Group{Nodes: nodes, Why: "its loops take sizes to be equal that the program doesn't require"}
	}
	group := &Group{Nodes: nodes, Graph: e.Graph, Must: e.Must, finder: f}
	group.split()
	why := x.classes(group)
	x.end()
	if out := s.parts(group, x.of); out != nil {
		return out
	}
	if why == "" {
		why = group.complete()
	}
	if why != "" {
		return &Group{Nodes: nodes, Why: why}
	}
	return group
}

// copied are the concatenations and stacks whose results have to be in memory, and that as a reason to keep them whole.
func (f *finder) copied(given *ir.Graph) map[ir.NodeID]string {
	out := map[ir.NodeID]string{}
	for i := range given.Nodes {
		id := ir.NodeID(i)
		if given.Nodes[i].Op != ir.OpCall || f.expansion.Whole[i] != "" {
			continue
		}
		if p := given.Row(id).Point; p != catalogue.Concatenated && p != catalogue.Stacked {
			continue
		}
		if v := f.expansion.To[given.Nodes[i].First]; f.leaves(v, f.cluster(f.g.Def[v])) {
			out[id] = "its result has to be in memory, where operators copy whole tensors to"
		}
	}
	return out
}

// leaves reports whether a value that a cluster makes, or a view of it, is an output or is read outside of the cluster.
func (f *finder) leaves(v ir.ValueID, c *cluster) bool {
	return f.output[v] || slices.ContainsFunc(f.users[v], func(user ir.NodeID) bool {
		if n := &f.g.Nodes[user]; n.Op == ir.OpView {
			return f.leaves(n.First, c)
		}
		return !f.counts[user] && (!f.fusable[user] || f.cluster(user) != c)
	})
}

// extract makes a graph of nodes in a row, with what they read as inputs, and without the rows that are left out.
func (s *splitter) extract(nodes []ir.NodeID) *extracted {
	g := s.g
	first, last := nodes[0], nodes[len(nodes)-1]
	if s.to == nil {
		s.to = make([]ir.ValueID, len(g.Types))
		for v := range s.to {
			s.to[v] = decomp.None
		}
	}
	in := func(v ir.ValueID) bool { return g.Def[v] >= first && g.Def[v] <= last }
	outside := func(v ir.ValueID) bool { return !in(v) || g.Nodes[g.Def[v]].Op == ir.OpView && !in(g.Root(v)) }
	x := &extracted{g: g, graph: g.Bare(), to: s.to, rows: &table{g: g, first: first, last: last, outside: outside}}
	x.rows.leaves = func(v ir.ValueID) byte {
		if in(v) && s.last[v] > last {
			return 1
		}
		return 0
	}
	x.rows.build()
	x.graph.Strings = slices.Clone(g.Strings)
	for _, id := range nodes {
		n := &g.Nodes[id]
		if n.Op == ir.OpView && !in(g.Root(n.First)) {
			continue // the view is an input
		}
		x.rows.each(id, func(a ir.Arg, left bool) {
			if v := ir.ValueID(a.V); a.Kind == ir.ArgValue && !left && outside(v) {
				x.read(v)
			}
		})
		made := x.rows.add(x.graph, id, x.to)
		x.made = append(x.made, x.rows.results(id, x.rows.stays(id))...)
		for len(x.of) <= int(made) {
			x.of = append(x.of, id)
		}
	}
	for _, id := range nodes {
		if g.Nodes[id].Op == ir.OpView {
			continue
		}
		// A written operand's new content is needed: the operand's storage may be read through other values.
		fresh := g.Nodes[id].First + ir.ValueID(g.NumFresh(id))
		for _, v := range x.rows.results(id, x.rows.stays(id)) {
			if v >= fresh || s.last[v] > last {
				x.graph.Outputs = append(x.graph.Outputs, ir.Output{Value: x.to[v], Slot: uint32(v)})
			}
		}
	}
	return x
}

// extracted is a graph of some nodes of another graph.
type extracted struct {
	g, graph *ir.Graph
	of       []ir.NodeID  // by node of graph: the node of g
	to       []ir.ValueID // by value of g: the value of graph
	made     []ir.ValueID // the values of g that are in to
	rows     *table
}

// read makes a value from elsewhere an input, or a number once more.
func (x *extracted) read(v ir.ValueID) {
	if x.to[v] != decomp.None {
		return
	}
	node, args := ir.Node{Op: ir.OpInput, Slot: uint32(v)}, []ir.Arg(nil)
	if x.g.Immediate(v) {
		n := &x.g.Nodes[x.g.Def[v]]
		node, args = ir.Node{Op: n.Op, Slot: n.Slot}, x.g.NodeArgs(x.g.Def[v])
	}
	x.to[v] = x.graph.Nodes[x.graph.Add(node, args, x.g.Types[v:v+1])].First
	x.made = append(x.made, v)
}

// end makes room for the next graph.
func (x *extracted) end() {
	for _, v := range x.made {
		x.to[v] = decomp.None
	}
}

// classes finds the class of each loop of a first row, and what the numbers of first rows are in g.
func (x *extracted) classes(l *Group) (why string) {
	if len(x.rows.classes) == 0 {
		return ""
	}
	e := l.finder.expansion
	l.classes, l.numbers = make([]*Class, len(l.Loops)), map[ir.ValueID]ir.ValueID{}
	for i := range l.Loops {
		for k, id := range l.Loops[i].Members {
			var c *Class
			if of := x.of[e.Of[id]]; x.rows.count[of-x.rows.first] > 0 {
				c = x.rows.of[x.rows.stays(of)[e.Item[id]]]
			}
			if k > 0 && c != l.classes[i] {
				return "it computes different tensors of lists in one loop"
			}
			l.classes[i] = c
		}
	}
	for _, c := range x.rows.classes {
		for _, v := range c.rows[0].values {
			if x.g.Immediate(v) {
				l.numbers[e.To[x.to[v]]] = v
			}
		}
		for i := range c.Rows() {
			for _, v := range c.rows[kept+i].values {
				if !x.g.Immediate(v) && (x.g.Def[v] < x.rows.first || x.g.Def[v] > x.rows.last || x.rows.outside(v)) {
					l.Reads = append(l.Reads, v)
				}
			}
		}
	}
	return ""
}

// Class is the rows, left out of Graph, that a loop computes too, besides the one that it has. It is nil if there are
// none.
func (l *Group) Class(loop int) *Class {
	if l.classes == nil {
		return nil
	}
	return l.classes[loop]
}

// Number is the number of the given graph that a number of Graph is, if the number differs from row to row.
func (l *Group) Number(v ir.ValueID) (ir.ValueID, bool) {
	own, ok := l.numbers[v]
	return own, ok
}

// parts splits a group around the nodes that no kernel computes, each of which is a part of its own; nil if kernels
// compute all.
func (s *splitter) parts(group *Group, of []ir.NodeID) *Group {
	f := group.finder
	alone := map[ir.NodeID]bool{}
	why := ""
	for i, o := range f.obstacles {
		if o == computed || o == drawn || o == checked || o == idle || f.counts[i] {
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
