// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

// term is what a name of a row stands for: a value, or an argument that is none.
type term struct {
	v   ir.ValueID
	is  bool   // there is a value
	arg ir.Arg // of the call, if it is an argument
}

// bind gives the names of a row the arguments of a call, if the row is for them.
func (w *writer) bind(r *rule, args []ir.Arg) bool {
	w.names = map[string]term{}
	for i, name := range r.args {
		w.names[name] = term{arg: args[i]}
	}
	for _, c := range r.when {
		if (w.literal(w.names[c.arg].arg) == c.value) == c.not {
			return false
		}
	}
	w.meet = ir.Invalid
	if r.promote {
		w.meet = w.promoted(args[:len(r.args)])
	}
	return true
}

// promoted is the dtype in which the operands of a call meet, wide enough to compute in.
func (w *writer) promoted(args []ir.Arg) ir.DType {
	var operands []ir.PromoteOperand
	for _, a := range args {
		if a.Kind == ir.ArgValue {
			t := w.g.Types[a.V]
			operands = append(operands, ir.PromoteOperand{DType: t.DType, Rank: len(t.Dims), Number: w.g.IsNumber(a)})
		}
	}
	d, err := ir.ResultType(operands...)
	if err != nil {
		return ir.Invalid
	}
	return wide(d)
}

// wide is the dtype in which ATen computes elements of a dtype.
func wide(d ir.DType) ir.DType {
	if d == ir.F16 || d == ir.BF16 {
		return ir.F32
	}
	return d
}

// literal is an argument as conditions have it.
func (w *writer) literal(a ir.Arg) string {
	switch a.Kind {
	case ir.ArgNone:
		return "none"
	case ir.ArgInt:
		return strconv.FormatInt(a.V, 10)
	case ir.ArgFloat:
		return strconv.FormatFloat(math.Float64frombits(uint64(a.V)), 'g', -1, 64)
	case ir.ArgBool:
		return strconv.FormatBool(a.V != 0)
	case ir.ArgStr:
		return w.g.Strings[a.V]
	}
	return "?"
}

// run writes a row out and returns its results.
func (w *writer) run(r *rule) ([]term, string) {
	for _, s := range r.body {
		var values []term
		for _, e := range s.exprs {
			t, err := w.eval(e)
			if err != "" {
				return nil, err
			}
			values = append(values, t)
		}
		if s.name == "" {
			return values, ""
		}
		w.names[s.name] = values[0]
	}
	panic("BUG: the row of " + r.Name + " has no results")
}

func (w *writer) eval(e expr) (term, string) {
	if len(e.args) == 0 {
		return w.atom(e.head)
	}
	x, err := w.eval(e.args[0])
	if err != "" {
		return term{}, err
	}
	if op, ok := ir.ByName(strings.TrimRight(e.head, "?_")); ok && ir.Info(op).Kind == ir.KindReduce {
		return w.reduce(op, x, e.args[1], !strings.HasSuffix(e.head, "_"))
	}
	switch e.head {
	case "chan":
		y, err := w.eval(e.args[1])
		if err != "" {
			return term{}, err
		}
		return w.view(x, append(slices.Clone(w.out.Types[x.v].Dims), ones(len(w.out.Types[y.v].Dims)-2)...))
	case "unsq":
		return w.view(x, append(slices.Clone(w.out.Types[x.v].Dims), ir.Const(1)))
	case "flat", "as", "cast":
		y, err := w.eval(e.args[1])
		if err != "" {
			return term{}, err
		}
		return w.like(e.head, x, y)
	case "f32", "f64":
		d, _ := ir.ParseDType(e.head)
		return w.cast(x, d)
	case "gather":
		index, err := w.eval(e.args[2])
		if err != "" {
			return term{}, err
		}
		return w.gather(x, e.args[1].head, index)
	}
	operands := []term{x}
	for _, a := range e.args[1:] {
		t, err := w.eval(a)
		if err != "" {
			return term{}, err
		}
		operands = append(operands, t)
	}
	head, optional := strings.CutSuffix(e.head, "?")
	args := make([]ir.Arg, 0, len(operands))
	for i, t := range operands {
		if !t.is {
			if optional {
				return operands[1-i], ""
			}
			return term{}, "an operand is absent"
		}
		args = append(args, ir.Value(t.v))
	}
	op, ok := ir.ByName(head)
	if !ok {
		panic("BUG: no own op " + head)
	}
	v, err := w.emit(op, args, w.out.Types[args[0].V].DType)
	return term{v: v, is: true}, err
}

// atom is a name, a number, or none.
func (w *writer) atom(head string) (term, string) {
	t, ok := w.names[head]
	switch {
	case head == "none":
		return term{}, ""
	case !ok:
		return w.number(head)
	case t.is || t.arg.Kind == ir.ArgNone:
		return t, ""
	}
	switch t.arg.Kind {
	case ir.ArgValue:
		t.v, t.is = w.e.To[t.arg.V], true
		to := wide(w.out.Types[t.v].DType)
		if w.meet.Valid() {
			to = w.meet
		}
		if !w.out.IsNumber(ir.Value(t.v)) {
			cast, err := w.cast(t, to)
			if err != "" {
				return t, err
			}
			t.v = cast.v
		}
	case ir.ArgInt, ir.ArgFloat, ir.ArgBool:
		t.v, t.is = w.constant(t.arg), true
	default:
		return t, "an argument is neither a tensor nor a number"
	}
	w.names[head] = t
	return t, ""
}

func (w *writer) number(text string) (term, string) {
	a := ir.Arg{Kind: ir.ArgInt}
	var err error
	if a.V, err = strconv.ParseInt(text, 10, 64); err != nil {
		f, err := strconv.ParseFloat(text, 64)
		if err != nil {
			panic("BUG: a row has no name " + text)
		}
		a = ir.Arg{Kind: ir.ArgFloat, V: int64(math.Float64bits(f))}
	}
	return term{v: w.constant(a), is: true}, ""
}

func (w *writer) constant(a ir.Arg) ir.ValueID {
	d := map[ir.ArgKind]ir.DType{ir.ArgInt: ir.I64, ir.ArgFloat: ir.F64, ir.ArgBool: ir.Bool}[a.Kind]
	id := w.add(ir.Node{Op: ir.OpConst}, []ir.Arg{a}, []ir.Type{{DType: d, Dims: []ir.Dim{}}})
	return w.out.Nodes[id].First
}

// emit adds an own op; dtype is the result's where the op doesn't say it.
func (w *writer) emit(op ir.Op, args []ir.Arg, dtype ir.DType) (ir.ValueID, string) {
	t, err := w.out.Infer(op, args, dtype)
	if err != nil {
		return None, err.Error()
	}
	if !t.DType.Valid() {
		return None, fmt.Sprintf("%s has a result of no dtype", op)
	}
	// Memory of the layout that its first operand of those sizes has, as PyTorch would take.
	for _, a := range args[:ir.Info(op).Arity()] {
		if x := w.out.Types[a.V]; ir.Info(op).Kind == ir.KindElementwise && w.out.SameDims(x.Dims, t.Dims) && w.e.Of[w.out.Def[a.V]] == w.id {
			t.Strides = x.Strides
			break
		}
	}
	return w.out.Nodes[w.add(ir.Node{Op: op}, args, []ir.Type{t})].First, ""
}

func (w *writer) cast(x term, d ir.DType) (term, string) {
	if w.out.Types[x.v].DType == d {
		return x, ""
	}
	v, err := w.emit(ir.OpCast, []ir.Arg{ir.Value(x.v)}, d)
	return term{v: v, is: true}, err
}

// like is x in the sizes (flat) or the dtype (as, cast) of y.
func (w *writer) like(how string, x, y term) (term, string) {
	t := w.out.Types[y.v]
	switch {
	case how == "flat":
		return w.view(x, t.Dims)
	case how == "as" && !w.out.SameDims(w.out.Types[x.v].Dims, t.Dims):
		return term{}, "it broadcasts"
	case w.out.Types[x.v].DType == t.DType && how == "as":
		v, err := w.emit(ir.OpCopy, []ir.Arg{ir.Value(x.v)}, t.DType)
		return term{v: v, is: true}, err
	}
	return w.cast(x, t.DType)
}

// reduce folds the dims that a row names.
func (w *writer) reduce(op ir.Op, x term, dims expr, keep bool) (term, string) {
	rank := len(w.out.Types[x.v].Dims)
	which, name, _ := strings.Cut(dims.head, ":")
	count := 0
	if name != "" {
		count = len(w.g.List(w.names[name].arg))
	}
	var fold []int64
	switch a := w.names[dims.head].arg; {
	case which == "all":
	case which == "chan":
		for i := range rank {
			if i != 1 {
				fold = append(fold, int64(i))
			}
		}
	case which == "last" || which == "lead":
		for i := range rank {
			if (i >= rank-count) == (which == "last") {
				fold = append(fold, int64(i))
			}
		}
	case a.Kind == ir.ArgInt:
		d := a.V
		if d < 0 {
			d += int64(rank)
		}
		fold = append(fold, d)
	default:
		return term{}, "its dims are no literals"
	}
	if rank == 0 || len(fold) == 0 && which != "all" {
		return term{}, "it folds nothing"
	}
	items := make([]ir.Arg, len(fold))
	for i, d := range fold {
		items[i] = ir.Arg{Kind: ir.ArgInt, V: d}
	}
	flag := ir.Arg{Kind: ir.ArgBool}
	if keep {
		flag.V = 1
	}
	args := []ir.Arg{ir.Value(x.v), w.out.AddList(ir.ListInts, items), flag}
	v, err := w.emit(op, args, w.out.Types[x.v].DType)
	return term{v: v, is: true}, err
}

// view is a value in sizes that differ in dims of 1 only.
func (w *writer) view(x term, dims []ir.Dim) (term, string) {
	t := w.out.Types[x.v]
	var strides []ir.Dim
	have, i := t.Dims, 0
	if t.Strides != nil {
		strides = make([]ir.Dim, len(dims))
	}
	for j, d := range dims {
		for i < len(have) && w.out.Same(have[i], ir.Const(1)) && !w.out.Same(d, ir.Const(1)) {
			i++
		}
		switch {
		case i < len(have) && w.out.UnifyDims(have[i], d):
			if strides != nil {
				strides[j] = t.Strides[i]
			}
			i++
		case !w.out.Same(d, ir.Const(1)):
			return term{}, "sizes differ in more than dims of 1"
		case strides != nil:
			strides[j] = ir.Const(1)
		}
	}
	for ; i < len(have); i++ {
		if !w.out.Same(have[i], ir.Const(1)) {
			return term{}, "sizes differ in more than dims of 1"
		}
	}
	n := ir.Node{Op: ir.OpView}
	root := x.v
	if def := &w.out.Nodes[w.out.Def[x.v]]; def.Op == ir.OpView {
		n.Offset, root = def.Offset, w.out.Root(x.v)
	}
	id := w.add(n, []ir.Arg{ir.Value(root)}, []ir.Type{{DType: t.DType, Dims: dims, Strides: strides}})
	return term{v: w.out.Nodes[id].First, is: true}, ""
}

// gather is x at an index along a dim, read for each element of index.
func (w *writer) gather(x term, dim string, index term) (term, string) {
	d, err := strconv.ParseInt(dim, 10, 64)
	if err != nil {
		panic("BUG: gather along " + dim)
	}
	if int64(len(w.out.Types[x.v].Dims)) <= d {
		return term{}, "it has too few dims"
	}
	args := []ir.Arg{ir.Value(x.v), {Kind: ir.ArgInt, V: d}, ir.Value(index.v), {Kind: ir.ArgBool}}
	t := ir.Type{DType: w.out.Types[x.v].DType, Dims: w.out.Types[index.v].Dims}
	id := w.add(ir.Node{Op: ir.OpCall, Name: w.out.Intern("aten::gather")}, args, []ir.Type{t})
	return term{v: w.out.Nodes[id].First, is: true}, ""
}

func ones(n int) []ir.Dim {
	return slices.Repeat([]ir.Dim{ir.Const(1)}, max(n, 0))
}
