// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
)

// Arg is one argument of an own op: an operand or, of a reduction, its attributes.
type Arg struct {
	Tensor  *Tensor
	Number  bool    // Tensor is a Python number: the weakest in type promotion
	Dims    []int64 // dims of a reduction, not negative; empty: all
	KeepDim bool
}

// Eval computes an own op into the elements of dst, whose sizes are the result's. The op computes in the dtype that
// type promotion gives; dst's dtype, if it is another, is converted to last, as an in-place operator does. dst may
// share memory with operands.
func Eval(op ir.Op, args []Arg, dst *Tensor) error {
	if err := eval(op, args, dst); err != nil {
		return fmt.Errorf("eval: %s: %w", op, err)
	}
	return nil
}

func eval(op ir.Op, args []Arg, dst *Tensor) error {
	if !op.Own() {
		return fmt.Errorf("not an own op")
	}
	info := ir.Info(op)
	arity := info.Arity()
	if len(args) < arity {
		return fmt.Errorf("%d operands, not %d", len(args), arity)
	}
	for _, t := range append(tensors(args[:arity]), dst) {
		if t == nil {
			return fmt.Errorf("an operand is missing")
		}
		if err := t.check(); err != nil {
			return err
		}
		if !arithmetic(t.DType) && !(op == ir.OpCopy && t.DType == dst.DType) {
			return fmt.Errorf("no arithmetic in %s", t.DType)
		}
	}
	x := args[0].Tensor
	switch info.Kind {
	case ir.KindFill:
		n := args[1].Tensor
		e, err := checkedConvert(n.load(n.Offset), n.DType, dst.DType)
		if err != nil {
			return err
		}
		dst.each(func(pos int64) { dst.store(pos, e) })
		return nil
	case ir.KindCopy:
		return Copy(dst, x)
	case ir.KindReduce:
		var dims []int64
		for _, a := range args[arity:] {
			dims = append(dims, a.Dims...)
		}
		return reduce(op, x, dims, dst)
	}
	return elementwise(op, args[:arity], dst)
}

func tensors(args []Arg) []*Tensor {
	out := make([]*Tensor, len(args))
	for i, a := range args {
		out[i] = a.Tensor
	}
	return out
}

// Copy puts the elements of src, broadcast and converted, into dst.
func Copy(dst, src *Tensor) error {
	from, err := src.positions(dst.Sizes)
	if err != nil {
		return err
	}
	size := int64(dst.DType.Size())
	if src.DType == dst.DType { // bit for bit, which also serves the formats without arithmetic
		buffer := make([]byte, 0, int64(len(from))*size)
		for _, p := range from {
			buffer = append(buffer, src.Data[p*size:(p+1)*size]...)
		}
		dst.each(func(pos int64) {
			copy(dst.Data[pos*size:], buffer[:size])
			buffer = buffer[size:]
		})
		return nil
	}
	results := make([]elem, len(from))
	for i, p := range from {
		results[i] = src.load(p)
	}
	return dst.put(results, src.DType)
}

// elementwise computes all elements before it stores the first.
func elementwise(op ir.Op, args []Arg, dst *Tensor) error {
	common, err := commonDType(op, args, dst.DType)
	if err != nil {
		return err
	}
	at := make([][]int64, len(args))
	for i, a := range args {
		if at[i], err = a.Tensor.positions(dst.Sizes); err != nil {
			return err
		}
	}
	// operand loads element i of operand k in the dtype in which the op computes.
	operand := func(k, i int) elem {
		t := args[k].Tensor
		e := t.load(at[k][i])
		if op == ir.OpWhere && k == 0 {
			return e
		}
		if args[k].Number && t.DType == ir.F64 && (common == ir.F16 || common == ir.BF16) && ir.Info(op).WideNumber {
			return convert(e, t.DType, ir.F32)
		}
		return convert(e, t.DType, common)
	}
	compute, result, err := element(op, args, common, operand)
	if err != nil {
		return err
	}
	results := make([]elem, dst.Numel())
	for i := range results {
		e, err := compute(i)
		if err != nil {
			return err
		}
		results[i] = fit(result, e)
	}
	return dst.put(results, result)
}

// element gives the function that computes element i, and the dtype of what it gives.
func element(
	op ir.Op, args []Arg, common ir.DType, operand func(k, i int) elem,
) (func(i int) (elem, error), ir.DType, error) {
	result := common
	switch r := ir.Info(op).DType; {
	case r == ir.DTypeBool:
		result = ir.Bool
	case r == ir.DTypeReal:
		result = common.Real()
	}
	switch len(args) {
	case 1:
		if op == ir.OpCast {
			return func(i int) (elem, error) { return operand(0, i), nil }, result, nil
		}
		if f := unaryFunc(op, common); f != nil {
			return func(i int) (elem, error) { return f(operand(0, i)), nil }, result, nil
		}
	case 2:
		if power := args[1]; op == ir.OpPow && power.Number {
			n := power.Tensor.load(power.Tensor.Offset)
			if f := powNumber(common, n, power.Tensor.DType); f != nil {
				return func(i int) (elem, error) { return f(operand(0, i)), nil }, result, nil
			}
			if common.Is(ir.Ints) && n.i < 0 {
				return nil, result, errNegativePower
			}
		}
		if f := binaryFunc(op, common); f != nil {
			return func(i int) (elem, error) { return f(operand(0, i), operand(1, i)) }, result, nil
		}
	case 3:
		if op == ir.OpFma {
			return func(i int) (elem, error) {
				return elem{f: fused(operand(0, i).f, operand(1, i).f, operand(2, i).f, common)}, nil
			}, result, nil
		}
		return func(i int) (elem, error) {
			if operand(0, i).i != 0 {
				return operand(1, i), nil
			}
			return operand(2, i), nil
		}, result, nil
	}
	return nil, result, fmt.Errorf("no meaning for %s", common)
}

// commonDType is the dtype in which an elementwise op computes.
func commonDType(op ir.Op, args []Arg, result ir.DType) (ir.DType, error) {
	if op == ir.OpWhere {
		if args[0].Tensor.DType != ir.Bool {
			return ir.Invalid, fmt.Errorf("the condition is %s, not b8", args[0].Tensor.DType)
		}
		args = args[1:]
	}
	operands := make([]ir.PromoteOperand, len(args))
	for i, a := range args {
		operands[i] = ir.PromoteOperand{DType: a.Tensor.DType, Rank: len(a.Tensor.Sizes), Number: a.Number}
	}
	d, err := ir.ResultType(operands...)
	if err != nil {
		return d, err
	}
	info := ir.Info(op)
	if !d.Is(info.Takes) {
		return d, fmt.Errorf("it does not take %s", d)
	}
	if info.DType == ir.DTypeFloat && d.Is(ir.Bools|ir.Ints) {
		d = ir.F32
		if result == ir.F64 || result == ir.F16 || result == ir.BF16 {
			d = result // the default dtype of the program that made the node
		}
	}
	return d, nil
}
