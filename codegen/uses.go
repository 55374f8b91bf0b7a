// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"slices"
	"sort"

	"github.com/mycelya/mycelya/ir"
)

// uses has the readers of each root. A root is a value with content of its own. Views are windows on their root, and a
// use of a view is a use of its root.
type uses struct {
	g     *ir.Graph
	root  []ir.ValueID               // by value
	at    [][]ir.NodeID              // by root: the nodes that read it, ascending; len(Nodes) is the end of the program
	final map[written][]ir.ValueID   // see absorb
	noop  []bool                     // by node: an update that absorb made part of a call
	kept  map[ir.NodeID][]ir.ValueID // by node that may fail: the roots that are kept until it has run
}

// written is a root that a call writes.
type written struct {
	call ir.NodeID
	root ir.ValueID
}

func findUses(g *ir.Graph) *uses {
	u := &uses{g: g, root: make([]ir.ValueID, len(g.Types)), at: make([][]ir.NodeID, len(g.Types)),
		final: map[written][]ir.ValueID{}, noop: make([]bool, len(g.Nodes)), kept: map[ir.NodeID][]ir.ValueID{}}
	for v := range u.root {
		u.root[v] = ir.ValueID(v)
	}
	updates := map[ir.ValueID][]ir.NodeID{} // by base
	reads := make([]int, len(g.Types))      // of the value itself, by any node or output
	for id := range g.Nodes {
		n := &g.Nodes[id]
		g.Uses(ir.NodeID(id), func(v ir.ValueID, _ bool) { reads[v]++ })
		switch n.Op {
		case ir.OpView:
			u.root[n.First] = u.root[g.Args[n.ArgLo].V]
		case ir.OpUpdate:
			base := ir.ValueID(g.Args[n.ArgLo].V)
			updates[base] = append(updates[base], ir.NodeID(id))
		}
	}
	for _, o := range g.Outputs {
		reads[o.Value]++
	}
	for id := range g.Nodes {
		if g.Nodes[id].Op == ir.OpCall {
			u.absorb(ir.NodeID(id), updates, reads)
		}
	}
	u.room()
	for id := range g.Nodes {
		if g.Nodes[id].Op != ir.OpView && !u.noop[id] {
			g.Uses(ir.NodeID(id), func(v ir.ValueID, _ bool) { u.add(v, ir.NodeID(id)) })
		}
	}
	for _, k := range g.Kept() {
		u.keep(k)
	}
	for _, o := range g.Outputs {
		u.add(o.Value, ir.NodeID(len(g.Nodes)))
	}
	return u
}

// keep makes the last node that may fail while a storage has a content a reader of that content.
func (u *uses) keep(k ir.Kept) {
	if r := u.root[k.Value]; k.Until > u.g.Def[r] {
		i, found := slices.BinarySearch(u.at[r], k.Until)
		if !found {
			u.at[r] = slices.Insert(u.at[r], i, k.Until)
			u.kept[k.Until] = append(u.kept[k.Until], r)
		}
	}
}

// room makes room for the readers of each root.
func (u *uses) room() {
	g := u.g
	counts, total := make([]int32, len(g.Types)), 0
	count := func(v ir.ValueID) {
		counts[u.root[v]]++
		total++
	}
	for id := range g.Nodes {
		if g.Nodes[id].Op != ir.OpView && !u.noop[id] {
			g.Uses(ir.NodeID(id), func(v ir.ValueID, _ bool) { count(v) })
		}
	}
	for _, o := range g.Outputs {
		count(o.Value)
	}
	all := make([]ir.NodeID, total)
	for v, n := range counts {
		u.at[v], all = all[:0:n], all[n:]
	}
}

func (u *uses) add(v ir.ValueID, at ir.NodeID) {
	r := u.root[v]
	u.at[r] = append(u.at[r], at)
}

// after reports whether a node past this one reads a root.
func (u *uses) after(root ir.ValueID, node ir.NodeID) bool {
	l := u.at[root]
	return len(l) > 0 && l[len(l)-1] > node
}

// reads reports whether a node reads a root.
func (u *uses) reads(root ir.ValueID, node ir.NodeID) bool {
	l := u.at[root]
	i := sort.Search(len(l), func(i int) bool { return l[i] >= node })
	return i < len(l) && l[i] == node
}

// patch is a written operand that is a window on its root, and the result that holds its new content.
type patch struct {
	after  ir.ValueID
	typ    ir.Type
	offset ir.Dim
}

// absorb finds the updates that only state what a call has done. A call that writes windows on root v leaves in v's
// buffer the content of v with all these windows replaced. That is the value at the end of a chain of updates that
// begins with v and uses each window's new content once. Such a chain emits nothing and does not keep the old v alive.
// It must be complete, and no other node may read a value from its middle, because no buffer ever has that content.
func (u *uses) absorb(call ir.NodeID, updates map[ir.ValueID][]ir.NodeID, reads []int) {
	g := u.g
	if !slices.ContainsFunc(g.Writes(call), func(v ir.ValueID) bool { return u.root[v] != v }) {
		return // no window is written
	}
	patches := map[ir.ValueID][]patch{}
	var roots []ir.ValueID
	whole := map[ir.ValueID]bool{}
	after := g.Nodes[call].First + ir.ValueID(g.NumFresh(call))
	g.Uses(call, func(v ir.ValueID, write bool) {
		if !write {
			return
		}
		r := u.root[v]
		if v == r {
			whole[r] = true
		} else {
			if patches[r] == nil {
				roots = append(roots, r)
			}
			patches[r] = append(patches[r], patch{after, g.Types[v], g.Nodes[g.Def[v]].Offset})
		}
		after++
	})
	for _, r := range roots {
		if whole[r] {
			continue // the updates follow the whole result, which is in the buffer: see planner.update
		}
		if chain := u.chain(r, patches[r], updates, reads); chain != nil {
			for _, id := range chain {
				u.noop[id] = true
			}
			end := g.Nodes[chain[len(chain)-1]].First
			u.final[written{call, r}] = append(u.final[written{call, r}], end)
		}
	}
}

func (u *uses) chain(root ir.ValueID, left []patch, updates map[ir.ValueID][]ir.NodeID, reads []int) []ir.NodeID {
	g := u.g
	var chain []ir.NodeID
	for cur := root; ; {
		found := false
		for _, id := range updates[cur] {
			i := u.match(id, root, left)
			if i < 0 || u.noop[id] {
				continue
			}
			rest := append([]patch(nil), left[:i]...)
			left = append(rest, left[i+1:]...)
			chain = append(chain, id)
			cur, found = g.Nodes[id].First, true
			break
		}
		switch {
		case !found:
			return nil
		case len(left) == 0:
			return chain
		case reads[cur] != 1:
			return nil
		}
	}
}

// match returns the index of the patch that an update applies to root, or to a value that replaces root.
func (u *uses) match(update ir.NodeID, root ir.ValueID, left []patch) int {
	g := u.g
	n := &g.Nodes[update]
	if !g.SameType(g.Types[n.First], g.Types[root]) {
		return -1
	}
	with := ir.ValueID(g.Args[n.ArgLo+1].V)
	for i, p := range left {
		if p.after == with && g.Same(p.offset, n.Offset) && g.SameType(p.typ, g.Types[with]) {
			return i
		}
	}
	return -1
}
