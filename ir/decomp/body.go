// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import (
	"fmt"
	"math"
	"slices"
	"strconv"

	"github.com/mycelya/mycelya/ir"
)

// term is the meaning of a name in a case: a value, or an argument that is not a value.
type term struct {
	v   ir.ValueID
	is  bool   // the term is a value
	arg ir.Arg // the argument of the call, if the name is one
}

// bind binds the names of a rule to the arguments of a call. It returns false if the rule does not fit them.
func (w *writer) bind(r *rule, args []ir.Arg) bool {
	for i := range r.when {
		if c := &r.when[i]; w.is(args[c.arg], c) == c.not {
			return false
		}
	}
	for _, a := range args[:r.args] {
		switch {
		case !r.exact:
		case a.Kind == ir.ArgFloat && !w.result.Exactly(math.Float64frombits(uint64(a.V))):
			return false
		case a.Kind == ir.ArgInt && !w.result.Exactly(float64(a.V)):
			return false
		}
	}
	for _, a := range r.alike {
		x, y := args[a[0]], args[a[1]]
		if x.Kind != ir.ArgValue || y.Kind != ir.ArgValue || w.g.Types[x.V].DType != w.g.Types[y.V].DType {
			return false
		}
	}
	for _, a := range r.single {
		if !w.single(args[0], args[a[0]], args[a[1]]) {
			return false
		}
	}
	w.names = append(w.names[:0], make([]term, len(r.names))...)
	for i := range r.args {
		w.names[i].arg = args[i]
	}
	w.meet, w.narrow = ir.Invalid, r.narrow
	of := w.meet
	if r.promote {
		w.meet = w.promoted(args[:r.args])
		of = w.meet
	} else if args[0].Kind == ir.ArgValue {
		of = w.g.Types[args[0].V].DType
	}
	return of.Is(r.classes) && w.result.Is(r.classes)
}

// is reports whether an argument is the literal of a condition.
func (w *writer) is(a ir.Arg, c *condition) bool {
	switch a.Kind {
	case ir.ArgNone:
		return c.text == "none"
	case ir.ArgInt:
		return float64(a.V) == c.number
	case ir.ArgFloat:
		return math.Float64frombits(uint64(a.V)) == c.number
	case ir.ArgBool:
		return c.text == strconv.FormatBool(a.V != 0)
	case ir.ArgStr:
		return w.g.Strings[a.V] == c.text
	}
	return false
}

// single reports whether a tensor has one element along a dim, and the sizes of x along all others.
func (w *writer) single(x, index, along ir.Arg) bool {
	if x.Kind != ir.ArgValue || index.Kind != ir.ArgValue || along.Kind != ir.ArgInt {
		return false
	}
	dims, want := w.g.Types[index.V].Dims, slices.Clone(w.g.Types[x.V].Dims)
	d := along.V
	if d < 0 {
		d += int64(len(want))
	}
	if d < 0 || d >= int64(len(want)) || !w.g.Same(dims[d], ir.Const(1)) {
		return false
	}
	want[d] = ir.Const(1)
	return slices.EqualFunc(dims, want, func(a, b ir.Dim) bool { return w.g.First(a) == w.g.First(b) })
}

// promoted is the dtype in which the operands of a call meet.
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
	return d
}

// wide is the dtype in which ATen computes elements of a dtype.
func wide(d ir.DType) ir.DType {
	if d == ir.F16 || d == ir.BF16 {
		return ir.F32
	}
	return d
}

// run writes the body of a rule out and returns its results.
func (w *writer) run(r *rule) ([]term, string) {
	for i := range r.body {
		s := &r.body[i]
		if s.name >= 0 {
			t, err := w.eval(&s.exprs[0])
			if err != "" {
				return nil, err
			}
			w.names[s.name] = t
			continue
		}
		values := make([]term, len(s.exprs))
		for j := range s.exprs {
			t, err := w.eval(&s.exprs[j])
			if err != "" {
				return nil, err
			}
			values[j] = t
		}
		return values, ""
	}
	panic("BUG: a case of " + r.operator + " has no results") // read checks it
}

func (w *writer) eval(e *expr) (term, string) {
	switch e.form {
	case formName:
		return w.named(e.name)
	case formNumber:
		return term{v: w.constant(e.number), is: true}, ""
	case formNone:
		return term{}, ""
	}
	operands := make([]term, 0, 3)
	for i := range e.args {
		t, err := w.eval(&e.args[i])
		if err != "" {
			return term{}, err
		}
		operands = append(operands, t)
	}
	if e.form == formOwn {
		return w.own(e, operands)
	}
	x := operands[0]
	if !x.is && e.form == formChannels {
		return x, ""
	}
	for _, t := range operands {
		if !t.is {
			return term{}, "an operand is absent"
		}
	}
	switch e.form {
	case formDraw:
		return w.draw(x, operands[1])
	case formGroups:
		return w.groups(x, w.names[e.name].arg)
	case formReduce:
		return w.reduce(e, x)
	case formTo:
		return w.cast(x, e.dtype)
	case formUnsqueeze:
		dims := w.out.Types[x.v].Dims
		d, err := w.dim(e.dim, len(dims)+1)
		if err != "" {
			return term{}, err
		}
		return w.view(x, slices.Insert(slices.Clone(dims), d, ir.Const(1)))
	case formChannels:
		return w.view(x, append(slices.Clone(w.out.Types[x.v].Dims), ones(len(w.out.Types[operands[1].v].Dims)-2)...))
	case formSingle:
		dims := slices.Clone(w.out.Types[operands[1].v].Dims)
		d, err := w.dim(e.dim, len(dims))
		if err != "" {
			return term{}, err
		}
		dims[d] = ir.Const(1)
		if w.out.SameDims(dims, w.out.Types[x.v].Dims) {
			return x, ""
		}
		return w.window(x, dims, w.out.Types[x.v].Strides), ""
	case formIota:
		d, err := w.dim(e.dim, len(w.out.Types[x.v].Dims))
		if err != "" {
			return term{}, err
		}
		return w.iota(w.out.Types[x.v].Dims, d), ""
	case formTake:
		d, err := w.dim(e.dim, len(w.out.Types[x.v].Dims))
		if err != "" {
			return term{}, err
		}
		return w.take(x, operands[1], d)
	case formWithin:
		return w.within(x, operands[1], e)
	}
	return w.like(e.form, x, operands[1])
}

// own writes an own elementwise op.
func (w *writer) own(e *expr, operands []term) (term, string) {
	args := make([]ir.Arg, len(operands))
	for i, t := range operands {
		switch {
		case t.is:
			args[i] = ir.Value(t.v)
		case e.optional:
			return operands[1-i], ""
		default:
			return term{}, "an operand is absent"
		}
	}
	v, err := w.emit(e.op, args, w.out.Types[args[0].V].DType)
	return term{v: v, is: true}, err
}

// named is the term of a name. An argument is converted to the dtype in which the body computes.
func (w *writer) named(name int) (term, string) {
	t := w.names[name]
	if t.is || t.arg.Kind == ir.ArgNone {
		return t, ""
	}
	switch t.arg.Kind {
	case ir.ArgValue:
		t.v, t.is = w.e.To[t.arg.V], true
		to := w.out.Types[t.v].DType
		if w.meet.Valid() {
			to = w.meet
		}
		if !w.narrow {
			to = wide(to)
		}
		if !w.out.IsNumber(ir.Value(t.v)) {
			met, err := w.met(t)
			if err != "" {
				return t, err
			}
			t = met
			cast, err := w.cast(t, to)
			if err != "" {
				return t, err
			}
			t.v = cast.v
		}
	case ir.ArgInt, ir.ArgFloat, ir.ArgBool:
		t.v, t.is = w.constant(w.whole(t.arg)), true
	default:
		return t, "an argument is neither a tensor nor a number"
	}
	if w.out.IsNumber(ir.Value(t.v)) && !w.holds(t.v) {
		return t, fmt.Sprintf("its number does not fit %s", w.result)
	}
	w.names[name] = t
	return t, ""
}

// met converts a tensor to the 16-bit dtype in which operands meet, as ATen does before it computes in f32. That rounds
// 0-dim tensors of other dtypes.
func (w *writer) met(t term) (term, string) {
	if w.meet == wide(w.meet) {
		return t, ""
	}
	return w.cast(t, w.meet)
}

// whole is a literal. It becomes an integer if its value is one and the result is of integers or bools.
func (w *writer) whole(a ir.Arg) ir.Arg {
	v := math.Float64frombits(uint64(a.V))
	if a.Kind != ir.ArgFloat || !w.result.Is(ir.Ints|ir.Bools) || v != math.Trunc(v) || math.Abs(v) >= 1<<63 {
		return a
	}
	return ir.Arg{Kind: ir.ArgInt, V: int64(v)}
}

// holds reports whether a number fits the dtype of the result: PyTorch converts it to that dtype first, or refuses it.
// Of a parameter only the dtype is known here; Must covers its value.
func (w *writer) holds(v ir.ValueID) bool {
	of, n := w.out.Types[v].DType, &w.out.Nodes[w.out.Def[v]]
	if w.result.Is(ir.Ints|ir.Bools) && of == ir.F64 {
		return false
	}
	if n.Op != ir.OpConst {
		return true
	}
	a := w.out.Args[n.ArgLo]
	if a.Kind == ir.ArgFloat {
		return w.result.Reaches(math.Float64frombits(uint64(a.V)))
	}
	return w.result.Is(ir.Ints|ir.Bools) && w.result.Holds(a.V) || w.result.Is(ir.Floats) && w.result.Reaches(float64(a.V))
}

func (w *writer) constant(a ir.Arg) ir.ValueID {
	d := ir.I64
	switch a.Kind {
	case ir.ArgFloat:
		d = ir.F64
	case ir.ArgBool:
		d = ir.Bool
	}
	id := w.add(ir.Node{Op: ir.OpConst}, []ir.Arg{a}, []ir.Type{{DType: d, Dims: []ir.Dim{}}})
	return w.out.Nodes[id].First
}

// emit adds an own op. dtype is the result's dtype where the op does not imply one.
func (w *writer) emit(op ir.Op, args []ir.Arg, dtype ir.DType) (ir.ValueID, string) {
	t, err := w.out.Infer(op, args, dtype)
	if err != nil {
		return None, err.Error()
	}
	if !t.DType.Valid() {
		return None, fmt.Sprintf("%s has a result of no dtype", op)
	}
	// The result has the layout of its first operand of the same sizes, as in PyTorch.
	for _, a := range args[:ir.Info(op).Arity()] {
		x := w.out.Types[a.V]
		own := ir.Info(op).Kind == ir.KindElementwise && w.e.Of[w.out.Def[a.V]] == w.id
		if own && w.out.SameDims(x.Dims, t.Dims) {
			t.Strides = x.Strides
			break
		}
	}
	w.nonzero(op, args, t.DType)
	return w.out.Nodes[w.add(ir.Node{Op: op}, args, []ir.Type{t})].First, ""
}

func (w *writer) cast(x term, d ir.DType) (term, string) {
	if w.out.Types[x.v].DType == d {
		return x, ""
	}
	v, err := w.emit(ir.OpCast, []ir.Arg{ir.Value(x.v)}, d)
	return term{v: v, is: true}, err
}

// like returns x in the sizes (flat) or the dtype (as, cast) of y.
func (w *writer) like(how form, x, y term) (term, string) {
	t := w.out.Types[y.v]
	switch {
	case how == formFlat:
		return w.view(x, t.Dims)
	case how == formAs && !w.out.SameDims(w.out.Types[x.v].Dims, t.Dims):
		return term{}, "it broadcasts"
	case w.out.Types[x.v].DType == t.DType && how == formAs:
		v, err := w.emit(ir.OpCopy, []ir.Arg{ir.Value(x.v)}, t.DType)
		return term{v: v, is: true}, err
	}
	return w.cast(x, t.DType)
}

// reduce writes a reduction over the dims that a case names.
func (w *writer) reduce(e *expr, x term) (term, string) {
	rank := len(w.out.Types[x.v].Dims)
	var over []int64
	all := e.dims.which == dimsAll
	switch e.dims.which {
	case dimsChannels:
		for i := range rank {
			if i != 1 {
				over = append(over, int64(i))
			}
		}
	case dimsLast, dimsLead:
		count := len(w.g.List(w.names[e.dims.name].arg))
		for i := range rank {
			if (i >= rank-count) == (e.dims.which == dimsLast) {
				over = append(over, int64(i))
			}
		}
	case dimsIn:
		items := []ir.Arg{}
		switch a := w.names[e.dims.name].arg; a.Kind {
		case ir.ArgList:
			items = w.g.List(a)
		case ir.ArgInt:
			items = append(items, a)
		}
		for _, a := range items {
			d := a.V
			if d < 0 {
				d += int64(rank)
			}
			if a.Kind != ir.ArgInt || d < 0 || d >= int64(rank) {
				return term{}, "its dims are not literals"
			}
			over = append(over, d)
		}
		all = len(over) == 0
	case dimsOne:
		d, err := w.dim(e.dims.one, rank)
		if err != "" {
			return term{}, err
		}
		over = append(over, int64(d))
	}
	if rank == 0 || len(over) == 0 && !all {
		return term{}, "it reduces no dims"
	}
	items := make([]ir.Arg, len(over))
	for i, d := range over {
		items[i] = ir.Arg{Kind: ir.ArgInt, V: d}
	}
	flag := ir.Arg{Kind: ir.ArgBool}
	if e.keep {
		flag.V = 1
	}
	args := []ir.Arg{ir.Value(x.v), w.out.AddList(ir.ListInts, items), flag}
	v, err := w.emit(e.op, args, w.out.Types[x.v].DType)
	return term{v: v, is: true}, err
}

// groups views samples of channels as groups of channels: [n,c,…] as [n,g,…].
func (w *writer) groups(x term, count ir.Arg) (term, string) {
	t := w.out.Types[x.v]
	dims := t.Dims
	switch {
	case count.Kind != ir.ArgInt || count.V < 1 || len(dims) < 2 || slices.Contains(dims, ir.Const(0)):
		return term{}, "its groups do not divide the channels"
	case t.Strides != nil:
		return term{}, "a group of channels is not contiguous in memory"
	}
	return w.view(x, []ir.Dim{dims[0], ir.Const(count.V), w.out.AddQuotient(dims[1:], []ir.Dim{ir.Const(count.V)})})
}

// view is a value in other sizes. They differ only in dims of 1, or the memory is row-major.
func (w *writer) view(x term, dims []ir.Dim) (term, string) {
	t := w.out.Types[x.v]
	if t.Strides == nil && !slices.Contains(t.Dims, ir.Const(0)) {
		if a, b := w.out.Reduce(t.Dims, dims); len(a)+len(b) == 0 {
			return w.window(x, dims, nil), ""
		}
	}
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
	return w.window(x, dims, strides), ""
}

// window is a view with the offset of a value.
func (w *writer) window(x term, dims, strides []ir.Dim) term {
	n := ir.Node{Op: ir.OpView}
	root := x.v
	if def := &w.out.Nodes[w.out.Def[x.v]]; def.Op == ir.OpView {
		n.Offset, root = def.Offset, w.out.Root(x.v)
	}
	id := w.add(n, []ir.Arg{ir.Value(root)}, []ir.Type{{DType: w.out.Types[x.v].DType, Dims: dims, Strides: strides}})
	return term{v: w.out.Nodes[id].First, is: true}
}

// dim is a dim of a tensor of a rank, from 0 on.
func (w *writer) dim(d dim, rank int) (int, string) {
	at := d.at
	if d.name >= 0 {
		a := w.names[d.name].arg
		if a.Kind != ir.ArgInt {
			return 0, "its dims are not literals"
		}
		at = a.V
	}
	if at < 0 {
		at += int64(rank)
	}
	if at < 0 || at >= int64(rank) {
		return 0, "it has too few dims"
	}
	return int(at), ""
}

// within checks that the elements of index are positions along a dim of x, or the argument that the expression names.
func (w *writer) within(index, x term, e *expr) (term, string) {
	dims := w.out.Types[x.v].Dims
	d, err := w.dim(e.dim, len(dims))
	if err != "" {
		return term{}, err
	}
	args := []ir.Arg{ir.Value(index.v), {Kind: ir.ArgDim, V: int64(dims[d])}, {Kind: ir.ArgNone}}
	if e.name >= 0 {
		args[2] = w.names[e.name].arg
	}
	w.add(ir.Node{Op: ir.OpCall, Name: w.out.Intern(Within)}, args, nil)
	return index, ""
}

// nonzero checks the divisor of an op on integers.
func (w *writer) nonzero(op ir.Op, args []ir.Arg, d ir.DType) {
	if !w.out.DividesByZero(op, args, d) {
		return
	}
	divisor := args[1]
	n := &w.out.Nodes[w.out.Def[divisor.V]]
	if n.Op == ir.OpCast && w.out.Types[divisor.V].DType == d { // the check runs before all loops, and converts too
		divisor = w.out.Args[n.ArgLo]
	}
	name := Nonzero
	if w.out.Immediate(ir.ValueID(divisor.V)) {
		name = NonzeroNumber
	}
	w.add(ir.Node{Op: ir.OpCall, Name: w.out.Intern(name)}, []ir.Arg{divisor, {Kind: ir.ArgDType, V: int64(d)}}, nil)
}

// draw draws a mask with the sizes of y.
func (w *writer) draw(p, y term) (term, string) {
	dims := w.out.Types[y.v].Dims
	if slices.Contains(dims, ir.Const(0)) {
		return term{}, "there is nothing to draw"
	}
	n := &w.g.Nodes[w.id]
	strides := w.g.Types[n.First+ir.ValueID(n.N)-1].Strides // PyTorch draws numbers in memory order
	id := w.add(ir.Node{Op: ir.OpCall, Flags: ir.FlagRNG, Name: w.out.Intern(Draw)},
		[]ir.Arg{w.ints(dims), ir.Value(p.v), w.ints(strides)}, []ir.Type{{DType: ir.Bool, Dims: dims, Strides: strides}})
	return term{v: w.out.Nodes[id].First, is: true}, ""
}

// ints is a list of sizes.
func (w *writer) ints(dims []ir.Dim) ir.Arg {
	items := make([]ir.Arg, len(dims))
	for i, d := range dims {
		items[i] = ir.Arg{Kind: ir.ArgDim, V: int64(d)}
	}
	return w.out.AddList(ir.ListInts, items)
}

func ones(n int) []ir.Dim {
	return slices.Repeat([]ir.Dim{ir.Const(1)}, max(n, 0))
}
