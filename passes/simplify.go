// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// simplifyRules are algebra that is exact: for NaN, infinities, both zeros and integers that overflow, in every dtype. What
// they leave without users goes with dce. They stand in groups by what they are about; within an op the first that applies is taken.
func simplifyRules() []Rule {
	all := []Rule{
		{"CastToSame", "cast x -> x, of x's dtype already", ir.OpCast, castToSame},
		{"CastOfCast", "cast (cast x) -> cast x, where the inner one keeps every value", ir.OpCast, castOfCast},

		{"NegOfNeg", "neg (neg x) -> x", ir.OpNeg, inverse(ir.OpNeg)},
		{"NotOfNot", "logical_not (logical_not x) -> x, of b8", ir.OpLogicalNot, inverse(ir.OpLogicalNot)},
		{"BitNotOfBitNot", "bit_not (bit_not x) -> x", ir.OpBitNot, inverse(ir.OpBitNot)},
		{"NotOfEq", "logical_not (eq x y) -> ne x y", ir.OpLogicalNot, notOf(ir.OpEq, ir.OpNe)},
		{"NotOfNe", "logical_not (ne x y) -> eq x y", ir.OpLogicalNot, notOf(ir.OpNe, ir.OpEq)},
		{"AbsOfNeg", "abs (neg x) -> abs x, of signed dtypes", ir.OpAbs, absOfNeg},

		{"AddOfNeg", "add x (neg y) -> sub x y; add (neg x) y -> sub y x", ir.OpAdd, addOfNeg},
		{"SubOfNeg", "sub x (neg y) -> add x y", ir.OpSub, subOfNeg},
		{"MulOfNegs", "mul (neg x) (neg y) -> mul x y", ir.OpMul, productOfNegs},
		{"DivOfNegs", "div (neg x) (neg y) -> div x y, of floats", ir.OpDiv, productOfNegs},

		{"WhereOfSame", "where c x x -> x", ir.OpWhere, whereOfSame},
	}
	for _, op := range []ir.Op{ir.OpRelu, ir.OpAbs, ir.OpSign} {
		all = append(all, Rule{"Again", "relu (relu x) -> relu x, and such ops", op, again(op)})
	}
	integral := []ir.Op{ir.OpFloor, ir.OpCeil, ir.OpTrunc, ir.OpRound}
	for _, op := range integral {
		all = append(all, Rule{"RoundOfIntegral", "floor (ceil x) -> ceil x, and the like", op, again(integral...)})
	}
	for _, op := range []ir.Op{ir.OpMaximum, ir.OpMinimum, ir.OpBitAnd, ir.OpBitOr} {
		all = append(all, Rule{"OfSame", "maximum x x -> x, and such ops", op, ofSame})
	}
	return all
}

func castToSame(c *candidate) bool { return c.becomes(c.value(0)) }

// Valid because a value that the inner dtype holds exactly is the same number when the outer cast sees it. Near misses: f32
// through f16 loses digits; i64 through f64 too; what an integer becomes of a float that it can't hold depends on the float's dtype.
func castOfCast(c *candidate) bool {
	inner := c.made(c.value(0), ir.OpCast)
	if inner == nil {
		return false
	}
	x := c.operandOf(inner, 0)
	if c.g.Immediate(x) || c.written[c.g.Root(x)] || !holds(c.typeOf(c.value(0)).DType, c.typeOf(x).DType) {
		return false
	}
	if c.anyByte(x) || c.typeOf(x).DType.Is(ir.Floats) && c.t.DType.Is(ir.Ints) {
		return false
	}
	return c.becomes(x) || c.turns(ir.OpCast, x)
}

// holds says whether a dtype has every value of another, NaN, infinities and -0 included.
func holds(wide, narrow ir.DType) bool {
	if wide == narrow {
		return true
	}
	switch wide {
	case ir.F64:
		return narrow.Is(ir.Floats|ir.Bools) || narrow.Is(ir.Ints) && narrow.Size() < 8
	case ir.F32:
		return narrow == ir.F16 || narrow == ir.BF16 || narrow.Is(ir.Bools) || narrow.Is(ir.Ints) && narrow.Size() < 4
	case ir.I64:
		return narrow == ir.I32 || narrow == ir.I16 || narrow == ir.I8 || narrow == ir.U8 || narrow == ir.Bool
	case ir.I32:
		return narrow == ir.I16 || narrow == ir.I8 || narrow == ir.U8 || narrow == ir.Bool
	}
	return false
}

// Near miss: the type differs, as logical_not's of a float does, or neg's of a number that a tensor meets.
func inverse(op ir.Op) func(*candidate) bool {
	return func(c *candidate) bool {
		inner := c.made(c.value(0), op)
		return inner != nil && c.becomes(c.operandOf(inner, 0))
	}
}

// Valid for NaN: it is not equal to anything, and so it is unequal. Near miss: lt and ge, which are both false for NaN.
func notOf(compare, other ir.Op) func(*candidate) bool {
	return func(c *candidate) bool {
		inner := c.made(c.value(0), compare)
		return inner != nil && c.readable(inner, 2) && c.turns(other, c.operandOf(inner, 0), c.operandOf(inner, 1))
	}
}

// Near miss: of an unsigned dtype neg wraps, and abs does nothing.
func absOfNeg(c *candidate) bool {
	inner := c.made(c.value(0), ir.OpNeg)
	if inner == nil || !c.readable(inner, 1) {
		return false
	}
	switch c.typeOf(c.value(0)).DType {
	case ir.F16, ir.BF16, ir.F32, ir.F64, ir.I8, ir.I16, ir.I32, ir.I64:
		return c.turns(ir.OpAbs, c.operandOf(inner, 0))
	}
	return false
}

// Valid because x + (-y) and x - y are one operation in IEEE arithmetic, and modulo 2^n. Near misses: y of a narrower dtype,
// in which neg has wrapped; neg of a sum, whose zero has another sign.
func addOfNeg(c *candidate) bool {
	x, y := c.value(0), c.value(1)
	if of, ok := c.negOfResult(y); ok && c.typeOf(x).DType != ir.Bool {
		return c.turns(ir.OpSub, x, of)
	}
	if of, ok := c.negOfResult(x); ok && c.typeOf(y).DType != ir.Bool {
		return c.turns(ir.OpSub, y, of)
	}
	return false
}

func subOfNeg(c *candidate) bool {
	of, ok := c.negOfResult(c.value(1))
	return ok && c.turns(ir.OpAdd, c.value(0), of)
}

// Valid because the signs cancel exactly. Near miss: true division of integers, of which the most negative is its own
// negative.
func productOfNegs(c *candidate) bool {
	x, ok := c.negOfResult(c.value(0))
	y, also := c.negOfResult(c.value(1))
	return ok && also && c.turns(c.node.Op, x, y)
}

// negOfResult gives the operand of a neg that is computed in the dtype of the result, and whether v is one.
func (c *candidate) negOfResult(v ir.ValueID) (ir.ValueID, bool) {
	n := c.made(v, ir.OpNeg)
	if n == nil || !c.readable(n, 1) || c.t.DType.Is(ir.Complexes) {
		return 0, false
	}
	x := c.operandOf(n, 0)
	return x, c.typeOf(x).DType == c.t.DType && c.typeOf(v).DType == c.t.DType
}

// readable says whether no call writes the first n operands of a node.
func (c *candidate) readable(node *ir.Node, n int) bool {
	for i := range n {
		if c.written[c.g.Root(c.operandOf(node, i))] {
			return false
		}
	}
	return true
}

// Near miss: x is broadcast to the condition's sizes, and not the result.
func whereOfSame(c *candidate) bool {
	return c.value(1) == c.value(2) && c.becomes(c.value(1))
}

// Near miss: relu (abs x), which another rule would have to know.
func again(ops ...ir.Op) func(*candidate) bool {
	return func(c *candidate) bool {
		for _, op := range ops {
			if c.made(c.value(0), op) != nil {
				return c.becomes(c.value(0))
			}
		}
		return false
	}
}

// Near miss: bit_xor x x, which is 0, and sub x x, which is NaN where x is.
func ofSame(c *candidate) bool { return c.value(0) == c.value(1) && c.becomes(c.value(0)) }
