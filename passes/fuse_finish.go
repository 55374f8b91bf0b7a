// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

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
	var b strings.Builder
	members := slices.Clone(c.members)
	slices.Sort(members)
	number := map[ir.ValueID]int{}
	fmt.Fprintf(&b, "%v %d|", f.template(c), len(c.frames))
	for _, id := range members {
		n := &f.g.Nodes[id]
		fmt.Fprintf(&b, "%d", n.Op)
		if n.Op == ir.OpCall {
			b.WriteString(f.g.CallName(id))
		}
		for i := range ir.ValueID(n.N) {
			number[n.First+i] = len(number)
			fmt.Fprintf(&b, " %s", f.g.Types[n.First+i].DType)
		}
		for _, a := range f.g.NodeArgs(id) {
			v := ir.ValueID(a.V)
			if a.Kind != ir.ArgValue {
				fmt.Fprintf(&b, " .%d", a.Kind)
				continue
			}
			if k, ok := number[f.g.Root(v)]; ok {
				fmt.Fprintf(&b, " %%%d", k)
			} else {
				fmt.Fprintf(&b, " %s%t", f.g.Types[v].DType, len(f.g.Types[v].Dims) == 0)
			}
		}
		b.WriteByte('|')
	}
	return b.String()
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
	computes := map[int][]ir.NodeID{}
	kernels := map[int][]*cluster{}
	for _, place := range f.prims.order {
		if place < 0 || !f.fusable[place] {
			continue
		}
		c := f.clusters[place]
		if c == nil {
			continue
		}
		at := f.whole.find(int(f.of[c.members[0]]))
		kernels[at] = append(kernels[at], c)
		for _, id := range c.members {
			if of := f.of[id]; !slices.Contains(computes[at], of) {
				computes[at] = append(computes[at], of)
			}
		}
	}
	members := map[int][]ir.NodeID{}
	for id := range g.Nodes {
		at := f.whole.find(id)
		members[at] = append(members[at], ir.NodeID(id))
	}
	var order []ir.NodeID
	var groups []ir.Group
	group := make([]uint32, len(g.Nodes))
	for _, at := range f.whole.order {
		if at < 0 {
			continue
		}
		v := int(at)
		order = append(order, members[v]...)
		if templates := f.launches(kernels[v]); len(computes[v]) > 1 && len(templates) <= len(computes[v]) {
			groups = append(groups, ir.Group{Kernels: templates})
			for _, id := range members[v] {
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
