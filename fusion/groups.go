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

// Groups are the nodes of a graph that kernels had better compute together.
type Groups struct {
	Order    []ir.NodeID // all nodes, those of a group side by side
	Of       []uint32    // by node: one more than its group, 0: in none
	Groups   []ir.Group
	Requires []ir.Require // all that the graph relies on then
	Equal    []ir.Dim     // by symbol: what it is equal to by the meaning of what composite operators are made of
	Refused  []Refused
	graph    *ir.Graph
	finder   *finder
}

// Refused is two nodes, the one an operand of the other, that no loop nest could compute together, and why not. They
// may be in one group yet.
type Refused struct {
	From, To ir.NodeID
	Why      string
}

// Alone is why no kernel computes a node, or an operator, with others. It is empty for a node that computes nothing,
// and for an own op that kernels compute: Refused tells about its neighbours.
func (x *Groups) Alone(id ir.NodeID) string {
	f := x.finder
	composite := false
	i, _ := slices.BinarySearch(f.of, id)
	for ; i < len(f.of) && f.of[i] == id; i++ {
		switch o := f.obstacles[i]; o {
		case clear:
			composite = composite || x.graph.Nodes[id].Op == ir.OpCall
		case idle, drawn:
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
// It works on the primitives that composite operators are made of (ir/decomp). Each is a loop nest of its own at first;
// two become one where every value that goes from the one to the other can stay in a register, or in the row at hand.
// What that saves is a write and a read of memory and a launch, so each such merge pays; no size decides. A composite
// operator whose primitives don't meet others', or would need more loop nests than it meets, stays whole.
func Find(g *ir.Graph) *Groups {
	keep := map[ir.NodeID]string{}
	var f *finder
	equal := make([]ir.Dim, len(g.Syms))
	for range 3 {
		f = newFinder(decomp.Expand(g, keep), g, Options{})
		for i := range equal { // before it takes more to be equal
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

// lonely notes the composite operators that meet others, but need more loop nests of their own than the one that they
// would be whole: then the primitives of the others are better off without them. It says whether there are any.
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
			keep[ir.NodeID(id)] = fmt.Sprintf("it would take %d more kernels of its own", len(kinds))
			found = true
		}
	}
	return found
}

// kind is a text that clusters share which one kernel can compute for lists of tensors: the same ops on the same
// dtypes, with the same of them in memory. Sizes and ranks don't count: all run over their elements in order.
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

// groups makes groups of what is worth it.
func (f *finder) groups(g *ir.Graph) *Groups {
	// What each vertex of the whole graph computes, and with which loop nests.
	clusters := make([][]*cluster, len(g.Nodes))
	computes := make([]int, len(g.Nodes)) // nodes
	counted := make([]bool, len(g.Nodes))
	for _, place := range f.prims.order {
		if place < 0 || !f.fusable[place] || f.clusters[place] == nil {
			continue
		}
		c := f.clusters[place]
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

// launches lists the templates of clusters in the order in which they run, one for all of a kind.
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

// required are the facts of groups, each once.
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

// requireKey is a text that two facts share exactly if they say the same of the same sizes.
func requireKey(g *ir.Graph, r ir.Require) string {
	b := make([]byte, 0, 64)
	for _, side := range [...][]ir.Dim{r.Left, r.Right} {
		for _, d := range side {
			b = binary.AppendVarint(b, int64(g.Find(d)))
		}
		b = append(b, 0) // 0 is no symbol, and no size of a product that is required
	}
	return string(b)
}
