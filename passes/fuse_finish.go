// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// lonely notes the composite operators that meet others, but need more loop nests of their own than the one that they would be
// whole: then the primitives of the others are better off without them. It says whether there are any.
func (f *fuser) lonely(keep map[ir.NodeID]string) bool {
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

// kind is a text that clusters share which one kernel can compute for lists of tensors: the same ops on the same dtypes, with the
// same of them in memory. Sizes and ranks don't count: all run over their elements in order.
func (f *fuser) kind(c *cluster) string {
	members := slices.Clone(c.members)
	slices.Sort(members)
	number := map[ir.ValueID]uint64{}
	b := []byte{byte(f.template(c)), byte(len(c.frames))}
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

// template is the loop nest of a cluster.
func (f *fuser) template(c *cluster) ir.Template {
	if c.folds == nil {
		return ir.TemplateMap
	}
	rest := slices.Index(c.folds, true) // the dims before the first fold
	switch {
	case !slices.Contains(c.folds, false):
		return ir.TemplateAll
	case !slices.Contains(c.folds[rest:], false):
		return ir.TemplateRows
	}
	return ir.TemplateCols
}

// finish puts the groups that are worth it into a graph.
func (f *fuser) finish(g *ir.Graph, r *rules) *ir.Graph {
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
	f.explain(g, r, group)
	if len(groups) == 0 {
		return g
	}
	out := g.Rewrite(order, nil)
	for i, id := range order {
		out.Nodes[i].Group = group[id]
	}
	out.Groups = groups
	out.Requires = f.required(out, group)
	return out
}

// launches lists the templates of clusters in the order in which they run, one for all of a kind.
func (f *fuser) launches(clusters []*cluster) []ir.Template {
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
		out = append(out, f.template(c))
	}
	return out
}

// required are the facts of groups, each once.
func (f *fuser) required(g *ir.Graph, group []uint32) []ir.Require {
	out := slices.Clone(g.Requires)
	seen := map[string]bool{}
	key := func(r ir.Require) string {
		b := make([]byte, 0, 64)
		for _, side := range [...][]ir.Dim{r.Left, r.Right} {
			for _, d := range side {
				b = binary.AppendVarint(b, int64(g.Find(d)))
			}
			b = append(b, 0) // 0 is no symbol, and no size of a product that is required
		}
		return string(b)
	}
	for _, r := range out {
		seen[key(r)] = true
	}
	for _, q := range f.requires {
		if k := key(q.Require); group[q.of] != 0 && !seen[k] {
			seen[k] = true
			out = append(out, q.Require)
		}
	}
	return out
}

// Refusal is two nodes, of which the one makes an operand of the other, that kernels could compute together and don't, or one that
// no kernel computes.
type Refusal struct {
	From, To string // the nodes as they are printed; From is "" if it is about one
	Origin   ir.Origin
	Why      string
}

// String is the refusal in lines of its own.
func (r Refusal) String() string {
	if r.From == "" {
		return fmt.Sprintf("%s\n    %s", r.To, r.Why)
	}
	return fmt.Sprintf("%s\n%s\n    %s", r.From, r.To, r.Why)
}

// explain notes why what is not in one group isn't.
func (f *fuser) explain(g *ir.Graph, r *rules, group []uint32) {
	if !r.explain {
		return
	}
	text := g.NodeStrings()
	for id, why := range f.expansion.Whole {
		if why == "" && g.Nodes[id].Op == ir.OpCall {
			why = "it meets nothing that a kernel could compute with it"
		}
		if why != "" && group[id] == 0 {
			r.refused = append(r.refused, Refusal{To: text(ir.NodeID(id)), Origin: g.Nodes[id].Origin, Why: why})
		}
	}
	seen := map[[2]ir.NodeID]bool{}
	for _, one := range f.refused {
		from, to := f.of[one.from], f.of[one.to]
		if from == to || seen[[2]ir.NodeID{from, to}] || group[from] != 0 && group[from] == group[to] {
			continue
		}
		seen[[2]ir.NodeID{from, to}] = true
		r.refused = append(r.refused, Refusal{text(from), text(to), g.Nodes[to].Origin, one.why})
	}
}

// Kernels counts what a graph launches: the kernels of its groups, and one for each other node that computes. Views, memory and
// writes to a part of it, which are done in place, are none.
func Kernels(g *ir.Graph) int {
	n := 0
	for _, group := range g.Groups {
		n += len(group.Kernels)
	}
	for i := range g.Nodes {
		if node := &g.Nodes[i]; node.Group == 0 && (node.Op == ir.OpCall && node.Flags&ir.FlagEffect == 0 || node.Op.Own()) {
			n++
		}
	}
	return n
}
