// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import "github.com/mycelya/mycelya/ir"

// simplifyRules are exact algebra: for NaN, infinities, both zeros and integers that overflow, in every dtype. Nodes
// that lose their users go with dce. Of the rules of one op, the first that applies is taken.
func simplifyRules() []Rule {
	neg, div := ir.OpNeg, ir.OpDiv
	all := []Rule{
		{"CastToSame", "cast x -> x, of x's dtype", ir.OpCast, firstOperand, twin, becomeX},
		{"CastOfCast", "cast (cast x) -> cast x, where the inner cast keeps every value", ir.OpCast,
			innerIs(ir.OpCast), innerCastIsExact, castInner},

		{"NegOfNeg", "neg (neg x) -> x", neg, innerIs(neg), twin, becomeX},
		{"NotOfNot", "logical_not (logical_not x) -> x, of b8", ir.OpLogicalNot, innerIs(ir.OpLogicalNot), twin, becomeX},
		{"BitNotOfBitNot", "bit_not (bit_not x) -> x", ir.OpBitNot, innerIs(ir.OpBitNot), twin, becomeX},
		{"NotOfEq", "logical_not (eq x y) -> ne x y", ir.OpLogicalNot,
			innerIs(ir.OpEq), innerReadable, innerBecomes(ir.OpNe)},
		{"NotOfNe", "logical_not (ne x y) -> eq x y", ir.OpLogicalNot,
			innerIs(ir.OpNe), innerReadable, innerBecomes(ir.OpEq)},
		{"AbsOfNeg", "abs (neg x) -> abs x, of signed dtypes", ir.OpAbs, innerIs(neg), signedNeg, innerBecomes(ir.OpAbs)},

		{"AddOfNeg", "add x (neg y) -> sub x y; add (neg x) y -> sub y x", ir.OpAdd, negAt(1), exactDifference, subtractNeg},
		{"AddOfNeg", "add x (neg y) -> sub x y; add (neg x) y -> sub y x", ir.OpAdd, negAt(0), exactDifference, subtractNeg},
		{"SubOfNeg", "sub x (neg y) -> add x y", ir.OpSub, negAt(1), exactNegY, addNeg},
		{"MulOfNegs", "mul (neg x) (neg y) -> mul x y", ir.OpMul, negBoth, exactNegs, dropNegs},
		{"DivOfNegs", "div (neg x) (neg y) -> div x y, of floats", div, negBoth, exactNegs, dropNegs},

		{"WhereOfSame", "where c x x -> x", ir.OpWhere, sameAt(1, 2), twin, becomeX},
	}
	for _, op := range []ir.Op{ir.OpRelu, ir.OpAbs, ir.OpSign} {
		all = append(all, Rule{"Again", "relu (relu x) -> relu x, and such ops", op, operandIs(op), twin, becomeX})
	}
	integral := []ir.Op{ir.OpFloor, ir.OpCeil, ir.OpTrunc, ir.OpRound}
	for _, op := range integral {
		all = append(all, Rule{"RoundOfIntegral", "floor (ceil x) -> ceil x, and the like", op,
			operandIs(integral...), twin, becomeX})
	}
	for _, op := range []ir.Op{ir.OpMaximum, ir.OpMinimum, ir.OpBitAnd, ir.OpBitOr} {
		all = append(all, Rule{"OfSame", "maximum x x -> x, and such ops", op, sameAt(0, 1), twin, becomeX})
	}
	return all
}

// innerIs matches an operand that this op makes. It binds inner to the operand's node and x to the first operand of
// inner.
//
// NegOfNeg, NotOfNot and BitNotOfBitNot are valid because these ops are their own inverses. The near miss has another
// type: logical_not of a float is a b8, and neg of a number and a tensor has the tensor's dtype.
func innerIs(op ir.Op) func(*candidate) bool {
	return func(c *candidate) bool {
		if c.inner = c.made(c.value(0), op); c.inner == nil {
			return false
		}
		c.x = c.operandOf(c.inner, 0)
		return true
	}
}

// innerCastIsExact is the guard of CastOfCast. A value that the inner dtype holds exactly is the same number for the
// outer cast. The near misses lose digits: f32 through f16, i64 through f64. A float that becomes an integer is a near
// miss too: out of range, the result depends on the float's dtype.
func innerCastIsExact(c *candidate) bool {
	if c.written[c.g.Root(c.x)] || !holds(c.typeOf(c.value(0)).DType, c.typeOf(c.x).DType) {
		return false
	}
	return !c.anyByte(c.x) && !(c.typeOf(c.x).DType.Is(ir.Floats) && c.t.DType.Is(ir.Ints))
}

func castInner(c *candidate) {
	if c.isTwin(c.x) {
		becomeX(c)
		return
	}
	c.become(ir.OpCast, c.x)
}

// holds reports whether a dtype has every value of another, NaN, infinities and -0 included.
func holds(wide, narrow ir.DType) bool {
	switch {
	case wide == narrow:
		return true
	case narrow == ir.Bool:
		return wide.Is(ir.Reals)
	case wide == ir.F64 || wide == ir.F32:
		return narrow.Is(ir.Reals) && narrow.Size() < wide.Size()
	}
	return wide.Is(ir.Ints) && narrow.Is(ir.Ints) && (wide.Signed() || !narrow.Signed()) && narrow.Size() < wide.Size()
}

// innerReadable is the guard of NotOfEq and NotOfNe, which are valid for NaN: NaN is not equal to anything, and so it
// is unequal. The near misses are lt and ge, which are both false for NaN, and an operand that a call overwrites.
func innerReadable(c *candidate) bool { return c.readable(c.inner, 2) }

func innerBecomes(op ir.Op) func(*candidate) {
	return func(c *candidate) {
		arity := ir.Info(op).Arity()
		operands := make([]ir.ValueID, arity)
		for i := range operands {
			operands[i] = c.operandOf(c.inner, i)
		}
		c.become(op, operands...)
	}
}

// signedNeg is the guard of AbsOfNeg. The near miss is an unsigned dtype: neg wraps, and abs does nothing.
func signedNeg(c *candidate) bool {
	d := c.typeOf(c.value(0)).DType
	return (d.Is(ir.Floats) || d.Signed()) && c.readable(c.inner, 1)
}

// negAt matches a binary op whose operand i is a neg. It binds y to the neg and x to the other operand.
func negAt(i int) func(*candidate) bool {
	return func(c *candidate) bool {
		c.x, c.y = c.value(1-i), c.value(i)
		return c.made(c.y, ir.OpNeg) != nil
	}
}

// negBoth matches a binary op of two negs.
func negBoth(c *candidate) bool {
	c.x, c.y = c.value(0), c.value(1)
	return c.made(c.x, ir.OpNeg) != nil && c.made(c.y, ir.OpNeg) != nil
}

// exactDifference is the guard of AddOfNeg. x + (-y) and x - y are one operation in IEEE arithmetic and modulo 2^n. The
// near misses are a y of a narrower dtype, in which neg has wrapped, and a bool x, from which PyTorch does not
// subtract.
func exactDifference(c *candidate) bool { return c.exactNeg(c.y) && c.typeOf(c.x).DType != ir.Bool }

func subtractNeg(c *candidate) { c.become(ir.OpSub, c.x, c.negated(c.y)) }

// exactNegY is the guard of SubOfNeg, for the reason of exactDifference.
func exactNegY(c *candidate) bool { return c.exactNeg(c.y) }

func addNeg(c *candidate) { c.become(ir.OpAdd, c.x, c.negated(c.y)) }

// exactNegs is the guard of MulOfNegs and DivOfNegs. The signs cancel exactly. The near miss is true division of
// integers: the most negative integer is its own negative.
func exactNegs(c *candidate) bool { return c.exactNeg(c.x) && c.exactNeg(c.y) }

func dropNegs(c *candidate) { c.become(c.node.Op, c.negated(c.x), c.negated(c.y)) }

// exactNeg reports whether a neg is computed in the dtype of the result, on an operand that no call writes.
func (c *candidate) exactNeg(v ir.ValueID) bool {
	d := c.t.DType
	return c.typeOf(v).DType == d && !d.Is(ir.Complexes) && c.readable(c.made(v, ir.OpNeg), 1)
}

// negated is the operand of a neg.
func (c *candidate) negated(v ir.ValueID) ir.ValueID { return c.operandOf(c.made(v, ir.OpNeg), 0) }

// sameAt matches an op with one value as operands i and j. It binds x to the value.
//
// WhereOfSame chooses between equal elements. Its near miss broadcasts x to the sizes of the condition. OfSame is valid
// for ops with f(x, x) = x. Its near misses are bit_xor x x, which is 0, and sub x x, which is NaN where x is.
func sameAt(i, j int) func(*candidate) bool {
	return func(c *candidate) bool {
		c.x = c.value(i)
		return c.x == c.value(j)
	}
}

// operandIs matches an operand that one of these ops makes. It binds x to the operand.
//
// Again is valid for ops with f(f(x)) = f(x). RoundOfIntegral is valid because an integral number stays as it is. The
// near miss is relu (abs x): only a rule about signs could find that it equals abs x.
func operandIs(ops ...ir.Op) func(*candidate) bool {
	return func(c *candidate) bool {
		c.x = c.value(0)
		for _, op := range ops {
			if c.made(c.x, op) != nil {
				return true
			}
		}
		return false
	}
}
