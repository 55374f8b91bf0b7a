// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "slices"

// safeArgs is NodeArgs for graphs that may be invalid.
func (g *Graph) safeArgs(id NodeID) []Arg {
	n := &g.Nodes[id]
	if n.ArgLo > n.ArgHi || int(n.ArgHi) > len(g.Args) {
		return nil
	}
	return g.NodeArgs(id)
}

// safeList is List for any argument of a graph that may be invalid.
func (g *Graph) safeList(a Arg) []Arg {
	lo, n := a.V>>32, a.V&0xffffffff
	if a.Kind != ArgList || lo < 0 || lo+n > int64(len(g.ListArgs)) {
		return nil
	}
	return g.List(a)
}

// EachArg calls f with each argument of a node in order, and with the items of a list instead of the list.
func (g *Graph) EachArg(id NodeID, f func(Arg)) {
	for _, a := range g.NodeArgs(id) {
		if a.Kind != ArgList {
			f(a)
			continue
		}
		for _, item := range g.List(a) {
			f(item)
		}
	}
}

// Operands returns the operands of a node, those in lists included, in order.
func (g *Graph) Operands(id NodeID) []ValueID {
	count := 0
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue {
			count++
		}
	})
	if count == 0 {
		return nil
	}
	out := make([]ValueID, 0, count)
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue {
			out = append(out, ValueID(a.V))
		}
	})
	return out
}

// Writes returns the written operands of a node in argument order. The last len(Writes) results are their new
// contents.
func (g *Graph) Writes(id NodeID) []ValueID {
	n := g.NumWrites(id)
	if n == 0 {
		return nil
	}
	out := make([]ValueID, 0, n)
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue && a.Write {
			out = append(out, ValueID(a.V))
		}
	})
	return out
}

// NumWrites is the number of written operands of a node.
func (g *Graph) NumWrites(id NodeID) int {
	n := 0
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue && a.Write {
			n++
		}
	})
	return n
}

// NumFresh is the number of results of a node that are not new contents of written operands.
func (g *Graph) NumFresh(id NodeID) int { return int(g.Nodes[id].N) - g.NumWrites(id) }

// UseCounts returns, by value, how often the value is an operand or an output.
func (g *Graph) UseCounts() []int32 {
	counts := make([]int32, len(g.Types))
	g.eachOperand(func(_ NodeID, v ValueID) { counts[v]++ })
	for _, o := range g.Outputs {
		counts[o.Value]++
	}
	return counts
}

// Users returns, by value, the nodes that have the value as an operand, in order and each once.
func (g *Graph) Users() [][]NodeID {
	users := make([][]NodeID, len(g.Types))
	counts := make([]int32, len(g.Types))
	total := 0
	g.eachOperand(func(_ NodeID, v ValueID) {
		counts[v]++
		total++
	})
	all := make([]NodeID, total)
	for v, n := range counts {
		if n > 0 {
			users[v], all = all[:0:n], all[n:]
		}
	}
	g.eachOperand(func(id NodeID, v ValueID) {
		if u := users[v]; len(u) == 0 || u[len(u)-1] != id {
			users[v] = append(u, id)
		}
	})
	return users
}

// eachOperand calls f with each operand of each node.
func (g *Graph) eachOperand(f func(id NodeID, v ValueID)) {
	for i := range g.Nodes {
		g.EachArg(NodeID(i), func(a Arg) {
			if a.Kind == ArgValue {
				f(NodeID(i), ValueID(a.V))
			}
		})
	}
}

// Root is the value whose storage holds a value's elements: the value itself unless it is a view.
func (g *Graph) Root(v ValueID) ValueID {
	for {
		n := &g.Nodes[g.Def[v]]
		if n.Op != OpView {
			return v
		}
		v = ValueID(g.Args[n.ArgLo].V)
	}
}

// Replace replaces the value old by with in every operand and output. The caller keeps definitions before uses.
func (g *Graph) Replace(old, with ValueID) {
	swap := func(args []Arg) {
		for i := range args {
			if a := &args[i]; a.Kind == ArgValue && ValueID(a.V) == old {
				a.V = int64(with)
			}
		}
	}
	swap(g.Args)
	swap(g.ListArgs)
	for i := range g.Outputs {
		if g.Outputs[i].Value == old {
			g.Outputs[i].Value = with
		}
	}
	for i := range g.Versions {
		if g.Versions[i].Value == old {
			g.Versions[i].Value = with
		}
	}
}

// copier makes a graph from the nodes of another graph.
type copier struct {
	g, out *Graph
	via    []ValueID // the old value that replaces an operand; nil: no replacement
	to     []ValueID // by old value: the new value
	names  []uint32  // by string of the old graph: 1 + its index in the new graph, 0 while it is not there
	args   []Arg
}

// newCopier copies into a new graph with room for more nodes than the old one has.
func newCopier(g *Graph, via []ValueID, more int) *copier {
	c := &copier{g: g, via: via, to: make([]ValueID, len(g.Types)), names: make([]uint32, len(g.Strings)), out: &Graph{
		Name: g.Name, Reason: g.Reason,
		Syms: slices.Clone(g.Syms), equal: slices.Clone(g.equal),
		Groups: slices.Clone(g.Groups), Requires: slices.Clone(g.Requires), Numbers: slices.Clone(g.Numbers),
	}}
	c.out.Grow(len(g.Nodes)+more, len(g.Types)+more, len(g.Args)+2*more, 0)
	c.out.ListArgs = make([]Arg, 0, len(g.ListArgs))
	for i := range c.to {
		c.to[i] = NoValue
	}
	return c
}

func (c *copier) value(v ValueID) ValueID {
	if c.via != nil {
		v = c.via[v]
	}
	if c.to[v] == NoValue {
		panic("BUG: an operand's node is dropped or comes after its use: " + c.g.NodeString(c.g.Def[v]))
	}
	return c.to[v]
}

// name is the index of a string of the old graph in the new graph.
func (c *copier) name(old uint32) uint32 {
	if c.names[old] == 0 {
		c.names[old] = c.out.Intern(c.g.Strings[old]) + 1
	}
	return c.names[old] - 1
}

func (c *copier) arg(a Arg) Arg {
	switch a.Kind {
	case ArgValue:
		a.V = int64(c.value(ValueID(a.V)))
	case ArgStr:
		a.V = int64(c.name(uint32(a.V)))
	case ArgList:
		list := c.out.AddList(a.Sub, c.g.List(a))
		items := c.out.List(list)
		for i := range items {
			items[i] = c.arg(items[i]) // no list
		}
		return list
	}
	return a
}

// node gives a node as the new graph has it, and its arguments, which are valid until the next call.
func (c *copier) node(id NodeID) (Node, []Arg) {
	n := c.g.Nodes[id]
	c.args = c.args[:0]
	for _, a := range c.g.NodeArgs(id) {
		c.args = append(c.args, c.arg(a))
	}
	if n.Op == OpCall {
		n.Name = c.name(n.Name)
	}
	return n, c.args
}

// add appends the node that node gave, changed or not.
func (c *copier) add(id NodeID, n Node, args []Arg) {
	old := &c.g.Nodes[id]
	for i := range old.N {
		c.to[old.First+ValueID(i)] = ValueID(len(c.out.Types)) + ValueID(i)
	}
	c.out.Add(n, args, c.g.Types[old.First:old.First+ValueID(old.N)])
}

func (c *copier) finish() *Graph {
	c.out.Outputs = make([]Output, len(c.g.Outputs))
	for i, o := range c.g.Outputs {
		c.out.Outputs[i] = Output{Value: c.value(o.Value), Slot: o.Slot}
	}
	c.versions()
	c.follow()
	c.out.countGroups()
	c.out.Canonicalize()
	return c.out
}

// versions takes over the versions of storages.
func (c *copier) versions() {
	if len(c.g.Versions) == 0 {
		return
	}
	c.out.Versions = slices.Clone(c.g.Versions)
	for i := range c.out.Versions {
		v := &c.out.Versions[i].Value
		if *v == NoValue {
			continue
		}
		if c.via != nil {
			*v = c.via[*v]
		}
		*v = c.to[*v]
	}
}

// Bare returns a graph with the same name, sizes and facts about sizes, but without nodes. g must be canonical, and
// must learn nothing about its sizes while the result is in use. What the result learns does not change g.
func (g *Graph) Bare() *Graph {
	out := NewGraph(g.Name, g.Reason)
	out.Syms, out.Requires, out.equal = slices.Clip(g.Syms), slices.Clip(g.Requires), slices.Clip(g.equal)
	out.Numbers = slices.Clip(g.Numbers)
	out.shared = &shared{len(g.Syms), len(g.Requires)}
	return out
}

// shared says what a graph shares with the one that it was made of by Bare: all known equalities, and the first symbols
// and requirements. A graph with thousands of sizes is made into hundreds of small graphs, one for each group.
type shared struct{ syms, requires int }

// own makes a copy of what a graph shares with another.
func (g *Graph) own() {
	if g.shared != nil {
		g.Syms, g.Requires, g.equal = slices.Clone(g.Syms), slices.Clone(g.Requires), slices.Clone(g.equal)
		g.Numbers, g.shared = slices.Clone(g.Numbers), nil
	}
}

// countGroups numbers the groups in the order of their nodes, and drops groups without nodes.
func (g *Graph) countGroups() {
	if len(g.Groups) == 0 {
		return
	}
	old := g.Groups
	g.Groups = nil
	number := make([]uint32, len(old)+1)
	for id := range g.Nodes {
		n := &g.Nodes[id]
		if n.Group == 0 {
			continue
		}
		if number[n.Group] == 0 {
			g.Groups = append(g.Groups, old[n.Group-1])
			number[n.Group] = uint32(len(g.Groups))
		}
		n.Group = number[n.Group]
	}
}

// Rewrite returns a new graph of these nodes in this order, with to[v] instead of each operand and output v (to nil:
// v itself). The new graph is renumbered and has no unused arguments and strings; symbols stay. g does not change.
// The node of each operand must precede its use.
func (g *Graph) Rewrite(order []NodeID, to []ValueID) *Graph {
	c := newCopier(g, to, 0)
	for _, id := range order {
		node, args := c.node(id)
		c.add(id, node, args)
	}
	return c.finish()
}

// Rebuild returns a new graph of the nodes that edit returns, in order; symbols stay, and g does not change. edit
// gets the graph so far, the old node, and the node with its arguments as they would be added. It returns the
// arguments, and may have changed the node. Or it returns a value of the new graph that replaces the node's single
// result: then no node is added.
func (g *Graph) Rebuild(
	edit func(out *Graph, old, node *Node, args []Arg, results []Type) ([]Arg, ValueID, bool),
) *Graph {
	c := newCopier(g, nil, len(g.Nodes)/8)
	for i := range g.Nodes {
		id, old := NodeID(i), &g.Nodes[i]
		node, args := c.node(id)
		if old.Op == OpView { // the offset counts from the root, of which the new operand may be no view
			if root := c.value(g.Root(old.First)); c.out.Root(ValueID(args[0].V)) != c.out.Root(root) {
				args[0] = Value(root)
			}
		}
		args, is, found := edit(c.out, old, &node, args, g.Types[old.First:old.First+ValueID(old.N)])
		if found {
			c.to[old.First] = is
			continue
		}
		c.add(id, node, args)
	}
	return c.finish()
}

// Clone returns a copy that shares no changeable memory with the graph.
func (g *Graph) Clone() *Graph {
	order := make([]NodeID, len(g.Nodes))
	for i := range order {
		order[i] = NodeID(i)
	}
	return g.Rewrite(order, nil)
}

// Ungrouped is a copy of a graph without its groups.
func (g *Graph) Ungrouped() *Graph {
	out := g.Clone()
	for i := range out.Nodes {
		out.Nodes[i].Group = 0
	}
	out.Groups = nil
	return out
}
