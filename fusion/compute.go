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
	FormPower               // FormInstr, unless lowering has a faster form for the constant exponent
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
	if o != computed {
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
	info := ir.Info(op)
	c := Compute{DType: d}
	if info.Kernel != nil {
		c.Op = kernel.Op(info.Kernel.Number)
	}
	if o := requireArithmetic(g, args); o != computed || !ok || !computes(d) {
		return c, dtype
	}
	if (op == ir.OpMul || op == ir.OpDiv) && (d == ir.F16 || d == ir.BF16) && rounds(g, args[1], d) {
		return c, dtype
	}
	switch {
	case info.Logical && len(args) == 1:
		c.DType = ir.Bool
	case info.Logical:
		c.Form = FormTruth
		return c, computed
	case op == ir.OpIsNaN && !d.Is(ir.Floats):
		c.Form = FormFalse
		return c, computed
	case op == ir.OpPow && g.IsNumber(args[1]):
		p, is := constant(g, ir.ValueID(args[1].V))
		if !is {
			return c, callPower
		}
		if c.Form = FormPower; p == 0 || p == 1 {
			return c, computed
		}
	case d.Is(info.Identity):
		c.Form = FormOperand
		return c, computed
	}
	if d == ir.Bool && info.OnBool != nil { // PyTorch's arithmetic of truth
		c.Op = kernel.Op(info.OnBool.Number)
	}
	if c.Op == 0 || !c.Op.Takes(kernel.ClassOf(uint8(c.DType))) {
		return c, dtype
	}
	return c, computed
}

// rounds reports whether an operand is a 0-dim tensor that a kernel would round to a 16-bit dtype. ATen multiplies and
// divides by such a tensor in f32, without rounding it first, so its operator does.
func rounds(g *ir.Graph, a ir.Arg, d ir.DType) bool {
	t := g.Types[a.V]
	return len(t.Dims) == 0 && t.DType != d && t.DType.Is(ir.Floats) && !g.IsNumber(a)
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
