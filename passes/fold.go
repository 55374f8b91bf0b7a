// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"math"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
)

// foldRules are constant folding of values that are the same at each element: a storage that is filled becomes a fill,
// and an op takes the number of a fill.
func foldRules() []Rule {
	all := []Rule{
		{"FillOfEmpty", "aten.fill_ empty n, aten.zero_ empty -> fill empty n", ir.OpCall,
			callFillsEmpty, onlyUseAndKind, fillEmpty},
		{"PowOfOne", "aten.pow x 1 -> x", ir.OpCall, exponentIs(1), floatTwin, becomeX},
		{"PowOfTwo", "aten.pow x 2 -> mul x x", ir.OpCall, exponentIs(2), floatPower, squareX},
	}
	all = append(all,
		Rule{"AddOfZero", "add x 0 -> x, of integers", ir.OpAdd, operandIsNumber(0), integerTwin, becomeXByNumber},
		Rule{"SubOfZero", "sub x 0 -> x", ir.OpSub, secondIsNumber(0), arithmeticTwin, becomeXByNumber},
		Rule{"MulOfOne", "mul x 1 -> x", ir.OpMul, operandIsNumber(1), arithmeticTwin, becomeXByNumber},
		Rule{"DivOfOne", "div x 1 -> x", ir.OpDiv, secondIsNumber(1), twin, becomeXByNumber},
		Rule{"DivOfPower", "div x 4 -> mul x 0.25, and other powers of 2", ir.OpDiv,
			secondIsPower, exactInverse, multiplyByInverse},
	)
	for op := ir.OpAdd; op <= ir.OpWhere; op++ {
		all = append(all, Rule{"NumberOfFill", "add x (fill y n) -> add x n, and such ops", op,
			operandIsFill, numberIsExact, takeNumber})
	}
	return all
}

// numberDType is the dtype of a Python number, literal or not.
func (c *candidate) numberDType(a ir.Arg) ir.DType {
	switch a.Kind {
	case ir.ArgInt:
		return ir.I64
	case ir.ArgFloat:
		return ir.F64
	case ir.ArgBool:
		return ir.Bool
	}
	return c.typeOf(ir.ValueID(a.V)).DType
}

// literal adds a value that is a literal.
func (c *candidate) literal(a ir.Arg) ir.ValueID {
	node := ir.Node{Op: ir.OpConst, Record: c.node.Record, Origin: c.node.Origin}
	id := c.g.Add(node, []ir.Arg{a}, []ir.Type{{DType: c.numberDType(a), Dims: []ir.Dim{}}})
	return c.g.Nodes[id].First
}

// callFillsEmpty matches a call that fills an uninitialised storage with a number.
func callFillsEmpty(c *candidate) bool {
	return len(c.args) > 0 && c.args[0].Kind == ir.ArgValue && c.made(c.value(0), ir.OpEmpty) != nil &&
		c.g.RowOf(&c.node).Fills != catalogue.NoFill
}

// filledWith returns the number that the call of callFillsEmpty writes.
func (c *candidate) filledWith() ir.Arg {
	if c.g.RowOf(&c.node).Fills == catalogue.FillZero {
		return ir.Arg{Kind: ir.ArgInt}
	}
	return c.args[1]
}

// onlyUseAndKind is the guard of FillOfEmpty: the call is the only use of the storage, and the number is of the
// storage's kind. The near misses are a storage that other nodes read or write, whose content is the call's operand; a
// window on a storage; and a number of another kind, which the operator converts or refuses.
func onlyUseAndKind(c *candidate) bool {
	if c.storages[c.value(0)] != 1 {
		return false
	}
	number := c.filledWith()
	kind := c.numberDType(number)
	switch d := c.t.DType; {
	case d.Is(ir.Floats):
		return kind.Is(ir.Floats | ir.Ints | ir.Bools)
	case d == ir.I64 && kind == ir.I64:
		return true
	default:
		return d.Is(ir.Numbers) && number.Kind == ir.ArgInt && number.V == 0
	}
}

func fillEmpty(c *candidate) {
	number := c.filledWith()
	v := ir.ValueID(number.V)
	if number.Kind != ir.ArgValue {
		v = c.literal(number)
	}
	c.become(ir.OpFill, c.value(0), v)
}

// operandIsFill binds at to the first operand that is a fill.
func operandIsFill(c *candidate) bool {
	for c.at = 0; c.at < ir.Info(c.node.Op).Arity(); c.at++ {
		if c.made(c.value(c.at), ir.OpFill) != nil {
			return true
		}
	}
	return false
}

// numberIsExact is the guard of NumberOfFill. It binds at to the first fill whose number the op may take. The op takes
// the number in the fill's dtype. In f32, f64 and i64 the number is rounded once, by the fill or by the op. The near
// misses are f16, in which the fill has rounded the number and the op would not; an operand of another dtype beside the
// fill; and a fill that is larger than the operand beside it.
func numberIsExact(c *candidate) bool {
	for ; c.at < ir.Info(c.node.Op).Arity(); c.at++ {
		v := c.value(c.at)
		fill := c.made(v, ir.OpFill)
		if fill == nil || c.written[v] {
			continue
		}
		d, kind := c.typeOf(v).DType, c.typeOf(c.operandOf(fill, 1)).DType
		if (d == ir.F32 || d == ir.F64) && kind.Is(ir.Floats|ir.Ints) || d == ir.I64 && kind == ir.I64 {
			if c.resultWithoutFill(d) {
				return true
			}
		}
	}
	return false
}

// resultWithoutFill reports whether an operand that is no fill has this dtype and the sizes of the result.
func (c *candidate) resultWithoutFill(d ir.DType) bool {
	for j := 0; j < ir.Info(c.node.Op).Arity(); j++ {
		v := c.value(j)
		if !c.g.Immediate(v) && c.typeOf(v).DType == d && c.g.SameDims(c.typeOf(v).Dims, c.t.Dims) &&
			c.made(v, ir.OpFill) == nil {
			return true
		}
	}
	return false
}

func takeNumber(c *candidate) {
	operands := make([]ir.ValueID, ir.Info(c.node.Op).Arity())
	for j := range operands {
		operands[j] = c.value(j)
	}
	operands[c.at] = c.operandOf(c.made(operands[c.at], ir.OpFill), 1)
	c.become(c.node.Op, operands...)
}

// exponentIs matches a power with this literal exponent. It binds x to the base. The near misses are another exponent,
// the cube among them, and an exponent that is a parameter.
func exponentIs(want float64) func(*candidate) bool {
	return func(c *candidate) bool {
		if len(c.args) != 2 || !isNumber(c.args[1], want) || !c.g.RowOf(&c.node).Power {
			return false
		}
		c.x = c.value(0)
		return true
	}
}

// isNumber reports whether an argument is a literal with this value.
func isNumber(a ir.Arg, want float64) bool {
	return a.Kind == ir.ArgInt && a.V == int64(want) ||
		a.Kind == ir.ArgFloat && math.Float64frombits(uint64(a.V)) == want
}

// floatPower is the guard of PowOfTwo. PyTorch computes a square as a product, in every floating dtype. The near miss
// is an integer with a floating exponent, whose power is a float.
func floatPower(c *candidate) bool {
	return c.t.DType.Is(ir.Floats) && c.typeOf(c.x).DType == c.t.DType
}

// floatTwin is the guard of PowOfOne, with the near miss of floatPower.
func floatTwin(c *candidate) bool { return floatPower(c) && twin(c) }

func squareX(c *candidate) { c.become(ir.OpMul, c.x, c.x) }

// numberOf returns a number that a rule may rely on, NaN if there is none: a constant, or a parameter that had it when
// the graph was captured.
func (c *candidate) numberOf(v ir.ValueID) float64 {
	if c.g.IsNumber(ir.Value(v)) {
		for _, a := range c.g.NodeArgs(c.g.Def[v]) {
			switch a.Kind {
			case ir.ArgFloat:
				return math.Float64frombits(uint64(a.V))
			case ir.ArgInt:
				return float64(a.V)
			}
		}
	}
	return math.NaN()
}

// rely notes that the graph serves only calls in which y is the same number.
func (c *candidate) rely() {
	if n := c.made(c.y, ir.OpParam); n != nil {
		c.g.Rely(ir.Number{Slot: n.Slot, Value: c.g.Args[n.ArgLo]})
	}
}

// secondIsNumber matches an op whose second operand is this number. It binds x to the first operand and y to the
// number. For 0 the near miss is -0.0: x - -0.0 is 0.0 where x is -0.0.
func secondIsNumber(want float64) func(*candidate) bool {
	return func(c *candidate) bool {
		c.x, c.y = c.value(0), c.value(1)
		return c.number(c.y, want)
	}
}

// operandIsNumber is secondIsNumber for either operand.
func operandIsNumber(want float64) func(*candidate) bool {
	return func(c *candidate) bool {
		if secondIsNumber(want)(c) {
			return true
		}
		c.x, c.y = c.y, c.x
		return c.number(c.y, want)
	}
}

// number reports whether a number is this one. 0.0 and -0.0 differ.
func (c *candidate) number(v ir.ValueID, want float64) bool {
	return math.Float64bits(c.numberOf(v)) == math.Float64bits(want)
}

// arithmeticTwin is the guard of SubOfZero and MulOfOne. The near misses are a result of another dtype, and dtypes that
// PyTorch stores only: its operator raises the error.
func arithmeticTwin(c *candidate) bool {
	return twin(c) && !c.t.DType.Stored()
}

// integerTwin is the guard of AddOfZero. The near miss is a float: -0.0 + 0.0 is 0.0.
func integerTwin(c *candidate) bool { return c.t.DType.Is(ir.Ints) && arithmeticTwin(c) }

func becomeXByNumber(c *candidate) {
	c.rely()
	becomeX(c)
}

// secondIsPower matches a division by a power of 2 other than 1, or by its negative. It binds x to the dividend and y
// to the divisor.
func secondIsPower(c *candidate) bool {
	c.x, c.y = c.value(0), c.value(1)
	fraction, exponent := math.Frexp(math.Abs(c.numberOf(c.y)))
	return fraction == 0.5 && exponent != 1
}

// exactInverse is the guard of DivOfPower: the quotient and the product are one number, rounded once, if the dtype has
// the divisor and its inverse as normal numbers. The near misses are a divisor whose inverse overflows, a complex
// quotient, and one of integers, which has the default dtype.
func exactInverse(c *candidate) bool {
	_, exponent := math.Frexp(c.numberOf(c.y))
	return c.typeOf(c.x).DType == c.t.DType && max(exponent-1, 1-exponent) <= c.t.DType.Normal()
}

func multiplyByInverse(c *candidate) {
	c.rely()
	inverse := 1 / c.numberOf(c.y)
	c.become(ir.OpMul, c.x, c.literal(ir.Arg{Kind: ir.ArgFloat, V: int64(math.Float64bits(inverse))}))
}
