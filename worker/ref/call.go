// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ref

import (
	"slices"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/executor"
)

// written returns the tensor that an operator overwrites, by the operator's name. If the name ends in "_", it is the
// first operand. If it is an out= form of an own op, it is the last one.
func written(op string, operands []uint32) (uint32, bool) {
	base, _, _ := strings.Cut(op, ".")
	_, out := ir.FormOver(op)
	switch {
	case len(operands) == 0:
	case out:
		return operands[len(operands)-1], true
	case strings.HasSuffix(base, "_") && !strings.HasSuffix(base, "__"):
		return operands[0], true
	}
	return 0, false
}

// operands lists the tensors of a call, including those in lists.
func operands(args []program.Arg) (out []uint32) {
	for i := range args {
		if a := &args[i]; a.Tag == catalogue.TagTensor {
			out = append(out, uint32(a.Value))
		}
		out = append(out, operands(args[i].Items)...)
	}
	return out
}

// touched lists the tensors that a call makes or writes. The operands that an unknown operator writes are not known. If
// it also has no results, it must write an operand, so all operands are listed.
func (r *runner) touched(c *program.Call) (out []uint32) {
	for _, t := range c.Results {
		if t != 0 {
			out = append(out, t-1)
		}
	}
	ops := operands(c.Args)
	if t, ok := written(c.Op, ops); ok {
		return append(out, t)
	}
	if len(out) == 0 {
		return ops
	}
	return out
}

// call runs an operator, which must make all results of the call.
func (r *runner) call(c *program.Call) error {
	if err := guard(func() error { return r.operator(c) }); err != nil {
		return err
	}
	for i, t := range c.Results {
		if t != 0 && r.buffer(t-1) == nil {
			return executor.Errorf(proto.ErrRuntime, "%s has no result %d.", c.Op, i)
		}
	}
	return nil
}

func (r *runner) operator(c *program.Call) error {
	unknown := executor.Errorf(proto.ErrNotImplemented, "The reference worker doesn't know %s with these arguments.", c.Op)
	switch c.Op {
	// These have no effect: no operator here draws random numbers or depends on the default dtype or on flags.
	case "mycelya::manual_seed", "mycelya::set_default_dtype", "mycelya::set_flag":
		return nil
	case "aten::copy_":
		if ops := operands(c.Args); len(ops) == 2 {
			return eval.Eval(ir.OpCopy, []eval.Arg{{Tensor: r.tensor(ops[1])}}, r.tensor(ops[0]))
		}
		return unknown
	case "aten::zero_":
		if ops := operands(c.Args); len(ops) == 1 {
			zero := eval.Arg{Tensor: &eval.Tensor{DType: ir.I64, Data: make([]byte, 8)}, Number: true}
			t := r.tensor(ops[0])
			return eval.Eval(ir.OpFill, []eval.Arg{{Tensor: t}, zero}, t)
		}
		return unknown
	}
	given := c.Args
	name, _ := ir.FunctionalName(c.Op)
	if form, out := ir.FormOver(c.Op); form != "" {
		name = form
		if out {
			given = given[:len(given)-1]
		}
	}
	g := ir.NewGraph("", "")
	values := []eval.Arg{} // by ir.ValueID
	args := make([]ir.Arg, len(given))
	for i := range given {
		v, ok := r.arg(g, &values, &given[i])
		if !ok {
			return unknown
		}
		args[i] = v
	}
	op, own, ok := ir.FromATen(g, name, args)
	if !ok {
		return unknown
	}
	dtype := ir.Invalid
	if op == ir.OpCast {
		dtype = castTo(args)
	}
	want, err := g.Infer(op, own, dtype)
	if err != nil {
		return executor.Errorf(proto.ErrRuntime, "%s: %v.", c.Op, err)
	}
	dst, err := r.target(c, want)
	if err != nil {
		return err
	}
	return eval.Eval(op, evalArgs(g, op, own, values), dst)
}

// castTo returns the dtype argument of _to_copy.
func castTo(args []ir.Arg) ir.DType {
	for _, a := range args {
		if a.Kind == ir.ArgDType {
			return ir.DType(a.V)
		}
	}
	return ir.Invalid
}

// target returns the tensor for an operator's result. It is the operand that the operator overwrites, or new memory.
// The program's tensor for the new memory must have the result's geometry.
func (r *runner) target(c *program.Call, want ir.Type) (*eval.Tensor, error) {
	sizes := make([]int64, len(want.Dims))
	for i, d := range want.Dims {
		sizes[i] = int64(d)
	}
	if over, ok := written(c.Op, operands(c.Args)); ok {
		t := r.tensor(over)
		if !slices.Equal(t.Sizes, sizes) {
			return nil, executor.Errorf(proto.ErrRuntime, "%s gives sizes %v, the operand that it writes has %v.",
				c.Op, sizes, t.Sizes)
		}
		return t, nil
	}
	if len(c.Results) != 1 {
		return nil, executor.Errorf(proto.ErrRuntime, "%s has 1 result, the program has %d.", c.Op, len(c.Results))
	}
	if c.Results[0] == 0 {
		return eval.New(want.DType, sizes, nil)
	}
	i := c.Results[0] - 1
	w := r.window(i)
	if !slices.Equal(w.Sizes, sizes) || w.DType != want.DType || w.Offset != 0 {
		return nil, executor.Errorf(proto.ErrRuntime, "%s gives %v%v, the program expects %v%v.",
			c.Op, want.DType, sizes, w.DType, w.Sizes)
	}
	st, err := made(w)
	if err != nil {
		return nil, err
	}
	r.buffers[r.p.Tensors[i].Buffer] = st
	w.Data = st.data
	return w, nil
}

// arg converts an argument to the form of the op table. Tensors and numbers become values of g. All sizes are known, so
// they are constants.
func (r *runner) arg(g *ir.Graph, values *[]eval.Arg, a *program.Arg) (ir.Arg, bool) {
	value := func(n ir.Node, t *eval.Tensor, number bool) ir.Arg {
		typ := ir.Type{DType: t.DType, Dims: make([]ir.Dim, len(t.Sizes)), Strides: make([]ir.Dim, len(t.Strides))}
		for i := range t.Sizes {
			typ.Dims[i], typ.Strides[i] = ir.Const(t.Sizes[i]), ir.Const(t.Strides[i])
		}
		id := g.Add(n, nil, []ir.Type{typ})
		*values = append(*values, eval.Arg{Tensor: t, Number: number})
		return ir.Value(g.Nodes[id].First)
	}
	switch a.Tag {
	case catalogue.TagTensor:
		return value(ir.Node{Op: ir.OpInput}, r.tensor(uint32(a.Value)), false), true
	case catalogue.TagNumber:
		d, _ := ir.ParseDType(catalogue.NumberKinds[a.Head-1].DType)
		return value(ir.Node{Op: ir.OpParam}, &eval.Tensor{DType: d, Data: r.element(d, uint32(a.Value))}, true), true
	case catalogue.TagScalar:
		d := ir.DType(a.Head)
		return value(ir.Node{Op: ir.OpScalar}, &eval.Tensor{DType: d, Data: r.element(d, uint32(a.Value))}, false), true
	case catalogue.TagSize:
		return ir.Arg{Kind: ir.ArgInt, V: int64(r.params[a.Value])}, true
	case catalogue.TagFloat, catalogue.TagStr, catalogue.TagGen:
		return ir.Arg{}, false // no form of an own op has such an argument
	case catalogue.TagList:
		items := make([]ir.Arg, len(a.Items))
		for i := range a.Items {
			v, ok := r.arg(g, values, &a.Items[i])
			if !ok {
				return ir.Arg{}, false
			}
			items[i] = v
		}
		return g.AddList(a.Head, items), true
	default: // a literal, or None
		return ir.Arg{Kind: ir.ArgKind(a.Tag), V: int64(a.Value)}, true
	}
}

// evalArgs converts the arguments of an own op to those of ir/eval.
func evalArgs(g *ir.Graph, op ir.Op, own []ir.Arg, values []eval.Arg) []eval.Arg {
	info := ir.Info(op)
	var out []eval.Arg
	for _, a := range own[:info.Arity()] {
		out = append(out, values[a.V])
	}
	if info.Kind == ir.KindReduce {
		attr := eval.Arg{KeepDim: own[info.Arity()+1].V != 0}
		for _, d := range g.List(own[info.Arity()]) {
			attr.Dims = append(attr.Dims, d.V)
		}
		out = append(out, attr)
	}
	return out
}
