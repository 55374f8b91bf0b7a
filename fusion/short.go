// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import "github.com/mycelya/mycelya/ir"

// short is a graph without the rows that are left out, and how it corresponds to the whole graph.
type short struct {
	*table
	graph *ir.Graph
	node  []ir.NodeID // by node of graph: the node of the whole graph
	to    []int32     // by node of the whole graph: one more than the node of graph, 0 if it is left out
	need  []bool      // by node of the whole graph: it must stay
	value []ir.ValueID
}

// shorten leaves rows out of a graph. It returns nil if it leaves out none.
//
// All values of such a row are inputs, numbers or results of operators on lists, and only these operators and outputs
// use them. So no other node can have to run between two operators because of a row that is left out.
func shorten(g *ir.Graph) *short {
	s := &short{table: &table{g: g, last: ir.NodeID(len(g.Nodes)) - 1}}
	if len(g.Nodes) == 0 {
		return nil
	}
	inputs := ir.NewBySlot[int](g)
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == ir.OpInput {
			*inputs.At(n.Slot)++
		}
	}
	outputs := make([]byte, len(g.Types))
	for _, o := range g.Outputs {
		outputs[o.Value] = min(outputs[o.Value], 254) + 1
	}
	s.outside = func(v ir.ValueID) bool {
		n := &g.Nodes[g.Def[v]]
		return n.Op == ir.OpInput && *inputs.At(n.Slot) == 1
	}
	s.leaves = func(v ir.ValueID) byte { return outputs[v] }
	if !s.build() {
		return nil
	}
	s.mark()
	s.copy()
	return s
}

// mark finds the nodes that stay: all but inputs and numbers that only rows use which are left out.
func (s *short) mark() {
	g := s.g
	s.need = make([]bool, len(g.Nodes))
	left := make([]bool, len(g.Nodes))
	for i := range g.Nodes {
		s.each(ir.NodeID(i), func(a ir.Arg, out bool) {
			if a.Kind == ir.ArgValue {
				def := g.Def[a.V]
				if out {
					left[def] = true
				} else {
					s.need[def] = true
				}
			}
		})
	}
	for i := range g.Nodes {
		n := &g.Nodes[i]
		leaf := n.Op == ir.OpInput || n.N == 1 && g.Immediate(n.First)
		s.need[i] = s.need[i] || !left[i] || !leaf
	}
	for _, o := range g.Outputs {
		s.need[g.Def[o.Value]] = true
	}
}

// each calls f with each argument of a node, items of lists included, and whether the item's row is left out.
func (t *table) each(id ir.NodeID, f func(a ir.Arg, out bool)) {
	count, base := t.count[id-t.first], t.base[id-t.first]
	for _, a := range t.g.NodeArgs(id) {
		switch items := t.items(a, count); {
		case a.Kind != ir.ArgList:
			f(a, false)
		case items == nil:
			for _, item := range t.g.List(a) {
				f(item, false)
			}
		default:
			for i, item := range items {
				f(item, t.out[int(base)+i])
			}
		}
	}
}

// stays lists the items of a node whose rows stay.
func (t *table) stays(id ir.NodeID) (items []int32) {
	count, base := t.count[id-t.first], t.base[id-t.first]
	for i := base; i < base+int32(count); i++ {
		if !t.out[i] {
			items = append(items, i)
		}
	}
	return items
}

// args are a node's arguments without the rows that are left out. to maps values, and add makes a list.
func (t *table) args(id ir.NodeID, stays []int32, to func(ir.ValueID) ir.ValueID, out *ir.Graph) []ir.Arg {
	count, base := t.count[id-t.first], t.base[id-t.first]
	args := append([]ir.Arg(nil), t.g.NodeArgs(id)...)
	mapped := func(a ir.Arg) ir.Arg {
		if a.Kind == ir.ArgValue {
			a.V = int64(to(ir.ValueID(a.V)))
		}
		return a
	}
	for i, a := range args {
		if a.Kind != ir.ArgList {
			args[i] = mapped(a)
			continue
		}
		var list []ir.Arg
		if items := t.items(a, count); items != nil {
			for _, at := range stays {
				list = append(list, mapped(items[at-base]))
			}
		} else {
			for _, item := range t.g.List(a) {
				list = append(list, mapped(item))
			}
		}
		args[i] = out.AddList(a.Sub, list)
	}
	return args
}

// results are the values of a node without those of the rows that are left out.
func (t *table) results(id ir.NodeID, stays []int32) []ir.ValueID {
	n := &t.g.Nodes[id]
	count, base := t.count[id-t.first], t.base[id-t.first]
	var out []ir.ValueID
	if count == 0 {
		for i := range ir.ValueID(n.N) {
			out = append(out, n.First+i)
		}
		return out
	}
	for from := n.First; from < n.First+ir.ValueID(n.N); from += ir.ValueID(count) {
		for _, at := range stays {
			out = append(out, from+ir.ValueID(at-base))
		}
	}
	return out
}

// add adds a node to a graph without the rows that are left out.
func (t *table) add(out *ir.Graph, id ir.NodeID, to []ir.ValueID) ir.NodeID {
	n := t.g.Nodes[id]
	n.Group = 0
	stays := t.stays(id)
	args := t.args(id, stays, func(v ir.ValueID) ir.ValueID { return to[v] }, out)
	results := t.results(id, stays)
	types := make([]ir.Type, len(results))
	for i, v := range results {
		types[i] = t.g.Types[v]
	}
	made := out.Add(n, args, types)
	for i, v := range results {
		to[v] = out.Nodes[made].First + ir.ValueID(i)
	}
	return made
}

// copy makes the graph.
func (s *short) copy() {
	g := s.g
	s.graph = g.Bare()
	s.graph.Strings = append([]string(nil), g.Strings...)
	s.to = make([]int32, len(g.Nodes))
	s.value = make([]ir.ValueID, len(g.Types))
	for i := range g.Nodes {
		if !s.need[i] {
			continue
		}
		s.add(s.graph, ir.NodeID(i), s.value)
		s.node = append(s.node, ir.NodeID(i))
		s.to[i] = int32(len(s.node))
	}
	for _, o := range g.Outputs {
		if by := s.owner[o.Value]; by == 0 || !s.table.out[s.find(by-1)] {
			s.graph.Outputs = append(s.graph.Outputs, ir.Output{Value: s.value[o.Value], Slot: o.Slot})
		}
	}
}

// whole says of the whole graph what groups say of the short one. A node that was left out comes before the operators
// that use it.
func (s *short) whole(x *Groups) *Groups {
	g := s.g
	out := &Groups{
		Groups: x.Groups, Requires: x.Requires, Equal: x.Equal, graph: x.graph, finder: x.finder, short: s.to,
		Order: make([]ir.NodeID, 0, len(g.Nodes)), Of: make([]uint32, len(g.Nodes)),
	}
	for _, r := range x.Refused {
		out.Refused = append(out.Refused, Refused{s.node[r.From], s.node[r.To], r.Why})
	}
	done := make([]bool, len(g.Nodes))
	for i := 0; i < len(x.Order); {
		end := i + 1
		for of := x.Of[x.Order[i]]; of != 0 && end < len(x.Order) && x.Of[x.Order[end]] == of; end++ {
		}
		for _, id := range x.Order[i:end] {
			s.each(s.node[id], func(a ir.Arg, left bool) {
				if !left || a.Kind != ir.ArgValue {
					return
				}
				if def := g.Def[a.V]; !s.need[def] && !done[def] {
					done[def] = true
					out.Order = append(out.Order, def)
				}
			})
		}
		for _, id := range x.Order[i:end] {
			out.Order = append(out.Order, s.node[id])
			out.Of[s.node[id]] = x.Of[id]
		}
		i = end
	}
	for _, c := range s.classes {
		for _, d := range c.rows[0].dims {
			at, _ := d.Sym()
			equal := x.Equal[at]
			for i := range c.Rows() {
				own, _ := c.Dim(d, i)
				if to, ok := c.Dim(equal, i); ok && equal != d {
					at, _ := own.Sym()
					out.Equal[at] = to
				}
			}
		}
	}
	return out
}
