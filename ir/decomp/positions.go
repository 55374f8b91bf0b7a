// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// iota gives the position of each element of a tensor of these sizes along a dim.
func (w *writer) iota(dims []ir.Dim, d int) term {
	id := w.add(ir.Node{Op: ir.OpCall, Name: w.out.Intern(Iota)}, []ir.Arg{w.ints(dims), {Kind: ir.ArgInt, V: int64(d)}},
		[]ir.Type{{DType: ir.I64, Dims: dims}})
	return term{v: w.out.Nodes[id].First, is: true}
}

// maxTaken is the number of elementwise ops that are computed at the positions of a take, rather than stored and taken.
const maxTaken = 4

// take gives the elements of x at positions along a dim. What simple ops make of tensors of x's sizes is computed
// there: take (neg y) i d is neg (take y i d).
func (w *writer) take(x, index term, d int) (term, string) {
	left := maxTaken
	if w.simple(x.v, &left) {
		return w.takeThrough(x.v, index, d)
	}
	return w.takeFrom(x, index, d)
}

// simple reports whether at most so many simple ops, on numbers and on tensors of one size, make a value.
func (w *writer) simple(v ir.ValueID, left *int) bool {
	n := &w.out.Nodes[w.out.Def[v]]
	info := ir.Info(n.Op)
	if info.Kind != ir.KindElementwise || info.Kernel == nil || info.Kernel.Cost != catalogue.CostSimple || *left == 0 {
		return false
	}
	*left--
	for _, a := range w.out.Args[n.ArgLo:n.ArgHi] {
		if a.Kind != ir.ArgValue || w.out.Immediate(ir.ValueID(a.V)) {
			continue
		}
		of := ir.ValueID(a.V)
		if !w.out.SameDims(w.out.Types[of].Dims, w.out.Types[v].Dims) {
			return false
		}
		if def := w.out.Nodes[w.out.Def[of]].Op; ir.Info(def).Kind == ir.KindElementwise && !w.simple(of, left) {
			return false
		}
	}
	return true
}

// takeThrough computes what simple ops make at the positions of a take.
func (w *writer) takeThrough(v ir.ValueID, index term, d int) (term, string) {
	n := w.out.Nodes[w.out.Def[v]]
	if ir.Info(n.Op).Kind != ir.KindElementwise {
		return w.takeFrom(term{v: v, is: true}, index, d)
	}
	args := slices.Clone(w.out.Args[n.ArgLo:n.ArgHi])
	for i, a := range args {
		if a.Kind == ir.ArgValue && !w.out.Immediate(ir.ValueID(a.V)) {
			t, err := w.takeThrough(ir.ValueID(a.V), index, d)
			if err != "" {
				return term{}, err
			}
			args[i].V = int64(t.v)
		}
	}
	made, err := w.emit(n.Op, args, w.out.Types[v].DType)
	return term{v: made, is: true}, err
}

func (w *writer) takeFrom(x, index term, d int) (term, string) {
	one := slices.Clone(w.out.Types[x.v].Dims)
	one[d] = ir.Const(1)
	at := w.out.Types[index.v].Dims
	dims := make([]ir.Dim, max(len(one), len(at)))
	for i := range dims {
		dims[i] = ir.Const(1)
		for _, from := range [][]ir.Dim{one, at} {
			j := i - len(dims) + len(from)
			switch {
			case j < 0 || w.out.Same(from[j], ir.Const(1)):
			case w.out.Same(dims[i], ir.Const(1)):
				dims[i] = from[j]
			case !w.out.UnifyDims(dims[i], from[j]):
				return term{}, "its positions have other sizes"
			}
		}
	}
	id := w.add(ir.Node{Op: ir.OpCall, Name: w.out.Intern(Take)},
		[]ir.Arg{ir.Value(x.v), ir.Value(index.v), {Kind: ir.ArgInt, V: int64(d)}},
		[]ir.Type{{DType: w.out.Types[x.v].DType, Dims: dims}})
	return term{v: w.out.Nodes[id].First, is: true}, ""
}

// maxParts is the number of tensors that a kernel concatenates. It looks into each of them for each element.
const maxParts = 4

// concatenate writes out a concatenation: an element is taken from the tensor in which its position lies. Of a stack,
// each tensor has one position.
func (w *writer) concatenate(id ir.NodeID) string {
	g, n := w.g, &w.g.Nodes[id]
	args := g.NodeArgs(id)
	t := g.Types[n.First]
	list := g.List(args[0])
	d := int(args[1].V)
	if d < 0 {
		d += len(t.Dims)
	}
	if args[1].Kind != ir.ArgInt || d < 0 || d >= len(t.Dims) {
		return "its dim is not a literal in range"
	}
	if len(list) > maxParts {
		return fmt.Sprintf("it concatenates more than %d tensors", maxParts)
	}
	w.result = t.DType
	position := w.iota(t.Dims, d)
	var values, inside []term
	for i, a := range list {
		part, size, err := w.part(w.e.To[a.V], t, position, d)
		if err != "" {
			return err
		}
		if values = append(values, part); i+1 == len(list) {
			break
		}
		here, err := w.emit(ir.OpLt, []ir.Arg{ir.Value(position.v), ir.Value(size.v)}, ir.Bool)
		if err != "" {
			return err
		}
		inside = append(inside, term{v: here, is: true})
		if position.v, err = w.emit(ir.OpSub, []ir.Arg{ir.Value(position.v), ir.Value(size.v)}, ir.I64); err != "" {
			return err
		}
	}
	out := values[len(values)-1]
	for i := len(values) - 2; i >= 0; i-- {
		v, err := w.emit(ir.OpWhere, []ir.Arg{ir.Value(inside[i].v), ir.Value(values[i].v), ir.Value(out.v)}, t.DType)
		if err != "" {
			return err
		}
		out = term{v: v, is: true}
	}
	return w.give([]term{out}, []ir.ValueID{n.First})
}

// part is what a concatenation of type t has at a position within one of its tensors, and how many positions the tensor
// has.
func (w *writer) part(v ir.ValueID, t ir.Type, position term, d int) (part, size term, err string) {
	x := term{v: v, is: true}
	dims := w.out.Types[v].Dims
	switch {
	case slices.Contains(dims, ir.Const(0)) || len(dims) < len(t.Dims)-1:
		return part, size, "it concatenates tensors without elements"
	case len(dims) < len(t.Dims):
		size = term{v: w.constant(ir.Arg{Kind: ir.ArgInt, V: 1}), is: true}
		part, err = w.view(x, slices.Insert(slices.Clone(dims), d, ir.Const(1)))
	default:
		if size, err = w.size(x, d); err == "" {
			part, err = w.take(x, position, d)
		}
	}
	if err == "" {
		part, err = w.cast(part, t.DType)
	}
	return part, size, err
}

// size is the size of x along a dim, an i64: a sum of ones, which kernels know without a loop.
func (w *writer) size(x term, d int) (term, string) {
	x, err := w.cast(x, ir.I64)
	if err != "" {
		return term{}, err
	}
	one := w.constant(ir.Arg{Kind: ir.ArgInt, V: 1})
	ones, err := w.emit(ir.OpFill, []ir.Arg{ir.Value(x.v), ir.Value(one)}, ir.I64)
	if err != "" {
		return term{}, err
	}
	over := w.out.AddList(ir.ListInts, []ir.Arg{{Kind: ir.ArgInt, V: int64(d)}})
	v, err := w.emit(ir.OpSum, []ir.Arg{ir.Value(ones), over, {Kind: ir.ArgBool, V: 1}}, ir.I64)
	return term{v: v, is: true}, err
}
