// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "fmt"

// maxRank is the most dims a tensor has (the trace's limit).
const maxRank = 255

// IsNumber reports whether an argument is a Python number: the value of an OpParam or OpConst node.
func (g *Graph) IsNumber(a Arg) bool {
	if a.Kind != ArgValue || int(a.V) >= len(g.Def) {
		return false
	}
	op := g.Nodes[g.Def[a.V]].Op
	return op == OpParam || op == OpConst
}

// Immediate reports whether a value is a number that the program holds or receives with each call. It has no memory.
func (g *Graph) Immediate(v ValueID) bool {
	op := g.Nodes[g.Def[v]].Op
	return op == OpParam || op == OpScalar || op == OpConst
}

// Infer gives the type of an own op's result in contiguous memory. dtype is the result's dtype for ops that do not
// imply one (cast). If it is a float, it is also the default dtype to which integers become floats.
func (g *Graph) Infer(op Op, args []Arg, dtype DType) (Type, error) {
	if !op.Own() {
		panic(fmt.Sprintf("BUG: no rule gives the result of %s", op))
	}
	d, err := g.resultDType(op, args, dtype)
	if err != nil {
		return Type{}, err
	}
	dims, err := g.resultDims(op, args)
	return Type{DType: d, Dims: dims}, err
}

// resultDType applies the op's dtype rule. given is the result's dtype if it is known, else Invalid.
func (g *Graph) resultDType(op Op, args []Arg, given DType) (DType, error) {
	info := Info(op)
	operands := args[:info.Arity()]
	promoting := operands
	if op == OpWhere {
		if d := g.Types[operands[0].V].DType; d != Bool || g.IsNumber(operands[0]) {
			return Invalid, fmt.Errorf("the condition is %s, not a b8 tensor", d)
		}
		promoting = operands[1:]
	}
	tensors := 0
	for _, a := range operands {
		if !g.IsNumber(a) {
			tensors++
		}
	}
	if tensors == 0 {
		return Invalid, fmt.Errorf("no operand is a tensor")
	}
	if info.Kind == KindFill {
		if g.IsNumber(operands[0]) || !g.IsNumber(operands[1]) {
			return Invalid, fmt.Errorf("fill needs a tensor and a number")
		}
		promoting = operands[:1]
	}
	if op == OpSub {
		for _, a := range operands {
			if g.Types[a.V].DType == Bool {
				return Invalid, fmt.Errorf("sub does not take b8")
			}
		}
	}
	common, err := g.promote(promoting)
	if err != nil {
		return Invalid, err
	}
	if !common.Is(info.Takes) {
		return Invalid, fmt.Errorf("%s does not take %s", op, common)
	}
	return resultOf(info.DType, common, given), nil
}

// resultOf gives the result's dtype from the one in which the operands meet.
func resultOf(rule DTypeRule, common, given DType) DType {
	switch rule {
	case DTypeGiven:
		return given
	case DTypeFloat:
		if common.Is(Bools | Ints) {
			if given.Is(Floats) {
				return given
			}
			return F32
		}
	case DTypeReal:
		return common.Real()
	case DTypeBool:
		return Bool
	case DTypeSum:
		if common.Is(Bools | Ints) {
			return I64
		}
	}
	return common
}

// promote is ATen's result type. Tensors take precedence over 0-dim tensors, and these over numbers, unless the
// weaker operand is of a higher kind. The width of a number never counts.
func (g *Graph) promote(operands []Arg) (DType, error) {
	types := make([]PromoteOperand, len(operands))
	for i, a := range operands {
		t := g.Types[a.V]
		types[i] = PromoteOperand{DType: t.DType, Rank: len(t.Dims), Number: g.IsNumber(a)}
	}
	return ResultType(types...)
}

// PromoteOperand is what type promotion reads of an operand.
type PromoteOperand struct {
	DType  DType
	Rank   int
	Number bool // a Python number
}

// ResultType is the dtype in which operands meet by ATen's rules, with f32 as the default dtype.
func ResultType(operands ...PromoteOperand) (DType, error) {
	var number, scalar, tensor DType
	var err error
	meet := func(to *DType, d DType) {
		p, ok := Promote(*to, d)
		switch {
		case *to == Invalid:
			p = d
		case !ok && err == nil:
			err = fmt.Errorf("%s and %s have no common dtype", *to, d)
		}
		*to = p
	}
	for _, o := range operands {
		switch {
		case o.Number && o.DType == F64:
			meet(&number, F32)
		case o.Number && o.DType == C128:
			meet(&number, C64)
		case o.Number:
			meet(&number, o.DType)
		case o.Rank == 0:
			meet(&scalar, o.DType)
		default:
			meet(&tensor, o.DType)
		}
	}
	// over combines a stronger group with a weaker one.
	over := func(strong, weak DType) DType {
		switch {
		case strong == Invalid:
			return weak
		case weak == Invalid || strong.Is(Complexes):
			return strong
		case strong.Is(Floats | Floats8):
			if !weak.Is(Complexes) {
				return strong
			}
			if strong == BF16 && err == nil { // the complex dtype depends on PyTorch's version
				err = fmt.Errorf("%s and a complex number have no common dtype", strong)
			}
			return strong.Complex()
		case weak.Is(Floats | Complexes): // strong is a bool or an integer
			return weak
		case strong == Bool || weak.Is(Floats8):
			meet(&strong, weak)
		}
		return strong
	}
	d := over(tensor, over(scalar, number))
	return d, err
}

// resultDims applies the op's shape rule. It fails if dims that must be equal are not known to be equal.
func (g *Graph) resultDims(op Op, args []Arg) ([]Dim, error) {
	info := Info(op)
	switch info.Shape {
	case ShapeFirst:
		return g.Types[args[0].V].Dims, nil
	case ShapeBroadcast:
		return g.Broadcast(args[:info.Arity()])
	case ShapeReduce:
		return g.reduceDims(args)
	}
	panic(fmt.Sprintf("BUG: %s has no shape rule to apply", op))
}

// Broadcast gives the sizes to which operands expand. Only a constant 1 expands: a symbol is never 0 or 1, because
// the trace has these as constants.
func (g *Graph) Broadcast(operands []Arg) ([]Dim, error) {
	rank := 0
	for _, a := range operands {
		rank = max(rank, len(g.Types[a.V].Dims))
	}
	out := make([]Dim, rank)
	for i := range out {
		out[i] = Const(1)
	}
	for _, a := range operands {
		dims := g.Types[a.V].Dims
		for i, d := range dims {
			o := &out[rank-len(dims)+i]
			switch d = g.Find(d); {
			case d == Const(1) || *o == d:
			case *o == Const(1):
				*o = d
			default:
				return nil, fmt.Errorf("sizes %s and %s meet in a broadcast", g.DimString(*o), g.DimString(d))
			}
		}
	}
	return out, nil
}

// reduceDims gives the dims of a reduction's result.
func (g *Graph) reduceDims(args []Arg) ([]Dim, error) {
	dims, list, keep := g.Types[args[0].V].Dims, g.List(args[1]), args[2].V != 0
	var reduced [maxRank]bool
	for _, d := range list {
		if d.Kind != ArgInt || d.V < 0 || d.V >= int64(len(dims)) {
			return nil, fmt.Errorf("dim %d is not one of a rank %d operand", d.V, len(dims))
		}
		if reduced[d.V] {
			return nil, fmt.Errorf("dim %d is reduced twice", d.V)
		}
		reduced[d.V] = true
	}
	out := []Dim{}
	for i, d := range dims {
		switch {
		case len(list) > 0 && !reduced[i]:
			out = append(out, d)
		case keep:
			out = append(out, Const(1))
		}
	}
	return out, nil
}
