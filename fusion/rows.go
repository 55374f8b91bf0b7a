// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"encoding/binary"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// An operator on lists (aten::_foreach_*) applies one operator to each tensor of a list. Consecutive operators on lists
// use the tensors of one index together: a parameter, its gradient and its state. The values of one index are a row.
// The same loops compute all rows that differ only in sizes and numbers; such rows are a class. So the graph contains
// only two rows of each class, and their loops stand for those of the others. One row would not be enough, because a
// list of one tensor is treated as a tensor.

// kept is how many rows of a class stay in a graph.
const kept = 2

// Class is the rows that are computed alike. Rows correspond value by value and size by size.
type Class struct {
	rows  []row
	index map[ir.ValueID]int // by value of the first rows: its position in its row
	first int32              // one more than the first item of the first row
}

// row is the values of a row, in the order in which its operators name them, and its sizes.
type row struct {
	values []ir.ValueID
	dims   []ir.Dim
}

// Rows is the number of rows of a class that a shortened graph leaves out.
func (c *Class) Rows() int { return len(c.rows) - kept }

// Value is what a value of a row in the shortened graph is in row i of those that are left out.
func (c *Class) Value(v ir.ValueID, i int) (ir.ValueID, bool) {
	at, ok := c.index[v]
	if !ok {
		return v, false
	}
	return c.rows[kept+i].values[at], true
}

// Dim is the same for a size of the first row.
func (c *Class) Dim(d ir.Dim, i int) (ir.Dim, bool) { return c.corresponding(d, kept+i) }

func (c *Class) corresponding(d ir.Dim, i int) (ir.Dim, bool) {
	if d >= 0 {
		return d, true
	}
	for at, own := range c.rows[0].dims {
		if own == d {
			return c.rows[i].dims[at], true
		}
	}
	return d, false
}

// table finds the rows of a graph's operators on lists, or of a range of its nodes.
type table struct {
	g       *ir.Graph
	first   ir.NodeID // of the range
	last    ir.NodeID
	outside func(v ir.ValueID) bool // whether a row may have this value, which no operator on lists makes
	leaves  func(v ir.ValueID) byte // how often a value of a row is needed behind the range, at most 255

	count []int   // by node of the range: its items, 0 if it is no operator on lists
	base  []int32 // by node of the range: the number of its first item
	up    []int32 // by item: an item of the same row, see find
	owner []int32 // by value: one more than an item that has it
	bad   []bool  // by item that stands for its row: the row has no like

	classes []*Class
	out     []bool   // by item: its row is left out
	of      []*Class // by item: the class of which it is in the first row
}

func (t *table) find(i int32) int32 {
	for t.up[i] != i {
		t.up[i] = t.up[t.up[i]]
		i = t.up[i]
	}
	return i
}

func (t *table) join(a, b int32) {
	a, b = t.find(a), t.find(b)
	if a > b {
		a, b = b, a
	}
	t.up[b] = a
	t.bad[a] = t.bad[a] || t.bad[b]
}

// build fills in the classes, of and out. It is false if no class has enough rows to leave some out.
func (t *table) build() bool {
	n := 0
	t.count, t.base = make([]int, t.last-t.first+1), make([]int32, t.last-t.first+1)
	for id := t.first; id <= t.last; id++ {
		t.base[id-t.first] = int32(n)
		t.count[id-t.first] = decomp.Items(t.g, id)
		n += t.count[id-t.first]
	}
	if n == 0 {
		return false
	}
	t.up, t.bad, t.out, t.of = make([]int32, n), make([]bool, n), make([]bool, n), make([]*Class, n)
	for i := range t.up {
		t.up[i] = int32(i)
	}
	t.owner = make([]int32, len(t.g.Types))
	for id := t.first; id <= t.last; id++ {
		t.own(id)
	}
	for id := t.first; id <= t.last; id++ {
		t.refuse(id)
	}
	t.classify()
	return len(t.classes) > 0
}

// own joins the items of an operator on lists with those that have the same values.
func (t *table) own(id ir.NodeID) {
	count, base := t.count[id-t.first], t.base[id-t.first]
	if count == 0 {
		return
	}
	n := &t.g.Nodes[id]
	for _, a := range t.g.NodeArgs(id) {
		for i, item := range t.items(a, count) {
			if item.Kind == ir.ArgValue && !t.g.Immediate(ir.ValueID(item.V)) {
				t.has(base+int32(i), ir.ValueID(item.V))
			}
		}
	}
	for i := range int32(n.N) {
		t.has(base+i%int32(count), n.First+ir.ValueID(i))
	}
}

func (t *table) has(item int32, v ir.ValueID) {
	if by := t.owner[v]; by != 0 {
		t.join(by-1, item)
		return
	}
	t.owner[v] = item + 1
	if id := t.g.Def[v]; (id < t.first || id > t.last || t.count[id-t.first] == 0) && !t.outside(v) {
		t.bad[t.find(item)] = true
	}
}

// items are the items of an argument if it has one for each tensor, else nil.
func (t *table) items(a ir.Arg, count int) []ir.Arg {
	if a.Kind != ir.ArgList {
		return nil
	}
	if list := t.g.List(a); len(list) == count {
		return list
	}
	return nil
}

// refuse marks the rows that have a value which a node uses otherwise than tensor by tensor.
func (t *table) refuse(id ir.NodeID) {
	count := t.count[id-t.first]
	refuse := func(a ir.Arg) {
		if a.Kind == ir.ArgValue && t.owner[a.V] != 0 {
			t.bad[t.find(t.owner[a.V]-1)] = true
		}
	}
	for _, a := range t.g.NodeArgs(id) {
		if a.Kind != ir.ArgList {
			refuse(a)
		} else if count == 0 || t.items(a, count) == nil {
			for _, item := range t.g.List(a) {
				refuse(item)
			}
		}
	}
}

// classify makes classes of the rows that have a like, and leaves out all but the first rows of each.
func (t *table) classify() {
	next, head, tail := make([]int32, len(t.up)), make([]int32, len(t.up)), make([]int32, len(t.up))
	node := make([]ir.NodeID, len(t.up)) // by item
	for id := t.first; id <= t.last; id++ {
		base := t.base[id-t.first]
		for i := range int32(t.count[id-t.first]) {
			item := base + i
			node[item] = id
			row := t.find(item)
			if head[row] == 0 {
				head[row] = item + 1
			} else {
				last := tail[row] - 1
				next[last] = item + 1
				t.bad[row] = t.bad[row] || node[last] == id // two tensors of one list
			}
			tail[row] = item + 1
		}
	}
	classes := map[string]*Class{}
	w := signer{t: t, number: make([]int32, len(t.g.Types))}
	for start := range int32(len(t.up)) {
		if t.up[start] != start || t.bad[start] {
			continue
		}
		w.begin()
		for at := head[start]; at != 0; at = next[at-1] {
			w.item(node[at-1], int(at-1-t.base[node[at-1]-t.first]))
		}
		c := classes[string(w.key)]
		if c == nil {
			c = &Class{first: head[start]}
			classes[string(w.key)] = c
			t.classes = append(t.classes, c)
		}
		if c.rows = append(c.rows, w.row()); len(c.rows) <= kept {
			continue
		}
		for at := head[start]; at != 0; at = next[at-1] {
			t.out[at-1] = true
		}
	}
	large := t.classes[:0]
	for _, c := range t.classes {
		if c.Rows() <= 0 {
			continue
		}
		large = append(large, c)
		for at := c.first; at != 0; at = next[at-1] {
			t.of[at-1] = c
		}
		c.index = make(map[ir.ValueID]int, kept*len(c.rows[0].values))
		for _, r := range c.rows[:kept] {
			for i, v := range r.values {
				c.index[v] = i
			}
		}
	}
	t.classes = large
}

// signer writes a key that two rows share if they are computed alike.
type signer struct {
	t      *table
	key    []byte
	number []int32 // by value: 1 + its position in the row; 0: it is in no row
	values []ir.ValueID
	dims   []ir.Dim

	roomValues slab[ir.ValueID]
	roomDims   slab[ir.Dim]
}

func (w *signer) begin() {
	for _, v := range w.values {
		w.number[v] = 0
	}
	w.key, w.values, w.dims = w.key[:0], w.values[:0], w.dims[:0]
}

// row is a copy of what the signer has of the row.
func (w *signer) row() row {
	r := row{w.roomValues.take(len(w.values)), w.roomDims.take(len(w.dims))}
	copy(r.values, w.values)
	copy(r.dims, w.dims)
	return r
}

// item appends tensor i of an operator on lists.
func (w *signer) item(id ir.NodeID, i int) {
	g, n := w.t.g, &w.t.g.Nodes[id]
	count := w.t.count[id-w.t.first]
	w.key = binary.AppendUvarint(w.key, uint64(id))
	for _, a := range g.NodeArgs(id) {
		if items := w.t.items(a, count); items != nil {
			w.arg(items[i])
		}
	}
	for v := n.First + ir.ValueID(i); v < n.First+ir.ValueID(n.N); v += ir.ValueID(count) {
		w.value(v)
	}
}

func (w *signer) arg(a ir.Arg) {
	w.key = append(w.key, byte(a.Kind))
	if a.Kind != ir.ArgValue {
		w.key = binary.AppendVarint(w.key, a.V)
		return
	}
	if a.Write {
		w.key = append(w.key, '!')
	}
	w.value(ir.ValueID(a.V))
}

func (w *signer) value(v ir.ValueID) {
	if at := w.number[v]; at != 0 {
		w.key = binary.AppendUvarint(w.key, uint64(at))
		return
	}
	w.values = append(w.values, v)
	w.number[v] = int32(len(w.values))
	g := w.t.g
	n := &g.Nodes[g.Def[v]]
	op := ir.OpInput // where another value comes from does not count
	if g.Immediate(v) {
		op = n.Op
	}
	w.key = append(w.key, 0, byte(op), byte(g.Types[v].DType))
	if op == ir.OpConst {
		w.key = binary.AppendVarint(append(w.key, byte(g.Args[n.ArgLo].Kind)), g.Args[n.ArgLo].V)
	}
	t := &g.Types[v]
	strided := byte(0)
	if t.Strides != nil {
		strided = 1
	}
	w.key = append(w.key, w.t.leaves(v), strided, byte(len(t.Dims)))
	for _, d := range t.Dims {
		w.dim(d)
	}
	for _, d := range t.Strides {
		w.dim(d)
	}
}

// dim appends a constant, or the position of a symbol in the row.
func (w *signer) dim(d ir.Dim) {
	if d = w.t.g.Find(d); d >= 0 {
		w.key = binary.AppendUvarint(append(w.key, 'c'), uint64(d))
		return
	}
	at := len(w.dims)
	for i, own := range w.dims {
		if own == d {
			at = i
		}
	}
	if at == len(w.dims) {
		w.dims = append(w.dims, d)
	}
	w.key = binary.AppendUvarint(append(w.key, 's'), uint64(at))
}
