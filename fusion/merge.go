// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
)

// merge is how two clusters become one.
type merge struct {
	flat     bool   // each keeps its spaces
	from, to int8   // the spaces that become one, or that a reshape relates
	along    []int8 // by dim of the space that is given up: the dim of the space that stays
	into     bool   // the second's space stays, else the first's

	orderFrom, orderTo []int8 // of a reshape
	twoOrders          bool   // see cluster
}

// fit returns the merge of cluster a with cluster b, which uses values of a, or the reason why they do not merge.
func (f *finder) fit(a, b *cluster, r relation) (m merge, why string) {
	m = merge{flat: r.flat, from: r.from, to: r.to, into: true, orderFrom: r.orderFrom, orderTo: r.orderTo}
	spaces := len(a.spaces) + len(b.spaces)
	if !r.flat {
		spaces--
	}
	switch {
	case len(a.members)+len(b.members) > maxPrims:
		return m, "the kernel would be too long"
	case spaces > 1 && (a.positions || b.positions):
		return m, "it needs positions in one index space"
	case spaces > kernel.MaxSpaces:
		return m, fmt.Sprintf("a kernel has at most %d index spaces", kernel.MaxSpaces)
	case (a.list || b.list) && (a.reduced != nil) != (b.reduced != nil):
		return m, "the tensors of a list are computed together"
	case r.flat:
		return m, fitReshaped(a, b, r, &m)
	}
	spaceA, spaceB := a.spaces[r.from], b.spaces[r.to]
	freeA, freeB := r.free(len(spaceB))
	m.along = slices.Clone(r.along)
	for i, to := range r.along {
		if to >= 0 && !f.g.Same(spaceA[i], spaceB[to]) && !f.implied(r, spaceA[i], spaceB[to]) {
			return m, otherSize
		}
	}
	switch {
	case len(freeA) == len(freeB): // the same points
		why = f.fitSame(a, b, r, &m, freeA, freeB)
	case len(freeB) == 0 && a.reduced != nil && only(a.reduced, freeA): // b computes one number for each row of a
		why = fitRows(a, b, r, &m)
	case len(freeA) == 0 && a.reduced == nil: // a broadcasts to b
		why = f.fitBroadcast(a, b, freeB)
	case len(freeA) == 0 || a.reduced != nil && only(a.reduced, freeA):
		why = "another loop reads the result of a reduction"
	default:
		why = "its user needs only a part of its loop"
	}
	if why == "" && m.into && len(spaceA) == len(spaceB) && len(a.members) > len(b.members) &&
		!slices.Contains(m.along, -1) {
		m.invert() // the same merge, with fewer mappings to change
	}
	return m, why
}

// fitReshaped is for clusters with a reshape between them.
func fitReshaped(a, b *cluster, r relation, m *merge) string {
	if a.reduced != nil || b.reduced != nil {
		return reshaped
	}
	differ := func(have, want []int8) bool { return have != nil && !slices.Equal(have, want) }
	m.twoOrders = r.twoOrders || differ(a.order(r.from), r.orderFrom) || differ(b.order(r.to), r.orderTo)
	return ""
}

// fitSame is for clusters with the same points. Dims that no operand relates are related in order, for example those of
// one number per row and of the row's elements.
func (f *finder) fitSame(a, b *cluster, r relation, m *merge, freeA, freeB []int8) string {
	spaceA, spaceB := a.spaces[r.from], b.spaces[r.to]
	for i, d := range freeA {
		if !f.g.Same(spaceA[d], spaceB[freeB[i]]) {
			return "their loops have different sizes"
		}
		m.along[d] = freeB[i]
	}
	if a.reduced != nil && b.reduced != nil {
		for i, to := range m.along {
			if a.reduced[i] != b.reduced[to] {
				return "they reduce different dims"
			}
		}
	}
	if (len(a.spaces) > 1 || len(b.spaces) > 1) && (a.reduced != nil || b.reduced != nil) {
		return reshaped
	}
	orderA, orderB := a.order(r.from), b.order(r.to)
	m.twoOrders = orderA != nil && orderB != nil && !slices.Equal(mapped(orderA, m.along), orderB)
	return ""
}

// fitRows is for a cluster b that computes one number for each row that a reduces.
func fitRows(a, b *cluster, r relation, m *merge) string {
	switch {
	case b.reduced != nil:
		return "it reduces the result of a reduction"
	case len(b.spaces) > 1:
		return reshaped
	}
	m.into = false
	m.along = make([]int8, len(b.spaces[r.to]))
	for i, to := range r.along {
		if to >= 0 {
			m.along[to] = int8(i)
		}
	}
	return ""
}

// fitBroadcast is for a cluster a whose values broadcast along dims of b: they are computed once for each row that b
// reduces, or again for each element.
func (f *finder) fitBroadcast(a, b *cluster, freeB []int8) string {
	switch {
	case len(a.spaces) > 1:
		return "it is reshaped and broadcast"
	case b.reduced != nil && only(b.reduced, freeB):
		return ""
	case a.draws:
		return "its random numbers would be drawn again for each element"
	case f.work(a) > maxAgain:
		return "computing it again for each element costs more than reading it"
	case f.needed(a, b):
		return "it is smaller than its user's loop, and needed elsewhere"
	}
	return ""
}

// invert maps the other way. The mapping has all dims.
func (m *merge) invert() {
	along := make([]int8, len(m.along))
	for i, to := range m.along {
		along[to] = int8(i)
	}
	m.along, m.into = along, false
}

// identity reports whether the mapping changes no dim.
func (m *merge) identity() bool {
	for i, to := range m.along {
		if int(to) != i {
			return false
		}
	}
	return true
}

// implied reports whether two sizes are equal by what a relation requires.
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

// only reports whether a cluster reduces exactly these dims.
func only(reduced []bool, dims []int8) bool {
	n := 0
	for _, is := range reduced {
		if is {
			n++
		}
	}
	for _, d := range dims {
		if !reduced[d] {
			return false
		}
	}
	return n == len(dims)
}

// needed reports whether another node than those of a and b uses a value of a.
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

// work is the cost of a cluster's ops for one element.
func (f *finder) work(c *cluster) int {
	n := 0
	for _, id := range c.members {
		if k := ir.Info(f.g.Nodes[id].Op).Kernel; k != nil && k.Cost == catalogue.CostFunction {
			n += 4
		} else {
			n++
		}
	}
	return n
}

// unite makes two clusters one, as fit has found.
func (f *finder) unite(a, b int, m merge) {
	ca, cb := f.clusters[a], f.clusters[b]
	if m.flat {
		ca.setOrder(m.from, m.orderFrom)
		cb.setOrder(m.to, m.orderTo)
	}
	base, other, at, one := cb, ca, m.from, m.to // space at of the other becomes space one of base
	if !m.into {
		base, other, at, one = ca, cb, m.to, m.from
	}
	spaces := base.take(other, at, one, m)
	identity := m.identity()
	move := func(p *mapping) {
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
		p.space = spaces[p.space]
	}
	for _, id := range other.members {
		n := &f.g.Nodes[id]
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			move(&f.mappings[v])
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
	base.positions = base.positions || other.positions
	base.list = base.list || other.list
	base.twoOrders = base.twoOrders || other.twoOrders || m.twoOrders
	f.prims.merge(a, b)
	f.clusters[f.prims.find(a)] = base
}

// take adds the spaces of another cluster, and returns their new numbers. Unless a reshape lies between them, space at
// of the other is space one.
func (c *cluster) take(other *cluster, at, one int8, m merge) []int8 {
	numbers := make([]int8, len(other.spaces))
	for i := range other.spaces {
		order := other.order(int8(i))
		if int8(i) == at && !m.flat {
			numbers[i] = one
			if order != nil && c.order(one) == nil {
				c.setOrder(one, mapped(order, m.along))
			}
			continue
		}
		numbers[i] = int8(len(c.spaces))
		c.spaces = append(c.spaces, other.spaces[i])
		if order != nil {
			c.setOrder(numbers[i], order)
		}
	}
	return numbers
}

// order is the dim order of a space, nil if nothing has set it.
func (c *cluster) order(space int8) []int8 {
	return c.orders[space]
}

func (c *cluster) setOrder(space int8, order []int8) {
	if c.orders == nil {
		c.orders = map[int8][]int8{}
	}
	c.orders[space] = order
}

// mapped is a dim order under a mapping of all dims.
func mapped(order, along []int8) []int8 {
	out := make([]int8, len(order))
	for d, at := range order {
		out[along[d]] = at
	}
	return out
}
