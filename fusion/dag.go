// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

// dag is a graph whose vertices can be merged as long as that makes no cycle. It keeps a topological order all the
// time, so a search for a second path between two vertices stays between their positions.
type dag struct {
	up       []int32   // a vertex that this one was merged into, or itself
	next     [][]int32 // edges of a vertex and of those merged into it
	position []int32   // by vertex: its index in order
	order    []int32   // vertex by position, -1 for one that is empty
	seen     []int32   // by vertex: the last search that met it
	stamp    int32
}

// newDAG returns a graph of n vertices in a topological order. A nil order is that of their numbers.
func newDAG(n int, order []int32) *dag {
	d := &dag{
		up: make([]int32, n), next: make([][]int32, n), position: make([]int32, n), order: make([]int32, n),
		seen: make([]int32, n),
	}
	const most = 4 // edges of a vertex that need no allocation of their own
	edges := make([]int32, most*n)
	for i := range d.up {
		d.next[i] = edges[most*i : most*i : most*(i+1)]
		v := int32(i)
		if order != nil {
			v = order[i]
		}
		d.up[i], d.position[v], d.order[i] = int32(i), int32(i), v
	}
	return d
}

func (d *dag) edge(from, to int) {
	if from != to {
		d.next[from] = append(d.next[from], int32(to))
	}
}

// find returns the vertex that v has been merged into.
func (d *dag) find(v int) int {
	for int(d.up[v]) != v {
		d.up[v] = d.up[d.up[v]]
		v = int(d.up[v])
	}
	return v
}

// members lists by vertex the vertices merged into it, in the order of their numbers.
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

// far is how many positions two vertices may be apart, which bounds the search for a second path. Values that live
// longer do not count for memory traffic, and merging stays linear in the size of the graph.
const far = 400

// farLists is the same limit for tensors of lists: consecutive operators on one tensor are as far apart as their lists
// are long.
const farLists = 2000

// check returns why a and b cannot be merged, "" if they can. Afterwards seen marks the vertices between them that come
// after the first.
func (d *dag) check(a, b int, far int32) string {
	a, b = d.find(a), d.find(b)
	if a == b {
		return ""
	}
	first, last := a, b
	if d.position[first] > d.position[last] {
		first, last = last, first
	}
	if d.position[last]-d.position[first] > far {
		return "they are too far apart"
	}
	d.stamp++
	end := d.position[last]
	stack := []int32{}
	push := func(from int, direct bool) bool {
		for _, w := range d.next[from] {
			v := d.find(int(w))
			if v == last && !direct {
				return false
			}
			if v == first || v == last || d.position[v] > end || d.seen[v] == d.stamp {
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
			return "another node has to run between them"
		}
	}
	return ""
}

// merge merges a and b. check must just have allowed it.
func (d *dag) merge(a, b int) {
	a, b = d.find(a), d.find(b)
	if a == b {
		return
	}
	first, last := a, b
	if d.position[first] > d.position[last] {
		first, last = last, first
	}
	// Vertices that depend on the first go behind both, the others before.
	from, to := d.position[first], d.position[last]
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
			d.position[v] = p
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
