// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"math"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/kernel"
)

// Form is how a kernel computes an elementwise own op.
type Form uint8

const (
	FormInstr   Form = iota // one instruction on operands in the common dtype
	FormTruth               // one instruction on the truth of operands in the common dtype
	FormOperand             // the first operand, in the common dtype
	FormFalse               // no element is true
	FormPower               // FormInstr, unless lowering knows a faster form for the constant exponent
)

// Compute is how a kernel computes an elementwise own op.
type Compute struct {
	Form  Form
	DType ir.DType  // the common dtype, in which its operands meet
	Op    kernel.Op // of FormInstr, FormTruth and FormPower
}

// ComputeOf is how a kernel computes an elementwise own op that a loop holds.
func ComputeOf(g *ir.Graph, id ir.NodeID) Compute {
	c, o := computeOf(g, id)
	if o != clear {
		panic("BUG: a loop holds what no kernel computes")
	}
	return c
}

func computeOf(g *ir.Graph, id ir.NodeID) (Compute, obstacle) {
	op, args := g.Nodes[id].Op, g.NodeArgs(id)
	if op == ir.OpWhere {
		args = args[1:3]
	}
	d, ok := CommonDType(g, id, args)
	c := Compute{DType: d, Op: instrOf[op]}
	if o := requireArithmetic(g, args); o != clear || !ok || !computes(d) {
		return c, dtype
	}
	switch op {
	case ir.OpLogicalNot:
		c.DType = ir.Bool
	case ir.OpLogicalAnd, ir.OpLogicalOr, ir.OpLogicalXor:
		c.Form = FormTruth
		return c, clear
	case ir.OpIsNaN:
		if !d.Is(ir.Floats) {
			c.Form = FormFalse
			return c, clear
		}
	case ir.OpPow:
		if g.IsNumber(args[1]) {
			p, is := constant(g, ir.ValueID(args[1].V))
			if !is {
				return c, callPower
			}
			if c.Form = FormPower; p == 0 || p == 1 {
				return c, clear
			}
		}
	case ir.OpSign:
		if d == ir.Bool {
			c.Form = FormOperand
			return c, clear
		}
	case ir.OpFloor, ir.OpCeil, ir.OpTrunc, ir.OpRound:
		if d.Is(ir.Ints) {
			c.Form = FormOperand
			return c, clear
		}
	}
	if d == ir.Bool { // PyTorch's arithmetic of truth
		switch c.Op {
		case kernel.Add:
			c.Op = kernel.Or
		case kernel.Mul:
			c.Op = kernel.And
		}
	}
	if c.Op == 0 || !c.Op.Takes(kernel.ClassOf(uint8(c.DType))) {
		return c, dtype
	}
	return c, clear
}

// constant is the number of an OpConst node.
func constant(g *ir.Graph, v ir.ValueID) (float64, bool) {
	n := &g.Nodes[g.Def[v]]
	if n.Op != ir.OpConst {
		return 0, false
	}
	a := g.Args[n.ArgLo]
	if a.Kind == ir.ArgFloat {
		return math.Float64frombits(uint64(a.V)), true
	}
	return float64(a.V), true
}

// CommonDType is the dtype in which operands of an elementwise own op meet, false if there is none.
func CommonDType(g *ir.Graph, id ir.NodeID, operands []ir.Arg) (ir.DType, bool) {
	var room [3]ir.PromoteOperand
	list := room[:0]
	for _, a := range operands {
		if a.Kind == ir.ArgValue {
			t := g.Types[a.V]
			list = append(list, ir.PromoteOperand{DType: t.DType, Rank: len(t.Dims), Number: g.IsNumber(a)})
		}
	}
	d, err := ir.ResultType(list...)
	if err != nil {
		return ir.Invalid, false
	}
	if ir.Info(g.Nodes[id].Op).DType == ir.DTypeFloat && d.Is(ir.Bools|ir.Ints) {
		d = g.Types[g.Nodes[id].First].DType
	}
	return d, true
}

// instrOf has the ops that are one instruction.
var instrOf = map[ir.Op]kernel.Op{
	ir.OpNeg: kernel.Neg, ir.OpAbs: kernel.Abs, ir.OpSqrt: kernel.Sqrt, ir.OpRsqrt: kernel.Rsqrt, ir.OpExp: kernel.Exp,
	ir.OpLog: kernel.Log, ir.OpSin: kernel.Sin, ir.OpCos: kernel.Cos, ir.OpTanh: kernel.Tanh,
	ir.OpSigmoid: kernel.Sigmoid, ir.OpRelu: kernel.Relu, ir.OpReciprocal: kernel.Reciprocal, ir.OpFloor: kernel.Floor,
	ir.OpCeil: kernel.Ceil, ir.OpSign: kernel.Sign, ir.OpErf: kernel.Erf, ir.OpExp2: kernel.Exp2,
	ir.OpLog2: kernel.Log2, ir.OpLog1p: kernel.Log1p, ir.OpExpm1: kernel.Expm1, ir.OpTrunc: kernel.Trunc,
	ir.OpRound: kernel.Nearest, ir.OpIsNaN: kernel.IsNaN, ir.OpBitNot: kernel.Not, ir.OpLogicalNot: kernel.Not,
	ir.OpWhere: kernel.Where, ir.OpAdd: kernel.Add, ir.OpSub: kernel.Sub, ir.OpMul: kernel.Mul, ir.OpDiv: kernel.Div,
	ir.OpPow: kernel.Pow, ir.OpMaximum: kernel.Maximum, ir.OpMinimum: kernel.Minimum, ir.OpEq: kernel.Eq,
	ir.OpNe: kernel.Ne, ir.OpLt: kernel.Lt, ir.OpLe: kernel.Le, ir.OpGt: kernel.Gt, ir.OpGe: kernel.Ge,
	ir.OpLogicalAnd: kernel.And, ir.OpLogicalOr: kernel.Or, ir.OpLogicalXor: kernel.Xor, ir.OpBitAnd: kernel.And,
	ir.OpBitOr: kernel.Or, ir.OpBitXor: kernel.Xor, ir.OpAtan2: kernel.Atan2, ir.OpFmod: kernel.Fmod,
	ir.OpRemainder: kernel.Remainder, ir.OpFma: kernel.Fma,
}
