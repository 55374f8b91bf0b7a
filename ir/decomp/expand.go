// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package decomp expands composite operators of PyTorch into own ops, by the cases of the catalogue. The fuse pass
// decides which operators stay whole. The package never reads the value of a size.
package decomp

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// Expansion is a graph whose calls are written out in own ops, as far as the catalogue has cases for them.
type Expansion struct {
	Graph *ir.Graph
	Of    []ir.NodeID  // by node of Graph: the node of the given graph that it belongs to
	Item  []int32      // by node of Graph: the tensor of an operator on lists that it belongs to, 0 for other nodes
	Must  []ir.DType   // by node of Graph: the dtype that its numbers must fit, Invalid for any
	To    []ir.ValueID // by value of the given graph: the value of Graph, None for unused values
	Whole []string     // by node of the given graph: why a call stays a call, "" for all other nodes
	List  []bool       // by node of the given graph: it is an operator on lists that is written out, tensor by tensor
}

// None is no value.
const None = ^ir.ValueID(0)

// Expand writes out the calls of a verified graph, which does not change. The calls in keep stay whole, for the
// reason that keep gives.
func Expand(g *ir.Graph, keep map[ir.NodeID]string) *Expansion {
	w := &writer{g: g, keep: keep, e: &Expansion{
		Graph: g.Bare(), To: make([]ir.ValueID, len(g.Types)),
		Whole: make([]string, len(g.Nodes)), List: make([]bool, len(g.Nodes)),
	}}
	w.out = w.e.Graph
	w.out.Strings = slices.Clone(g.Strings) // with the indices that they have in g
	w.out.Grow(2*len(g.Nodes), 2*len(g.Types), 2*len(g.Args), 0)
	w.e.Of, w.e.Must = make([]ir.NodeID, 0, 2*len(g.Nodes)), make([]ir.DType, 0, 2*len(g.Nodes))
	w.e.Item = make([]int32, 0, 2*len(g.Nodes))
	for v := range w.e.To {
		w.e.To[v] = None
	}
	for id := range g.Nodes {
		w.node(ir.NodeID(id))
	}
	for _, o := range g.Outputs {
		w.out.Outputs = append(w.out.Outputs, ir.Output{Value: w.e.To[o.Value], Slot: o.Slot})
	}
	w.out.Canonicalize()
	return w.e
}

// writer writes one graph.
type writer struct {
	g    *ir.Graph
	keep map[ir.NodeID]string
	e    *Expansion
	out  *ir.Graph
	args []ir.Arg // see mapped
	// By root, one more than the operand that sharesMemory has found to be written; 0 elsewhere.
	wrote []ir.ValueID
	// The next fields are about the node that is being written.
	id     ir.NodeID
	at     int32    // the tensor of its lists
	result ir.DType // the dtype of its first defined result; Invalid: the node is copied
	names  []term   // by number of the rule's names
	meet   ir.DType // the dtype in which operands meet; Invalid: each operand keeps its dtype
	narrow bool     // operands of 16 bits are not converted to f32
}

// node writes a node out, or copies it.
func (w *writer) node(id ir.NodeID) {
	w.id, w.at = id, 0
	if w.g.Nodes[id].Op == ir.OpCall {
		why := w.attempt(func() string { return w.call(id) })
		if why == "" {
			return
		}
		w.e.Whole[id] = why
	}
	w.copy(id)
}

// attempt undoes the additions of write if write returns a reason for failure.
func (w *writer) attempt(write func() string) (why string) {
	before, of := *w.out, len(w.e.Of)
	if why = write(); why != "" {
		before.Strings = w.out.Strings // their index has the new strings too
		*w.out = before
		w.e.Of, w.e.Item, w.e.Must = w.e.Of[:of], w.e.Item[:of], w.e.Must[:of]
	}
	return why
}

func (w *writer) copy(id ir.NodeID) {
	n := w.g.Nodes[id]
	n.Group = 0
	w.result, w.at = ir.Invalid, 0
	args := w.mapped(w.g.NodeArgs(id))
	if ir.Info(n.Op).Kind == ir.KindReduce {
		args[0] = w.ownView(args[0])
	}
	if n.Op.Own() {
		w.nonzero(n.Op, args, w.g.Types[n.First].DType)
	}
	new := w.add(n, args, w.g.Types[n.First:n.First+ir.ValueID(n.N)])
	for i := range ir.ValueID(n.N) {
		w.e.To[n.First+i] = w.out.Nodes[new].First + i
	}
}

// ownView returns a view that only the node that is being written reads, if its operand is a view: fusion may let it
// read the viewed value instead.
func (w *writer) ownView(a ir.Arg) ir.Arg {
	n := w.out.Nodes[w.out.Def[a.V]]
	if n.Op != ir.OpView {
		return a
	}
	n.Group = 0
	id := w.add(n, []ir.Arg{w.out.Args[n.ArgLo]}, []ir.Type{w.out.Types[a.V]})
	return ir.Value(w.out.Nodes[id].First)
}

// mapped returns arguments of the given graph as arguments of the new one. They are valid until the next call.
func (w *writer) mapped(args []ir.Arg) []ir.Arg {
	w.args = w.args[:0]
	for _, a := range args {
		w.args = append(w.args, w.arg(a))
	}
	return w.args
}

func (w *writer) arg(a ir.Arg) ir.Arg {
	switch a.Kind {
	case ir.ArgValue:
		a.V = int64(w.e.To[a.V])
	case ir.ArgList:
		items := append([]ir.Arg(nil), w.g.List(a)...)
		for i := range items {
			items[i] = w.arg(items[i])
		}
		return w.out.AddList(a.Sub, items)
	}
	return a
}

// add adds a node to the new graph, for the node that is being written.
func (w *writer) add(n ir.Node, args []ir.Arg, results []ir.Type) ir.NodeID {
	old := &w.g.Nodes[w.id]
	n.Record, n.Origin = old.Record, old.Origin
	w.e.Of, w.e.Item, w.e.Must = append(w.e.Of, w.id), append(w.e.Item, w.at), append(w.e.Must, w.result)
	return w.out.Add(n, args, results)
}

// call writes a call out, or returns the reason why it stays whole.
func (w *writer) call(id ir.NodeID) string {
	g, n := w.g, &w.g.Nodes[id]
	name, args := g.CallName(id), g.NodeArgs(id)
	if why, ok := w.keep[id]; ok {
		return why
	}
	known := find(name)
	switch {
	case known.Whole != "":
		return known.Whole
	case known.Point == catalogue.Concatenated || known.Point == catalogue.Stacked:
		return w.concatenate(id)
	case known.Point != catalogue.NoPoint:
		return "it stays a call inside a kernel"
	case n.Flags&^ir.FlagRNG != 0 || n.Flags != 0 && known.rules == nil:
		return "it has effects, draws random numbers, or has data-dependent shapes"
	}
	if w.sharesMemory(id) {
		return "it may read memory after it has written it"
	}
	if items, ok := foreach(g, id); ok {
		if entangled(g, items) {
			return "it reads a tensor of its lists after it has written another in the same memory"
		}
		return w.items(id, items)
	}
	if f, ok := ir.FunctionalName(name); ok {
		name = f
	}
	results := make([]ir.ValueID, n.N)
	for i := range results {
		results[i] = n.First + ir.ValueID(i)
	}
	return w.operator([]string{name}, args, results)
}

// sharesMemory reports whether a call has two windows on one storage and writes one of them. Its values then depend
// on the order in which it visits the elements, unless the windows are disjoint; own ops would read all elements
// first. The same window twice is fine: the call reads each element before it writes it.
func (w *writer) sharesMemory(id ir.NodeID) bool {
	g := w.g
	if w.wrote == nil {
		w.wrote = make([]ir.ValueID, len(g.Types))
	}
	shares := false
	g.EachArg(id, func(a ir.Arg) {
		if a.Kind != ir.ArgValue || !a.Write {
			return
		}
		v := ir.ValueID(a.V)
		root := g.Root(v)
		shares = shares || w.wrote[root] != 0 || g.Repeats(g.Types[v])
		w.wrote[root] = v + 1
	})
	g.EachArg(id, func(a ir.Arg) {
		if a.Kind != ir.ArgValue || shares {
			return
		}
		v := ir.ValueID(a.V)
		written := w.wrote[g.Root(v)]
		shares = written != 0 && written != v+1 && !sameWindow(g, v, written-1)
	})
	g.EachArg(id, func(a ir.Arg) {
		if a.Kind == ir.ArgValue && a.Write {
			w.wrote[g.Root(ir.ValueID(a.V))] = 0
		}
	})
	return shares
}

// entangled reports whether an item reads a storage that another item writes. Own ops would read the old content.
func entangled(g *ir.Graph, items []item) bool {
	writer := map[ir.ValueID]int{} // by root, which item writes it
	for i, it := range items {
		for _, a := range it.args {
			if a.Write && a.Kind == ir.ArgValue {
				writer[g.Root(ir.ValueID(a.V))] = i
			}
		}
	}
	for i, it := range items {
		for _, a := range it.args {
			if a.Kind != ir.ArgValue {
				continue
			}
			if by, ok := writer[g.Root(ir.ValueID(a.V))]; ok && by != i {
				return true
			}
		}
	}
	return false
}

// sameWindow reports whether two values, at least one of them a view, have the same elements of a storage in the same
// order.
func sameWindow(g *ir.Graph, v, w ir.ValueID) bool {
	offset := func(v ir.ValueID) ir.Dim {
		if n := &g.Nodes[g.Def[v]]; n.Op == ir.OpView {
			return n.Offset
		}
		return ir.Const(0)
	}
	return g.SameType(g.Types[v], g.Types[w]) && g.Same(offset(v), offset(w))
}

// operator writes out the first of these operators that fits the arguments, and gives its results to these values.
func (w *writer) operator(names []string, args []ir.Arg, results []ir.ValueID) string {
	for i, a := range args {
		if a.Write {
			args = append([]ir.Arg(nil), args...)
			args[i].Write = false
		}
	}
	w.result = ir.Invalid
	for _, v := range results {
		if w.result = w.g.Types[v].DType; w.result.Valid() {
			break
		}
	}
	const nothing = "it has no decomposition"
	why := nothing
	for _, name := range names {
		if len(results) == 1 {
			if op, own, ok := ir.FromATen(w.out, name, w.mapped(args)); ok {
				if why = w.attempt(func() string {
					v, err := w.emit(op, own, w.g.Types[results[0]].DType)
					if err != "" {
						return err
					}
					return w.give([]term{{v: v, is: true}}, results)
				}); why == "" {
					return ""
				}
				continue
			}
		}
		rules := find(name).rules
		for _, r := range rules {
			if r.args > len(args) || !w.bind(r, args) {
				continue
			}
			if why = w.attempt(func() string {
				values, err := w.run(r)
				if err != "" {
					return err
				}
				return w.give(values, results)
			}); why == "" {
				return ""
			}
		}
		if len(rules) > 0 && why == nothing {
			why = "no case of its decomposition fits these arguments"
		}
	}
	return why
}

// items writes out an operator on lists, one tensor after the other.
func (w *writer) items(id ir.NodeID, items []item) string {
	for i, it := range items {
		w.at = int32(i)
		args := it.args
		if alpha := find(it.names[0]).Alpha; alpha > 0 && len(args) == alpha {
			args = append(args, ir.Arg{Kind: ir.ArgInt, V: 1})
		}
		if why := w.operator(it.names, args, it.results); why != "" {
			return why
		}
	}
	w.e.List[id] = len(items) > 1
	return ""
}

// give makes values the results of the node. They get the results' dtypes, sizes and layouts, and memory of their
// own.
func (w *writer) give(values []term, results []ir.ValueID) string {
	g := w.g
	for i, r := range results {
		want := g.Types[r]
		switch {
		case !want.DType.Valid():
			continue
		case i < len(values) && !values[i].is && slices.Contains(want.Dims, ir.Const(0)): // the case leaves it empty
			w.e.To[r] = w.out.Nodes[w.add(ir.Node{Op: ir.OpEmpty}, nil, []ir.Type{want})].First
			continue
		case i >= len(values) || !values[i].is:
			return "a result has no expression"
		}
		v := values[i].v
		if len(w.out.Types[v].Dims) != len(want.Dims) { // dims of 1 that the operator drops
			t, err := w.view(values[i], want.Dims)
			if err != "" {
				return err
			}
			v = t.v
		}
		for j, d := range want.Dims { // equal by the meaning of the operator
			if !w.out.UnifyDims(w.out.Types[v].Dims[j], d) {
				return "a result has other sizes"
			}
		}
		op := ir.Info(w.out.Nodes[w.out.Def[v]].Op)
		own := w.e.Of[w.out.Def[v]] == w.id && (op.Op.Own() || op.Op == ir.OpCall)
		for _, other := range values[:i] {
			own = own && other.v != v
		}
		var err string
		if w.out.Types[v].DType != want.DType {
			v, err = w.emit(ir.OpCast, []ir.Arg{ir.Value(v)}, want.DType)
		} else if !own {
			v, err = w.emit(ir.OpCopy, []ir.Arg{ir.Value(v)}, want.DType)
		}
		if err != "" {
			return err
		}
		w.out.Types[v].Strides = want.Strides
		w.e.To[r] = v
	}
	return ""
}
