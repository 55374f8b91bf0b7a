// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// register is the type of a class.
func register(c kernel.Class) string { return catalogue.Registers[c-1].Memory }

// memory is the type of an element. Floats of 16 bits are types of their own, so that none is taken for an integer.
func memory(dtype uint8) string { return catalogue.DTypeOf(uint64(dtype)).Memory }

// functions are the ops that are one of CUDA's: of doubles, and with an f after it of floats. ATen's kernels call the same.
var functions = map[kernel.Op]string{
	kernel.Abs: "fabs", kernel.Sqrt: "sqrt", kernel.Rsqrt: "rsqrt", kernel.Exp: "exp", kernel.Log: "log", kernel.Sin: "sin", kernel.Cos: "cos",
	kernel.Tanh: "tanh", kernel.Floor: "floor", kernel.Ceil: "ceil", kernel.Erf: "erf", kernel.Exp2: "exp2", kernel.Log2: "log2",
	kernel.Log1p: "log1p", kernel.Expm1: "expm1", kernel.Trunc: "trunc", kernel.Nearest: "rint", kernel.Pow: "pow", kernel.Atan2: "atan2", kernel.Fmod: "fmod",
	kernel.Fma: "fma",
}

// operators are those of C++. Integers wrap, so sums and products of them are unsigned.
var operators = map[kernel.Op]string{
	kernel.Add: "+", kernel.Sub: "-", kernel.Mul: "*", kernel.Div: "/", kernel.Eq: "==", kernel.Ne: "!=", kernel.Lt: "<", kernel.Le: "<=",
	kernel.Gt: ">", kernel.Ge: ">=", kernel.And: "&", kernel.Or: "|", kernel.Xor: "^",
}

// helpers are the ops that are functions of the prelude, by their names there.
var helpers = map[kernel.Op]string{
	kernel.Sigmoid: "sigmoid", kernel.Relu: "relu", kernel.Sign: "sign", kernel.Maximum: "maximum", kernel.Minimum: "minimum",
	kernel.Remainder: "remainder_of",
}

// expression is what an instruction on registers makes of them. helper is called with the name of each function of the prelude.
func expression(n *kernel.Instr, in kernel.Class, args []string, helper func(string) string) string {
	isFloat := in == kernel.F32 || in == kernel.F64
	a := args[0]
	call := func(name string) string { return name + "(" + strings.Join(args, ", ") + ")" }
	switch n.Op {
	case kernel.Cast:
		if n.Class == kernel.B8 {
			return a + " != 0"
		}
		if n.Class == kernel.I64 && isFloat { // what doesn't fit is what the instruction gives, not what a compiler makes of it
			return map[kernel.Class]string{kernel.F32: "__float2ll_rz(", kernel.F64: "__double2ll_rz("}[in] + a + ")"
		}
		return "(" + register(n.Class) + ")" + a
	case kernel.Round:
		return helper("load_of") + "<" + register(n.Class) + ">(" + helper("store_of") + "<" + memory(uint8(n.B)) + ">(" + a + "))"
	case kernel.Neg:
		if !isFloat {
			return "(long long)(0ull - (unsigned long long)" + a + ")"
		}
		return "-" + a
	case kernel.Abs:
		if !isFloat {
			return "(long long)(" + a + " < 0 ? 0ull - (unsigned long long)" + a + " : (unsigned long long)" + a + ")"
		}
	case kernel.Reciprocal:
		return "1 / " + a
	case kernel.IsNaN:
		return a + " != " + a
	case kernel.Not:
		if in == kernel.B8 {
			return "!" + a
		}
		return "~" + a
	case kernel.Where:
		return a + " ? " + args[1] + " : " + args[2]
	case kernel.Add, kernel.Sub, kernel.Mul:
		if in == kernel.I64 {
			return "(long long)((unsigned long long)" + a + " " + operators[n.Op] + " (unsigned long long)" + args[1] + ")"
		}
	}
	if name, ok := helpers[n.Op]; ok {
		return call(helper(name))
	}
	if name, ok := functions[n.Op]; ok {
		if in == kernel.F32 {
			name += "f"
		}
		return call(name)
	}
	return a + " " + operators[n.Op] + " " + args[1]
}

// constant is a number as text: the shortest that is read as these bits, or the bits of what has no text.
func constant(c kernel.Class, bits uint64) string {
	v := math.Float64frombits(bits)
	odd := math.IsNaN(v) || math.IsInf(v, 0)
	switch c {
	case kernel.F32:
		f := float32(v)
		if odd || math.IsInf(float64(f), 0) {
			return fmt.Sprintf("__int_as_float(0x%08x)", math.Float32bits(f))
		}
		return literal(strconv.FormatFloat(float64(f), 'g', -1, 32)) + "f"
	case kernel.F64:
		if odd {
			return fmt.Sprintf("__longlong_as_double(0x%016xll)", bits)
		}
		return literal(strconv.FormatFloat(v, 'g', -1, 64))
	case kernel.B8:
		return strconv.FormatBool(bits != 0)
	}
	return fmt.Sprintf("(long long)0x%xull", bits)
}

// literal makes a number one of floating point.
func literal(s string) string {
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// identity is what a fold begins with.
func identity(op kernel.Op, c kernel.Class) string {
	inf := math.Inf(1)
	least := uint64(math.MaxInt64)
	if op == kernel.Max {
		inf, least = -inf, 1<<63
	}
	switch {
	case op == kernel.Sum:
		return "0"
	case c == kernel.I64:
		return constant(c, least)
	case c == kernel.B8:
		return strconv.FormatBool(op == kernel.Min)
	}
	return constant(c, math.Float64bits(inf))
}
