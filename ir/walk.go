// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// safeArgs is NodeArgs for graphs that may be broken.
func (g *Graph) safeArgs(id NodeID) []Arg {
	n := &g.Nodes[id]
	if n.ArgLo > n.ArgHi || int(n.ArgHi) > len(g.Args) {
		return nil
	}
	return g.NodeArgs(id)
}

// safeList is List for any argument of a graph that may be broken.
func (g *Graph) safeList(a Arg) []Arg {
	lo, n := a.V>>32, a.V&0xffffffff
	if a.Kind != ArgList || lo < 0 || lo+n > int64(len(g.ListArgs)) {
		return nil
	}
	return g.List(a)
}

// EachArg calls f with each argument of a node, the items of lists in place of the lists, in order.
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
	var out []ValueID
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue {
			out = append(out, ValueID(a.V))
		}
	})
	return out
}

// Writes returns the written operands of a node in argument order. The last len(Writes) results are their new contents.
func (g *Graph) Writes(id NodeID) []ValueID {
	var out []ValueID
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue && a.Write {
			out = append(out, ValueID(a.V))
		}
	})
	return out
}

// NumFresh is the number of results of a node that are not new contents of written operands.
func (g *Graph) NumFresh(id NodeID) int { return int(g.Nodes[id].N) - len(g.Writes(id)) }

// UseCounts returns by value how often it is an operand or an output.
func (g *Graph) UseCounts() []int32 {
	counts := make([]int32, len(g.Types))
	for id := range g.Nodes {
		g.EachArg(NodeID(id), func(a Arg) {
			if a.Kind == ArgValue {
				counts[a.V]++
			}
		})
	}
	for _, o := range g.Outputs {
		counts[o.Value]++
	}
	return counts
}

// Users returns by value the nodes of which it is an operand, in order, each once.
func (g *Graph) Users() [][]NodeID {
	users := make([][]NodeID, len(g.Types))
	for i := range g.Nodes {
		id := NodeID(i)
		g.EachArg(id, func(a Arg) {
			if a.Kind != ArgValue {
				return
			}
			u := &users[a.V]
			if len(*u) == 0 || (*u)[len(*u)-1] != id {
				*u = append(*u, id)
			}
		})
	}
	return users
}

// Root is the value whose storage a value's elements lie in: the value itself unless it is a view.
func (g *Graph) Root(v ValueID) ValueID {
	for {
		n := &g.Nodes[g.Def[v]]
		if n.Op != OpView {
			return v
		}
		v = ValueID(g.Args[n.ArgLo].V)
	}
}

// Replace puts value with in place of old in every operand and output. The caller keeps definitions before uses.
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
}

// Rewrite returns a new graph of these nodes in this order, with to[v] in place of each operand and output v (to nil: v
// itself), renumbered, and without arguments and strings that nothing refers to any more; symbols stay. g is left as it
// is. The node of each operand must come before its use.
func (g *Graph) Rewrite(order []NodeID, to []ValueID) *Graph {
	out := &Graph{
		Name: g.Name, Reason: g.Reason,
		Syms:  append([]Symbol(nil), g.Syms...),
		Nodes: make([]Node, 0, len(order)),
		Types: make([]Type, 0, len(g.Types)),
		Def:   make([]NodeID, 0, len(g.Def)),
		Args:  make([]Arg, 0, len(g.Args)),
		equal: append([]Dim(nil), g.equal...),
	}
	const missing = ^ValueID(0)
	renumbered := make([]ValueID, len(g.Types))
	for i := range renumbered {
		renumbered[i] = missing
	}
	value := func(v ValueID) ValueID {
		if to != nil {
			v = to[v]
		}
		if renumbered[v] == missing {
			panic("BUG: an operand's node is dropped or comes after its use: " + g.NodeString(g.Def[v]))
		}
		return renumbered[v]
	}
	var move func(a Arg) Arg
	move = func(a Arg) Arg {
		switch a.Kind {
		case ArgValue:
			a.V = int64(value(ValueID(a.V)))
		case ArgStr:
			a.V = int64(out.Intern(g.Strings[a.V]))
		case ArgList:
			items := append([]Arg(nil), g.List(a)...)
			for i := range items {
				items[i] = move(items[i])
			}
			return out.AddList(a.Sub, items)
		}
		return a
	}
	var args []Arg
	for _, id := range order {
		n := g.Nodes[id]
		args = args[:0]
		for _, a := range g.NodeArgs(id) {
			args = append(args, move(a))
		}
		if n.Op == OpCall {
			n.Name = out.Intern(g.Strings[n.Name])
		}
		for i := range n.N {
			renumbered[n.First+ValueID(i)] = ValueID(len(out.Types)) + ValueID(i)
		}
		out.Add(n, args, g.Types[n.First:n.First+ValueID(n.N)])
	}
	out.Outputs = make([]Output, len(g.Outputs))
	for i, o := range g.Outputs {
		out.Outputs[i] = Output{Value: value(o.Value), Slot: o.Slot}
	}
	out.Canonicalize()
	return out
}

// Clone returns a copy that shares nothing which either graph may change.
func (g *Graph) Clone() *Graph {
	order := make([]NodeID, len(g.Nodes))
	for i := range order {
		order[i] = NodeID(i)
	}
	return g.Rewrite(order, nil)
}
