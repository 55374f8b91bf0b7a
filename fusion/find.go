// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package fusion decides which nodes of a graph are computed by one loop, and how each value lies in that loop. Find
// chooses groups for the pass that writes them into the graph. Loops returns the loops of a graph's groups, which
// codegen lowers and binds to memory. The package never changes a graph it is given. It uses the sizes first seen only
// to guess which sizes are equal, and states each guess as a requirement.
package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// newFinder makes a cluster of each primitive of the expansion of g that a loop can hold.
func newFinder(e *decomp.Expansion, g *ir.Graph, o Options) *finder {
	p := e.Graph
	f := &finder{
		expansion: e, g: p, of: e.Of,
		obstacles: make([]obstacle, len(p.Nodes)), fusable: make([]bool, len(p.Nodes)), counts: make([]bool, len(p.Nodes)),
		prims: newDAG(len(p.Nodes), itemOrder(e)), whole: newDAG(len(g.Nodes), nil), segment: make([]int32, len(p.Nodes)),
		clusters: make([]*cluster, len(p.Nodes)), mappings: make([]mapping, len(p.Types)),
		points: make([]mapping, len(p.Nodes)), users: p.Users(), output: make([]bool, len(p.Types)),
		windows:  map[ir.NodeID]window{},
		reshaped: map[ir.ValueID]bool{},
		reads:    make([]catalogue.Point, len(p.Nodes)),
	}
	for _, o := range p.Outputs {
		f.output[o.Value] = true
	}
	segment := int32(0)
	for i := range p.Nodes {
		id := ir.NodeID(i)
		if p.Nodes[i].Flags&ir.FlagEffect != 0 {
			segment++
		}
		f.segment[i] = segment
		if p.Nodes[i].Op == ir.OpCall {
			f.reads[i] = p.Row(id).Point
		}
		f.obstacles[i] = obstacleTo(p, id, f.reads[i], o)
		f.fusable[i] = f.obstacles[i].loops()
	}
	for i := len(p.Nodes) - 1; i >= 0; i-- {
		if f.fusable[i] && f.onlyCounts(ir.NodeID(i)) {
			f.fusable[i] = false
			f.counts[i] = true
		}
	}
	for i, o := range f.obstacles {
		p.EachArg(ir.NodeID(i), func(a ir.Arg) {
			if a.Kind == ir.ArgValue && !f.counts[i] { // a count needs no elements
				f.prims.edge(int(p.Def[a.V]), i)
			}
		})
		// No loop of an operator runs before the check of its indices, so none can make them.
		for j := i + 1; o == checked && j < len(f.of) && f.of[j] == f.of[i]; j++ {
			f.prims.edge(i, j)
		}
	}
	constrain(f.whole, g)
	f.unused(g)
	f.reshapes(g)
	for i, is := range f.fusable {
		if is {
			f.single(ir.NodeID(i))
		}
	}
	return f
}

// unused leaves out primitives whose values no other primitive reads, because ir/decomp computes them again where they
// are taken from. Their nodes go with the nodes that use them.
func (f *finder) unused(given *ir.Graph) {
	users := given.Users()
next:
	for i := len(f.fusable) - 1; i >= 0; i-- {
		n := &f.g.Nodes[i]
		reads := func(user ir.NodeID) bool { return !f.counts[user] }
		of := f.of[i]
		if !f.fusable[i] || given.Nodes[of].Op != n.Op || ir.Info(n.Op).Kind != ir.KindElementwise || f.output[n.First] ||
			slices.ContainsFunc(f.users[n.First], reads) {
			continue
		}
		for v := range ir.ValueID(given.Nodes[of].N) {
			for _, user := range users[given.Nodes[of].First+v] {
				if f.whole.check(int(of), int(user), far) != "" {
					continue next // it is computed, and not read
				}
				f.whole.merge(int(of), int(user))
			}
		}
		f.fusable[i], f.obstacles[i] = false, idle
	}
}

// itemOrder is a topological order of an expansion. In it, consecutive operators on lists process one tensor completely
// before the next. Nodes that can merge then stand close together.
func itemOrder(e *decomp.Expansion) []int32 {
	g := e.Graph
	order := make([]int32, 0, len(g.Nodes))
	done := make([]bool, len(g.Nodes))
	var visit func(id, from ir.NodeID)
	visit = func(id, from ir.NodeID) {
		if done[id] || id < from {
			return
		}
		done[id] = true
		for _, v := range g.Operands(id) {
			visit(g.Def[v], from)
		}
		order = append(order, int32(id))
	}
	for i := 0; i < len(g.Nodes); {
		end, lists := i, 0
		for ; end < len(g.Nodes); end++ {
			if n := &g.Nodes[end]; e.List[e.Of[end]] {
				lists++
			} else if n.Flags != 0 || n.Op == ir.OpCall || n.Op.Own() && n.Op != ir.OpFill {
				break
			}
		}
		if lists == 0 {
			for end = max(end, i+1); i < end; i++ {
				order = append(order, int32(i))
				done[i] = true
			}
			continue
		}
		used := make([]bool, end-i) // within the run
		for id := i; id < end; id++ {
			for _, v := range g.Operands(ir.NodeID(id)) {
				if def := int(g.Def[v]); def >= i {
					used[def-i] = true
				}
			}
		}
		for id := i; id < end; id++ {
			if !used[id-i] {
				visit(ir.NodeID(id), ir.NodeID(i))
			}
		}
		i = end
	}
	return order
}

// constrain adds the edges of a graph to a dag: operands first, nodes with flags in order, and each reader of a content
// before the node that replaces it, so that the content can be replaced in place.
func constrain(d *dag, g *ir.Graph) {
	flagged := -1
	readers := make([][]int32, len(g.Types)) // by root
	for i := range g.Nodes {
		id := ir.NodeID(i)
		n := &g.Nodes[i]
		if n.Flags != 0 {
			if flagged >= 0 {
				d.edge(flagged, i)
			}
			flagged = i
		}
		replaced := g.Writes(id)
		if n.Op == ir.OpUpdate {
			replaced = append(replaced, ir.ValueID(g.Args[n.ArgLo].V))
		}
		for _, v := range replaced {
			for _, reader := range readers[g.Root(v)] {
				d.edge(int(reader), i)
			}
		}
		for _, v := range g.Operands(id) {
			d.edge(int(g.Def[v]), i)
			root := g.Root(v)
			readers[root] = append(readers[root], int32(i))
		}
	}
}

// run merges the cluster of each primitive with the clusters that make its operands, the last operand first. Pairs of
// reductions to one number come at the end: merges with the loops that they read, and with their readers, save more.
func (f *finder) run() {
	type pair struct {
		user    ir.NodeID
		operand ir.ValueID
	}
	var totals []pair
	for i := range f.g.Nodes {
		id := ir.NodeID(i)
		if !f.fusable[i] {
			continue
		}
		operands := f.g.Operands(id)
		slices.SortFunc(operands, func(a, b ir.ValueID) int { return int(b) - int(a) })
		for _, v := range slices.Compact(operands) {
			def := f.g.Def[f.g.Root(v)]
			if f.fusable[def] && f.cluster(def).total() && f.cluster(id).total() {
				totals = append(totals, pair{id, v})
			} else {
				f.try(id, v)
			}
		}
	}
	for _, p := range totals {
		f.try(p.user, p.operand)
	}
	f.siblings()
	f.reductions()
}

// try merges a primitive's cluster with that of an operand, or notes why not.
func (f *finder) try(user ir.NodeID, operand ir.ValueID) {
	g := f.g
	def := g.Def[g.Root(operand)]
	if !f.fusable[def] {
		return
	}
	a, b := f.prims.find(int(def)), f.prims.find(int(user))
	if a == b {
		return
	}
	refused := func(why string) bool {
		if why == "" || why == f.unguarded {
			return false
		}
		f.refused = append(f.refused, refusal{def, user, why})
		return true
	}
	if f.segment[def] != f.segment[user] && refused("an effect lies between them") {
		return
	}
	r, why := f.relateAll(a, b)
	if refused(why) {
		return
	}
	m, why := f.fit(f.clusters[a], f.clusters[b], r)
	if refused(why) {
		return
	}
	limit := int32(far)
	if f.clusters[a].list && f.clusters[b].list {
		limit = farLists
	}
	for _, view := range f.between(a, b) { // a view would else stand between the clusters
		if refused(f.absorb(def, view, limit)) {
			return
		}
	}
	if why = f.prims.check(a, b, limit); why == "" {
		why = f.whole.check(int(f.of[def]), int(f.of[user]), limit)
	}
	if refused(why) {
		return
	}
	for _, q := range r.requires {
		f.requires = append(f.requires, required{f.of[user], q})
		if len(q.Left) == 1 && len(q.Right) == 1 {
			f.g.UnifyDims(q.Left[0], q.Right[0])
		}
	}
	f.whole.merge(int(f.of[def]), int(f.of[user]))
	f.unite(a, b, m)
}

// absorb merges a view with the node that makes the viewed value.
func (f *finder) absorb(def, view ir.NodeID, limit int32) string {
	if why := f.prims.check(int(def), int(view), limit); why != "" {
		return why
	}
	if why := f.whole.check(int(f.of[def]), int(f.of[view]), limit); why != "" {
		return why
	}
	c := f.cluster(def)
	f.prims.merge(int(def), int(view))
	f.clusters[f.prims.find(int(def))] = c
	f.whole.merge(int(f.of[def]), int(f.of[view]))
	return ""
}

// between lists the views of a's values that b uses.
func (f *finder) between(a, b int) []ir.NodeID {
	var out []ir.NodeID
	for _, id := range f.clusters[b].members {
		for _, v := range f.g.Operands(id) {
			if root := f.g.Root(v); root != v && f.fusable[f.g.Def[root]] && f.prims.find(int(f.g.Def[root])) == a {
				out = append(out, f.g.Def[v])
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// siblings merges clusters that read the same values from elsewhere in the same order.
func (f *finder) siblings() {
	for v := range f.users {
		value := ir.ValueID(v)
		if len(f.g.Types[v].Dims) == 0 || len(f.users[v]) < 2 || len(f.users[v]) > maxSiblings {
			continue
		}
		first := ir.NodeID(0)
		found := false
		for _, user := range f.users[v] {
			if !f.fusable[user] {
				continue
			}
			if !found {
				first, found = user, true
			} else if f.prims.find(int(first)) != f.prims.find(int(user)) {
				f.pair(first, user, value)
			}
		}
	}
}

// reductions merges clusters that reduce the same dims of the same points and belong to one group, such as the sums
// over a loss and its weights. A cluster that reads what a loop of a group makes may join that group: the gradient of a
// bias joins that of a norm.
func (f *finder) reductions() {
	of := map[int][]int{} // by vertex of the whole graph
	for i, is := range f.fusable {
		if !is || f.prims.find(i) != i {
			continue
		}
		c := f.clusters[i]
		if c.list || c.reduced == nil || len(c.spaces) != 1 {
			continue
		}
		groups := []int{f.whole.find(int(f.of[i]))}
		for _, id := range c.members {
			for _, v := range f.g.Operands(id) {
				if def := f.g.Def[f.g.Root(v)]; f.fusable[def] {
					if group := f.whole.find(int(f.of[def])); !slices.Contains(groups, group) {
						groups = append(groups, group)
					}
				}
			}
		}
		joined := slices.ContainsFunc(groups, func(group int) bool {
			return slices.ContainsFunc(of[group], func(a int) bool { return f.joinReductions(a, i) })
		})
		if group := groups[0]; !joined && len(of[group]) < maxSiblings {
			of[group] = append(of[group], i)
		}
	}
}

// joinReductions merges two clusters that reduce the same dims of the same points, if no other node has to run between
// them.
func (f *finder) joinReductions(a, b int) bool {
	a, b = f.prims.find(a), f.prims.find(b)
	ca, cb := f.clusters[a], f.clusters[b]
	if f.segment[a] != f.segment[b] || len(ca.spaces[0]) != len(cb.spaces[0]) || f.uses(a, b) || f.uses(b, a) {
		return false
	}
	r := relation{along: f.corresponding(a, b)}
	for d, to := range r.along {
		if !f.g.Same(ca.spaces[0][d], cb.spaces[0][to]) || ca.reduced[d] != cb.reduced[to] {
			return false
		}
	}
	m, why := f.fit(ca, cb, r)
	if why != "" || f.prims.check(a, b, far) != "" || f.whole.check(int(f.of[a]), int(f.of[b]), far) != "" {
		return false
	}
	f.whole.merge(int(f.of[a]), int(f.of[b]))
	f.unite(a, b, m)
	return true
}

// corresponding maps the dims of the points of two reductions of one rank: by a loop whose values both read, perhaps in
// other dim orders, else in order.
func (f *finder) corresponding(a, b int) []int8 {
	rank := len(f.clusters[a].spaces[0])
	for _, id := range f.clusters[a].members {
		for _, v := range f.g.Operands(id) {
			def := f.g.Def[f.g.Root(v)]
			if !f.fusable[def] {
				continue
			}
			from := f.prims.find(int(def))
			if from == a || !f.uses(from, b) {
				continue
			}
			toA, whyA := f.relateAll(from, a)
			toB, whyB := f.relateAll(from, b)
			if whyA != "" || whyB != "" || toA.flat || toB.flat || toA.from != toB.from {
				continue
			}
			along := slices.Repeat([]int8{-1}, rank)
			for i, d := range toA.along {
				if d >= 0 {
					along[d] = toB.along[i]
				}
			}
			if !slices.Contains(along, -1) {
				return along
			}
		}
	}
	along := make([]int8, rank)
	for d := range along {
		along[d] = int8(d)
	}
	return along
}

// alike puts maps of one kind into one group: updates in place of many tensors, which a loop in the user's program has
// recorded one by one, and values that one node is the first to read, such as the scaled queries and keys of an
// attention. One kernel for all of them takes no additional memory: it writes in place, or what that node needs
// together.
func (f *finder) alike(g *ir.Graph) {
	in := map[int]int{} // clusters in a vertex of the whole graph
	for i, is := range f.fusable {
		if is && f.prims.find(i) == i {
			in[f.whole.find(int(f.of[i]))]++
		}
	}
	last := map[ofKind]ir.NodeID{}
	for i, is := range f.fusable {
		if !is || f.prims.find(i) != i {
			continue
		}
		c := f.clusters[i]
		of := f.of[c.members[0]]
		if c.reduced != nil || c.list || in[f.whole.find(int(of))] != 1 {
			continue
		}
		reader, ok := f.reader(g, c)
		if !ok {
			continue
		}
		kind := ofKind{f.kind(c), f.segment[i], reader}
		if before, ok := last[kind]; ok && f.whole.check(int(before), int(of), far) == "" {
			f.whole.merge(int(before), int(of))
		}
		last[kind] = of
	}
}

// ofKind identifies the clusters of a kind between two effects.
type ofKind struct {
	kind    string
	segment int32
	reader  ir.NodeID
}

// reader returns the first node that reads the values which a cluster makes for others, inPlace if all of them are new
// contents of operands. It is false if one of them is an output.
func (f *finder) reader(g *ir.Graph, c *cluster) (reader ir.NodeID, ok bool) {
	reader, ok = inPlace, true
	var read func(v ir.ValueID)
	read = func(v ir.ValueID) {
		ok = ok && !f.output[v]
		for _, user := range f.users[v] {
			if n := &f.g.Nodes[user]; n.Op == ir.OpView {
				read(n.First)
			} else if !f.fusable[user] || f.cluster(user) != c {
				reader = min(reader, f.of[user])
			}
		}
	}
	for _, id := range c.members {
		if n := f.of[id]; g.Nodes[n].Op == ir.OpCall && g.NumWrites(n) > 0 && g.NumFresh(n) == 0 {
			continue
		}
		n := &f.g.Nodes[id]
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			read(v)
		}
	}
	return reader, ok
}

// inPlace is the reader of a cluster that makes no values for others.
const inPlace = ^ir.NodeID(0)

// pair merges the clusters of two readers of a value if both run over all of it and over nothing else. If one makes an
// operand of the other, try has already noted why they stay apart: that operand may be read in another dim order than
// the value.
func (f *finder) pair(x, y ir.NodeID, v ir.ValueID) {
	a, b := f.prims.find(int(x)), f.prims.find(int(y))
	ca, cb := f.clusters[a], f.clusters[b]
	if f.segment[x] != f.segment[y] || len(ca.spaces)+len(cb.spaces) > 2 ||
		(ca.reduced == nil) != (cb.reduced == nil) || f.uses(a, b) || f.uses(b, a) {
		return
	}
	seesX, whyX := f.sees(x, v)
	seesY, whyY := f.sees(y, v)
	if whyX != "" || whyY != "" {
		return
	}
	r := relation{along: slices.Repeat([]int8{-1}, len(ca.spaces[0]))}
	for i, from := range seesX {
		if from >= 0 && seesY[i] >= 0 {
			r.along[from] = seesY[i]
		}
	}
	if freeA, freeB := r.free(len(cb.spaces[0])); len(freeA)+len(freeB) > 0 {
		return
	}
	m, why := f.fit(ca, cb, r)
	if why == "" && f.prims.check(a, b, far) == "" && f.whole.check(int(f.of[x]), int(f.of[y]), far) == "" {
		f.whole.merge(int(f.of[x]), int(f.of[y]))
		f.unite(a, b, m)
	}
}

// uses reports whether a member of cluster b has an operand that is a value of a, or a view of one.
func (f *finder) uses(a, b int) bool {
	for _, id := range f.clusters[b].members {
		for _, v := range f.g.Operands(id) {
			if def := f.g.Def[f.g.Root(v)]; f.fusable[def] && f.prims.find(int(def)) == a {
				return true
			}
		}
	}
	return false
}
