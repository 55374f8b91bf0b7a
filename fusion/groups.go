// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Groups are the groups that Find has chosen.
type Groups struct {
	Order    []ir.NodeID // all nodes, those of a group side by side
	Of       []uint32    // by node: one more than the index of its group, 0 for none
	Groups   []ir.Group
	Requires []ir.Require // those of the graph and of its groups
	Equal    []ir.Dim     // by symbol: the size that it equals by the meaning of primitives
	Refused  []Refused
	graph    *ir.Graph // without the rows that are left out
	finder   *finder
	short    []int32 // by node: one more than its number in graph, 0 if it is left out; nil: graph is the whole graph
}

// Refused is two nodes, one an operand of the other, that no single loop computes, and why. They may still be in one
// group.
type Refused struct {
	From, To ir.NodeID
	Why      string
}

// Alone is the reason why no kernel computes a node, or an operator, together with others. It is empty for a node that
// computes nothing, and for an own op that kernels compute: Refused has the reasons for its neighbours.
func (x *Groups) Alone(id ir.NodeID) string {
	if x.short != nil {
		if x.short[id] == 0 {
			return "" // an input or a number
		}
		id = ir.NodeID(x.short[id] - 1)
	}
	f := x.finder
	composite := false
	i, _ := slices.BinarySearch(f.of, id)
	for ; i < len(f.of) && f.of[i] == id; i++ {
		switch o := f.obstacles[i]; o {
		case computed:
			composite = composite || x.graph.Nodes[id].Op == ir.OpCall
		case idle, drawn, memory:
		default:
			return f.text(ir.NodeID(i), o)
		}
	}
	if composite {
		return "no other node can be in a kernel with it"
	}
	return ""
}

// Find finds the groups of a graph that has none.
//
// It works on the primitives of composite operators (ir/decomp). Each primitive is a cluster of its own at first. Two
// clusters merge where every value that goes from one to the other can stay in a register or in the current row. A
// merge saves a write, a read and a launch, so every merge pays and no size decides. A composite operator stays whole
// if its primitives merge with no others, or if it would need more loops than it merges with. Of the rows of operators
// on lists that are computed alike, it sees two (rows.go).
func Find(g *ir.Graph) *Groups { return find(g, "") }

// find is Find. Two clusters merge although this reason forbids it, if it is not empty; only tests do that.
func find(g *ir.Graph, unguarded string) *Groups {
	if s := shorten(g); s != nil {
		return s.whole(findAll(s.graph, unguarded))
	}
	return findAll(g, unguarded)
}

func findAll(g *ir.Graph, unguarded string) *Groups {
	keep := map[ir.NodeID]string{}
	var f *finder
	equal := make([]ir.Dim, len(g.Syms))
	for range 3 {
		f = newFinder(decomp.Expand(g, keep), g, Options{})
		f.unguarded = unguarded
		for i := range equal { // before run unifies sizes that are only required to be equal
			equal[i] = f.g.Find(ir.SymDim(i))
		}
		f.run()
		if !f.lonely(keep) {
			break
		}
	}
	f.alike(g)
	out := f.groups(g)
	out.Equal = equal
	return out
}

// lonely notes the composite operators that merge with others but need several more loops of their own than the one
// that they are as a whole. The clusters of the others are better off without their primitives. It reports whether
// there are any.
func (f *finder) lonely(keep map[ir.NodeID]string) bool {
	nodes := len(f.whole.up)
	alone := make([][]*cluster, nodes) // by node: the clusters of it and of no other
	shared := make([]bool, nodes)
	for i, is := range f.fusable {
		if !is || f.prims.find(i) != i {
			continue
		}
		c := f.clusters[i]
		of := f.of[c.members[0]]
		if !slices.ContainsFunc(c.members, func(id ir.NodeID) bool { return f.of[id] != of }) {
			alone[of] = append(alone[of], c)
			continue
		}
		for _, id := range c.members {
			shared[f.of[id]] = true
		}
	}
	found := false
	for id, clusters := range alone {
		if !shared[id] || len(clusters) < 2 {
			continue
		}
		kinds := map[string]bool{}
		for _, c := range clusters {
			kinds[f.kind(c)] = true
		}
		if len(kinds) > 1 {
			keep[ir.NodeID(id)] = fmt.Sprintf("it would need %d more kernels of its own", len(kinds))
			found = true
		}
	}
	return found
}

// kind is a key that clusters share which one kernel can compute for lists of tensors: the same ops on the same dtypes,
// with the same operands in memory. Sizes and ranks do not count: all run over their elements in order.
func (f *finder) kind(c *cluster) string {
	members := slices.Clone(c.members)
	slices.Sort(members)
	number := map[ir.ValueID]uint64{}
	b := []byte{byte(template(c)), byte(len(c.spaces))}
	for _, id := range members {
		n := &f.g.Nodes[id]
		b = append(b, byte(n.Op), byte(n.N))
		if n.Op == ir.OpCall {
			b = binary.AppendUvarint(b, uint64(n.Name))
		}
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			number[v] = uint64(len(number))
			b = append(b, byte(f.g.Types[v].DType))
		}
		args := f.g.NodeArgs(id)
		b = binary.AppendUvarint(b, uint64(len(args)))
		for _, a := range args {
			v := ir.ValueID(a.V)
			b = append(b, byte(a.Kind))
			if a.Kind != ir.ArgValue {
				continue
			}
			k, here := number[f.g.Root(v)]
			switch {
			case here:
				b = binary.AppendUvarint(append(b, 0), k)
			case len(f.g.Types[v].Dims) == 0:
				b = append(b, 1, byte(f.g.Types[v].DType))
			default:
				b = append(b, 2, byte(f.g.Types[v].DType))
			}
		}
	}
	return string(b)
}

// template is the form of a cluster's loop.
func template(c *cluster) ir.Template {
	if c.reduced == nil {
		return ir.TemplateMap
	}
	first := slices.Index(c.reduced, true)
	switch {
	case !slices.Contains(c.reduced, false):
		return ir.TemplateAll
	case !slices.Contains(c.reduced[first:], false):
		return ir.TemplateRows
	}
	return ir.TemplateCols
}

// groups makes a group of each vertex that computes several nodes with fewer kernels than nodes.
func (f *finder) groups(g *ir.Graph) *Groups {
	// The clusters and the number of nodes of each vertex of the whole graph.
	clusters := make([][]*cluster, len(g.Nodes))
	computes := make([]int, len(g.Nodes)) // nodes
	counted := make([]bool, len(g.Nodes))
	for _, v := range f.prims.order {
		if v < 0 || !f.fusable[v] || f.clusters[v] == nil {
			continue
		}
		c := f.clusters[v]
		at := f.whole.find(int(f.of[c.members[0]]))
		clusters[at] = append(clusters[at], c)
		for _, id := range c.members {
			if of := f.of[id]; !counted[of] {
				counted[of] = true
				computes[at]++
			}
		}
	}
	members := f.whole.members()
	order := make([]ir.NodeID, 0, len(g.Nodes))
	var groups []ir.Group
	group := make([]uint32, len(g.Nodes))
	for _, v := range f.whole.order {
		if v < 0 {
			continue
		}
		first := len(order)
		for _, id := range members[v] {
			order = append(order, ir.NodeID(id))
		}
		if computes[v] < 2 {
			continue
		}
		if templates := f.launches(clusters[v]); len(templates) <= computes[v] {
			groups = append(groups, ir.Group{Kernels: templates})
			for _, id := range order[first:] {
				group[id] = uint32(len(groups))
			}
		}
	}
	out := &Groups{Order: order, Of: group, Groups: groups, graph: g, finder: f}
	out.Requires = f.required(g, group)
	for _, one := range f.refused {
		out.Refused = append(out.Refused, Refused{f.of[one.from], f.of[one.to], one.why})
	}
	return out
}

// launches lists the templates of clusters in the order in which they run, one for all clusters of a kind.
func (f *finder) launches(clusters []*cluster) []ir.Template {
	var out []ir.Template
	seen := map[string]int{}
	for _, c := range clusters {
		kind := ""
		if len(clusters) > 1 {
			kind = f.kind(c)
		}
		if i, ok := seen[kind]; ok && len(clusters) > 1 {
			if out[i] == ir.TemplateMap {
				out[i] = ir.TemplateLists
			}
			continue
		}
		seen[kind] = len(out)
		out = append(out, template(c))
	}
	return out
}

// required returns the requirements of groups, each once.
func (f *finder) required(g *ir.Graph, group []uint32) []ir.Require {
	out := slices.Clone(g.Requires)
	seen := map[string]bool{}
	for _, r := range out {
		seen[requireKey(g, r)] = true
	}
	for _, q := range f.requires {
		if k := requireKey(g, q.Require); group[q.of] != 0 && !seen[k] {
			seen[k] = true
			out = append(out, q.Require)
		}
	}
	return out
}

// requireKey is a key that two requirements share exactly if they equate the same products of the same sizes.
func requireKey(g *ir.Graph, r ir.Require) string {
	b := make([]byte, 0, 64)
	for _, side := range [...][]ir.Dim{r.Left, r.Right} {
		for _, d := range side {
			b = binary.AppendVarint(b, int64(g.Find(d)))
		}
		b = append(b, 0) // a separator: neither a symbol nor a size of a required product
	}
	return string(b)
}
