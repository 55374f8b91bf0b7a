// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

// dag is a graph whose vertices can be made one as long as no cycle comes of it. It keeps a topological order all the
// time, so that a look for another way between two vertices stays between their places.
type dag struct {
	up    []int32   // a vertex that this one was made one with, itself if none
	next  [][]int32 // edges of a vertex and of those that were made one with it
	place []int32   // in order
	order []int32   // vertex by place, -1: nobody any more
	seen  []int32   // by vertex: the search that has met it
	stamp int32
}

// newDAG has vertices in a topological order, nil that of their numbers.
func newDAG(n int, order []int32) *dag {
	d := &dag{
		up: make([]int32, n), next: make([][]int32, n), place: make([]int32, n), order: make([]int32, n),
		seen: make([]int32, n),
	}
	const most = 4 // edges of a vertex, without memory of its own
	edges := make([]int32, most*n)
	for i := range d.up {
		d.next[i] = edges[most*i : most*i : most*(i+1)]
		v := int32(i)
		if order != nil {
			v = order[i]
		}
		d.up[i], d.place[v], d.order[i] = int32(i), int32(i), v
	}
	return d
}

func (d *dag) edge(from, to int) {
	if from != to {
		d.next[from] = append(d.next[from], int32(to))
	}
}

// find is the vertex that v has become.
func (d *dag) find(v int) int {
	for int(d.up[v]) != v {
		d.up[v] = d.up[d.up[v]]
		v = int(d.up[v])
	}
	return v
}

// members lists by vertex those that it stands for, in the order of their numbers.
func (d *dag) members() [][]int32 {
	count := make([]int32, len(d.up))
	for v := range d.up {
		count[d.find(v)]++
	}
	all := make([]int32, len(d.up))
	out := make([][]int32, len(d.up))
	for v, n := range count {
		out[v], all = all[:0:n], all[n:]
	}
	for v := range d.up {
		at := d.find(v)
		out[at] = append(out[at], int32(v))
	}
	return out
}

// far is how many places two vertices may be apart: what is to be searched for another way. Values that live so long
// are not the ones whose memory traffic counts, and merges stay linear in the size of the graph.
const far = 400

// farLists is that for the tensors of lists: what an operator does to one stands as far from what the next does to it
// as the lists are long.
const farLists = 2000

// check says what stands in the way of making a and b one, "" if nothing does. After it, the marks of seen are those
// vertices between them that come after the first.
func (d *dag) check(a, b int, far int32) string {
	a, b = d.find(a), d.find(b)
	if a == b {
		return ""
	}
	first, last := a, b
	if d.place[first] > d.place[last] {
		first, last = last, first
	}
	if d.place[last]-d.place[first] > far {
		return "they are too far apart"
	}
	d.stamp++
	end := d.place[last]
	stack := []int32{}
	push := func(from int, direct bool) bool {
		for _, w := range d.next[from] {
			v := d.find(int(w))
			if v == last && !direct {
				return false
			}
			if v == first || v == last || d.place[v] > end || d.seen[v] == d.stamp {
				continue
			}
			d.seen[v] = d.stamp
			stack = append(stack, int32(v))
		}
		return true
	}
	push(first, true)
	for len(stack) > 0 {
		v := stack[len(stack)-1]
		stack = stack[:len(stack)-1]
		if !push(int(v), false) {
			return "something between them has to run in between"
		}
	}
	return ""
}

// merge makes a and b one; check has just allowed it.
func (d *dag) merge(a, b int) {
	a, b = d.find(a), d.find(b)
	if a == b {
		return
	}
	first, last := a, b
	if d.place[first] > d.place[last] {
		first, last = last, first
	}
	// What comes after the first goes behind both, the rest before.
	from, to := d.place[first], d.place[last]
	var before, after []int32
	for p := from; p <= to; p++ {
		switch v := d.order[p]; {
		case v < 0 || int(v) == first || int(v) == last:
		case d.seen[v] == d.stamp:
			after = append(after, v)
		default:
			before = append(before, v)
		}
	}
	p := from
	put := func(v int32) {
		d.order[p] = v
		if v >= 0 {
			d.place[v] = p
		}
		p++
	}
	for _, v := range before {
		put(v)
	}
	put(int32(first))
	for _, v := range after {
		put(v)
	}
	for p <= to {
		put(-1)
	}
	d.up[last] = int32(first)
	d.next[first] = append(d.next[first], d.next[last]...)
	d.next[last] = nil
}
