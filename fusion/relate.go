// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"cmp"
	"slices"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
	"github.com/mycelya/mycelya/kernel"
)

// relation maps the space of one cluster to that of another: for each dim of the first the dim of the second, or -1 if
// no operand relates it.
type relation struct {
	from, to int8 // the spaces
	along    []int8
	flat     bool // a reshape lies between them: the same points in the same order under other sizes
	// If flat: what is reshaped to, and the dim order that memory gives to either space.
	view               ir.Type
	orderFrom, orderTo []int8
	twoOrders          bool // operands differ in these orders
	requires           []ir.Require
}

// Reasons that several rules give.
const (
	otherSize = "its size differs from its user's"
	twoOrders = "it is read in two dim orders"
	reshaped  = "a reshape lies between it and a reduction"
)

// sees returns for each dim of an operand the dim of its user's points along which it runs, -1 for a dim of size 1.
func (f *finder) sees(user ir.NodeID, operand ir.ValueID) ([]int8, string) {
	g, points := f.g, f.points[user]
	seen := g.Types[operand].Dims
	shift := len(points.along) - len(seen)
	if shift < 0 {
		return nil, otherSize
	}
	space := f.cluster(user).spaces[points.space]
	out := make([]int8, len(seen))
	taken := f.taken(user, operand)
	for i, d := range seen {
		out[i] = -1
		if i == taken {
			out[i] = kernel.Taken
			continue
		}
		if g.Same(d, ir.Const(1)) {
			continue
		}
		to := points.along[shift+i]
		if to < 0 || !g.Same(d, space[to]) {
			return nil, otherSize
		}
		out[i] = to
	}
	return out, ""
}

// taken is the dim of an operand from which its user takes, -1 if it reads the operand at its points.
func (f *finder) taken(user ir.NodeID, operand ir.ValueID) int {
	if f.g.Nodes[user].Op == ir.OpCall && f.g.CallName(user) == decomp.Take {
		if args := f.g.NodeArgs(user); ir.ValueID(args[0].V) == operand {
			return int(args[2].V)
		}
	}
	return -1
}

// relate maps the cluster that makes root to the cluster of a user, by an operand that is root or a view of it.
func (f *finder) relate(user ir.NodeID, operand, root ir.ValueID) (relation, string) {
	g := f.g
	p := f.mappings[root]
	from, to := f.cluster(g.Def[root]), f.cluster(user)
	r := relation{from: p.space, to: f.points[user].space}
	r.along = slices.Repeat([]int8{-1}, len(from.spaces[r.from]))
	if f.taken(user, operand) >= 0 {
		return r, "it is read at computed positions"
	}
	sees, why := f.sees(user, operand)
	if why != "" {
		return r, why
	}
	var w window
	if operand != root {
		if w = f.window(g.Def[operand]); !w.found {
			return r, "it reads a part of it, or in an order that no index of it has"
		}
		r.requires = w.requires
	}
	if w.flat {
		if !runsAlongAll(p.along, len(r.along)) || !runsAlongAll(sees, len(to.spaces[r.to])) {
			return r, "it is reshaped and broadcast"
		}
		r.flat, r.view = true, g.Types[operand]
		r.orderFrom, r.orderTo = dimOrder(g, g.Types[root], p.along), dimOrder(g, r.view, sees)
		return r, ""
	}
	for i, to := range sees {
		own := int8(i)
		if operand != root {
			own = w.along[i]
		}
		if own < 0 || p.along[own] < 0 {
			continue
		}
		if to < 0 {
			return r, otherSize
		}
		r.along[p.along[own]] = to
	}
	return r, ""
}

// runsAlongAll reports whether a value runs along all n dims of its space.
func runsAlongAll(along []int8, n int) bool {
	for _, a := range along {
		if a >= 0 {
			n--
		}
	}
	return n == 0
}

// dimOrder returns by dim of its space the rank of the dim in memory: 0 for the dim whose elements lie farthest apart.
// The value runs along all dims of the space.
func dimOrder(g *ir.Graph, t ir.Type, along []int8) []int8 {
	dims := make([]int, 0, len(along))
	for i, d := range along {
		if d >= 0 {
			dims = append(dims, i)
		}
	}
	if t.Strides != nil {
		slices.SortStableFunc(dims, func(a, b int) int {
			return cmp.Compare(g.First(t.Strides[b]), g.First(t.Strides[a]))
		})
	}
	order := make([]int8, len(dims))
	for at, i := range dims {
		order[along[i]] = int8(at)
	}
	return order
}

// relateAll returns the one relation that all operands from one cluster to another have.
func (f *finder) relateAll(from, to int) (relation, string) {
	var r relation
	found := false
	why := ""
	for _, id := range f.clusters[to].members {
		f.g.EachArg(id, func(a ir.Arg) {
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
			if one, why = f.relate(id, operand, root); why != "" {
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
		panic("BUG: no value of the one cluster is an operand in the other")
	}
	return r, why
}

// join adds the relation of another operand.
func (r *relation) join(g *ir.Graph, o relation) string {
	if r.from != o.from || r.to != o.to || r.flat != o.flat {
		return twoOrders
	}
	if r.flat && !(g.SameDims(r.view.Dims, o.view.Dims) && g.SameDims(r.view.Strides, o.view.Strides)) {
		return twoOrders
	}
	r.twoOrders = r.twoOrders || !slices.Equal(r.orderFrom, o.orderFrom) || !slices.Equal(r.orderTo, o.orderTo)
	for i, a := range o.along {
		if a >= 0 && r.along[i] >= 0 && a != r.along[i] {
			return twoOrders
		}
		if a >= 0 {
			r.along[i] = a
		}
	}
	r.requires = append(r.requires, o.requires...)
	return ""
}

// free lists the dims of either space that the relation does not map. n is the rank of the second.
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
