// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"math"

	"github.com/mycelya/mycelya/ir"
)

// foldRules compute what is the same everywhere: they make fills of storages that are filled, and numbers of fills.
func foldRules() []Rule {
	all := []Rule{
		{"FillOfEmpty", "aten.fill_ empty n, aten.zero_ empty -> fill empty n", ir.OpCall, fillOfEmpty},
		{"PowOfOne", "aten.pow x 1 -> x", ir.OpCall, powOfOne},
		{"PowOfTwo", "aten.pow x 2 -> mul x x", ir.OpCall, powOfTwo},
	}
	for op := ir.OpAdd; op <= ir.OpWhere; op++ {
		all = append(all, Rule{"NumberOfFill", "add x (fill y n) -> add x n, and such ops", op, numberOfFill})
	}
	return all
}

// call is the name of a call, "" for other nodes.
func (c *candidate) call() string {
	if c.node.Op != ir.OpCall {
		return ""
	}
	return c.g.Strings[c.node.Name]
}

// literal makes a value of a literal number.
func (c *candidate) literal(a ir.Arg) ir.ValueID {
	if c.try {
		return 0
	}
	d := map[ir.ArgKind]ir.DType{ir.ArgInt: ir.I64, ir.ArgFloat: ir.F64, ir.ArgBool: ir.Bool}[a.Kind]
	id := c.g.Add(ir.Node{Op: ir.OpConst, Record: c.node.Record, Origin: c.node.Origin}, []ir.Arg{a}, []ir.Type{{DType: d, Dims: []ir.Dim{}}})
	return c.g.Nodes[id].First
}

// Valid because nothing else is in the storage. Near misses: a storage that others write or read too, whose content is the call's
// operand; a window on it; a number that isn't of the storage's kind, which the operator converts or refuses.
func fillOfEmpty(c *candidate) bool {
	name := c.call()
	if name != "aten::fill_.Scalar" && name != "aten::zero_" || c.made(c.value(0), ir.OpEmpty) == nil || c.storages[c.value(0)] != 1 {
		return false
	}
	d := c.t.DType
	number := ir.Arg{Kind: ir.ArgInt}
	if name == "aten::fill_.Scalar" {
		number = c.args[1]
	}
	kind := ir.DType(0)
	switch number.Kind {
	case ir.ArgValue:
		if !c.g.IsNumber(number) {
			return false
		}
		kind = c.typeOf(ir.ValueID(number.V)).DType
	case ir.ArgInt:
		kind = ir.I64
	case ir.ArgFloat:
		kind = ir.F64
	case ir.ArgBool:
		kind = ir.Bool
	}
	if !(d.Is(ir.Floats) && kind.Is(ir.Floats|ir.Ints|ir.Bools) || d == ir.I64 && kind == ir.I64 || number.Kind == ir.ArgInt && number.V == 0 && d.Is(ir.Numbers)) {
		return false
	}
	v := ir.ValueID(number.V)
	if number.Kind != ir.ArgValue {
		v = c.literal(number)
	}
	return c.turns(ir.OpFill, c.value(0), v)
}

// Valid because the op takes the number in the dtype of the fill: f32, f64 and i64 are rounded to once, by the fill or by the op. Near
// misses: f16, in which the fill has rounded the number and the op would not; another dtype beside it; a fill that is larger than
// what is beside it.
func numberOfFill(c *candidate) bool {
	arity := ir.Info(c.node.Op).Arity()
	first := 0
	if c.node.Op == ir.OpWhere {
		first = 1
	}
	for i := first; i < arity; i++ {
		v := c.value(i)
		fill := c.made(v, ir.OpFill)
		if fill == nil || c.written[v] {
			continue
		}
		d := c.typeOf(v).DType
		if d != ir.F32 && d != ir.F64 && d != ir.I64 {
			continue
		}
		alike, number := false, c.operandOf(fill, 1)
		for j := first; j < arity; j++ {
			w := c.value(j)
			if j != i && !c.g.Immediate(w) && c.typeOf(w).DType == d && c.g.SameDims(c.typeOf(w).Dims, c.t.Dims) && c.made(w, ir.OpFill) == nil {
				alike = true
			}
		}
		if kind := c.typeOf(number).DType; !alike || d == ir.I64 && kind != ir.I64 || !kind.Is(ir.Floats|ir.Ints) {
			continue
		}
		operands := make([]ir.ValueID, arity)
		for j := range operands {
			operands[j] = c.value(j)
		}
		operands[i] = number
		return c.turns(c.node.Op, operands...)
	}
	return false
}

// exponent is the literal exponent of a power, NaN if it is none.
func (c *candidate) exponent() float64 {
	if c.call() != "aten::pow.Tensor_Scalar" || c.typeOf(c.value(0)).DType != c.t.DType || !c.t.DType.Is(ir.Floats) {
		return math.NaN()
	}
	switch a := c.args[1]; a.Kind {
	case ir.ArgInt:
		return float64(a.V)
	case ir.ArgFloat:
		return math.Float64frombits(uint64(a.V))
	}
	return math.NaN()
}

// Near miss: an integer to the power 1.0, which is a float.
func powOfOne(c *candidate) bool { return c.exponent() == 1 && c.becomes(c.value(0)) }

// Valid because PyTorch computes a square as a product, in every floating dtype. Near miss: the cube.
func powOfTwo(c *candidate) bool {
	return c.exponent() == 2 && c.turns(ir.OpMul, c.value(0), c.value(0))
}
