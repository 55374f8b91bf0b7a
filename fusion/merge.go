// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// relation is how one cluster's frame lies in another's: by dim, -1 where nothing says.
type relation struct {
	from, to int8 // the frames
	along    []int8
	flat     bool
	view     ir.Type // if flat, what says how
	parts    bool
	requires []ir.Require
}

// sees says along which dim of its user's points each dim of an operand runs, -1 for those of size 1.
func (f *finder) sees(user ir.NodeID, operand ir.ValueID, index int) ([]int8, string) {
	g, points := f.g, f.points[user]
	seen := g.Types[operand].Dims
	shift := len(points.along) - len(seen)
	reads := f.reads[user]
	switch {
	case reads == catalogue.Gathered && index == 0 && shift != 0, shift < 0:
		return nil, "it is read at places that only the data tells"
	case reads == catalogue.PerRow && len(seen) == 1 && shift == 1:
		shift = 0 // one per row
	}
	frame := f.cluster(user).spaces[points.space]
	out := make([]int8, len(seen))
	for i, d := range seen {
		out[i] = -1
		if g.Same(d, ir.Const(1)) {
			continue
		}
		to := points.along[shift+i]
		switch {
		case to < 0 && reads == catalogue.Gathered && index == 0:
			continue // folded: see relate
		case to < 0:
			return nil, "its size is not that of its user"
		case !g.Same(d, frame[to]) && reads != catalogue.Concatenated:
			return nil, "its size is not that of its user"
		}
		out[i] = to
	}
	return out, ""
}

// relate says how the cluster that made root lies in that of a user, by an operand that is root or a view of it.
func (f *finder) relate(user ir.NodeID, operand, root ir.ValueID, index int) (relation, string) {
	g := f.g
	p := f.places[root]
	from := f.cluster(g.Def[root])
	r := relation{from: p.space, to: f.points[user].space, along: slices.Repeat([]int8{-1}, len(from.spaces[p.space]))}
	sees, why := f.sees(user, operand, index)
	if why != "" {
		return r, why
	}
	var w window
	if operand != root {
		if w = f.window(g.Def[operand]); !w.found {
			return r, "it reads a part of it, or in an order that is no index of it"
		}
		r.requires = w.requires
	}
	if w.flat {
		r.flat, r.view = true, g.Types[operand]
		all := func(along []int8, n int) bool {
			for _, a := range along {
				if a >= 0 {
					n--
				}
			}
			return n == 0
		}
		if !all(p.along, len(r.along)) || !all(sees, len(f.cluster(user).spaces[r.to])) {
			return r, "it is reshaped and broadcast"
		}
		return r, ""
	}
	r.parts = f.reads[user] == catalogue.Concatenated
	for i, to := range sees {
		own := int8(i)
		if operand != root {
			own = w.along[i]
		}
		if own < 0 || p.along[own] < 0 {
			continue
		}
		a := p.along[own]
		if to < 0 { // a gather reads it anywhere along this dim: it has to be at hand there
			if from.reduced == nil || !from.reduced[a] {
				return r, "it is read at places that only the data tells"
			}
			continue
		}
		r.along[a] = to
	}
	return r, ""
}

// relateAll is the one relation that all operands from one cluster to another have.
func (f *finder) relateAll(from, to int) (relation, string) {
	var r relation
	found := false
	why := ""
	for _, id := range f.clusters[to].members {
		index := -1
		f.g.EachArg(id, func(a ir.Arg) {
			index++
			if a.Kind != ir.ArgValue || why != "" {
				return
			}
			operand := ir.ValueID(a.V)
			root := f.g.Root(operand)
			def := f.g.Def[root]
			if !f.fusable[def] || f.prims.find(int(def)) != from {
				return
			}
			var one relation
			if one, why = f.relate(id, operand, root, index); why != "" {
				return
			}
			if !found {
				r, found = one, true
				return
			}
			why = r.join(f.g, one)
		})
	}
	if why == "" && !found {
		panic("BUG: nothing of the one cluster is an operand in the other")
	}
	return r, why
}

// join adds what another operand says.
func (r *relation) join(g *ir.Graph, o relation) string {
	const two = "it is read in two orders"
	if r.from != o.from || r.to != o.to || r.flat != o.flat || r.parts != o.parts {
		return two
	}
	if r.flat && !(g.SameDims(r.view.Dims, o.view.Dims) && g.SameDims(r.view.Strides, o.view.Strides)) {
		return two
	}
	for i, a := range o.along {
		if a >= 0 && r.along[i] >= 0 && a != r.along[i] {
			return two
		}
		if a >= 0 {
			r.along[i] = a
		}
	}
	r.requires = append(r.requires, o.requires...)
	return ""
}

// rest lists the dims of a frame that a relation says nothing of.
func (r *relation) free(n int) (from, to []int8) {
	used := make([]bool, n)
	for i, a := range r.along {
		if a < 0 {
			from = append(from, int8(i))
		} else {
			used[a] = true
		}
	}
	for i, u := range used {
		if !u {
			to = append(to, int8(i))
		}
	}
	return from, to
}

// merge is what becomes of two clusters that are made one.
type merge struct {
	flat     bool
	from, to int8   // the frames that are one afterwards
	along    []int8 // dim of the one's frame by dim of the other's
	into     bool   // into the second's frame, else into the first's
}

// fit says how cluster a, whose values b uses, becomes one loop nest with it, or why it can't.
func (f *finder) fit(a, b *cluster, r relation) (merge, string) {
	m := merge{flat: r.flat, from: r.from, to: r.to, into: true}
	if len(a.members)+len(b.members) > maxPrims {
		return m, "the kernel would be too long"
	}
	if (a.list || b.list) && (a.reduced != nil) != (b.reduced != nil) {
		return m, "the tensors of a list are computed together"
	}
	if r.flat {
		if a.reduced != nil || b.reduced != nil || a.parts || b.parts {
			return m, "a reshape lies between it and a fold"
		}
		return m, ""
	}
	spaceA, spaceB := a.spaces[r.from], b.spaces[r.to]
	freeA, freeB := r.free(len(spaceB))
	m.along = slices.Clone(r.along)
	for i, to := range r.along {
		switch {
		case to < 0 || r.parts || f.g.Same(spaceA[i], spaceB[to]):
		case !f.implied(r, spaceA[i], spaceB[to]):
			return m, "its size is not that of its user"
		}
	}
	if r.parts && (a.reduced != nil || b.reduced != nil || f.needed(a, b)) {
		return m, "it is a part of what its user puts together, and needed elsewhere"
	}
	switch {
	case len(freeA) == len(freeB): // one index space; a row's number and its elements, for one
		for i, d := range freeA {
			if !f.g.Same(spaceA[d], spaceB[freeB[i]]) {
				return m, "their loops have other sizes"
			}
			m.along[d] = freeB[i]
		}
		if a.reduced != nil && b.reduced != nil {
			for i, to := range m.along {
				if a.reduced[i] != b.reduced[to] {
					return m, "they fold other dims"
				}
			}
		}
		if (len(a.spaces) > 1 || len(b.spaces) > 1) && (a.reduced != nil || b.reduced != nil) {
			return m, "a reshape lies between it and a fold"
		}
	case len(freeB) == 0 && a.reduced != nil && only(a.reduced, freeA): // on with one number for each row
		if b.reduced != nil {
			return m, "it folds what a fold has made"
		}
		if len(b.spaces) > 1 {
			return m, "a reshape lies between it and a fold"
		}
		m.into = false
		m.along = make([]int8, len(spaceB))
		for i, to := range r.along {
			if to >= 0 {
				m.along[to] = int8(i)
			}
		}
	case len(freeA) == 0 && a.reduced == nil: // broadcast: once for each row, or again for each element
		if len(a.spaces) > 1 {
			return m, "it is reshaped and broadcast"
		}
		if b.reduced != nil && only(b.reduced, freeB) {
			break
		}
		switch {
		case a.draws:
			return m, "it would draw its random numbers again for each element"
		case f.work(a) > maxAgain:
			return m, "computing it again for each element costs more than reading it"
		case f.needed(a, b):
			return m, "it is smaller than its user's loop, and needed elsewhere"
		}
	case len(freeA) == 0 || a.reduced != nil && only(a.reduced, freeA):
		return m, "a fold's result is read by another loop"
	default:
		return m, "its user needs a part of its loop only"
	}
	if m.into && !r.parts && len(spaceA) == len(spaceB) && len(a.members) > len(b.members) &&
		!slices.Contains(m.along, -1) {
		m.invert() // the same, with less to move
	}
	return m, ""
}

// invert turns a mapping of all dims round.
func (m *merge) invert() {
	along := make([]int8, len(m.along))
	for i, to := range m.along {
		along[to] = int8(i)
	}
	m.along, m.into = along, false
}

// identity says whether the mapping changes no dim.
func (m *merge) identity() bool {
	for i, to := range m.along {
		if int(to) != i {
			return false
		}
	}
	return true
}

// implied says whether two sizes are equal by what a relation requires.
func (f *finder) implied(r relation, a, b ir.Dim) bool {
	for _, q := range r.requires {
		if len(q.Left) != 1 || len(q.Right) != 1 {
			continue
		}
		x, y := q.Left[0], q.Right[0]
		if f.g.Same(x, a) && f.g.Same(y, b) || f.g.Same(x, b) && f.g.Same(y, a) {
			return true
		}
	}
	return false
}

// only says whether the dims that are folded are these.
func only(folds []bool, dims []int8) bool {
	n := 0
	for _, is := range folds {
		if is {
			n++
		}
	}
	for _, d := range dims {
		if !folds[d] {
			return false
		}
	}
	return n == len(dims)
}

// needed says whether values of a are used anywhere but in a and b.
func (f *finder) needed(a, b *cluster) bool {
	ca, cb := f.prims.find(int(a.members[0])), f.prims.find(int(b.members[0]))
	var outside func(v ir.ValueID) bool
	outside = func(v ir.ValueID) bool {
		if f.output[v] {
			return true
		}
		for _, user := range f.users[v] {
			if n := &f.g.Nodes[user]; n.Op == ir.OpView {
				if outside(n.First) {
					return true
				}
				continue
			}
			if c := f.prims.find(int(user)); !f.fusable[user] || c != ca && c != cb {
				return true
			}
		}
		return false
	}
	for _, id := range a.members {
		n := &f.g.Nodes[id]
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			if outside(v) {
				return true
			}
		}
	}
	return false
}

// work counts the ops of a cluster; those that take a function's time count for several.
func (f *finder) work(c *cluster) int {
	n := 0
	for _, id := range c.members {
		switch f.g.Nodes[id].Op {
		case ir.OpExp, ir.OpLog, ir.OpSin, ir.OpCos, ir.OpTanh, ir.OpSigmoid, ir.OpErf, ir.OpPow, ir.OpExp2, ir.OpLog2, ir.OpLog1p,
			ir.OpExpm1, ir.OpAtan2, ir.OpFmod, ir.OpRemainder:
			n += 4
		default:
			n++
		}
	}
	return n
}

// unite makes two clusters one, as fit has said.
func (f *finder) unite(a, b int, m merge) {
	ca, cb := f.clusters[a], f.clusters[b]
	base, other := cb, ca
	if !m.into {
		base, other = ca, cb
	}
	frames := make([]int8, len(other.spaces)) // by frame of the other: which it is now
	at, one := m.from, m.to
	if !m.into {
		at, one = m.to, m.from
	}
	for i := range other.spaces {
		if int8(i) == at && !m.flat {
			frames[i] = one
			continue
		}
		frames[i] = int8(len(base.spaces))
		base.spaces = append(base.spaces, other.spaces[i])
	}
	identity := m.identity()
	move := func(p *place) {
		if p.space == at && !m.flat && !identity {
			along := make([]int8, len(p.along))
			for i, d := range p.along {
				along[i] = -1
				if d >= 0 {
					along[i] = m.along[d]
				}
			}
			p.along = along
		}
		p.space = frames[p.space]
	}
	for _, id := range other.members {
		n := &f.g.Nodes[id]
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			move(&f.places[v])
		}
		move(&f.points[id])
	}
	if other.reduced != nil {
		if base.reduced == nil {
			base.reduced = make([]bool, len(base.spaces[one]))
		}
		for i, is := range other.reduced {
			if is {
				base.reduced[m.along[i]] = true
			}
		}
	}
	base.members = append(base.members, other.members...)
	base.draws = base.draws || other.draws
	base.parts = base.parts || other.parts
	base.list = base.list || other.list
	f.prims.merge(a, b)
	f.clusters[f.prims.find(a)] = base
}
