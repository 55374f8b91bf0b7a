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

// register returns the C++ type of a register class.
func register(c kernel.Class) string { return catalogue.Registers[c-1].Memory }

// memory returns the C++ type of an element. 16-bit floats have struct types, so that C++ never treats one as an
// integer.
func memory(dtype uint8) string { return catalogue.DTypeOf(uint64(dtype)).Memory }

// expression returns the C++ expression of an instruction on its registers. It calls helper with the name of each
// function of the prelude that it needs; helper returns the name to print.
func expression(n *kernel.Instr, in kernel.Class, args []string, helper func(string) string) string {
	switch n.Op {
	case kernel.Cast:
		return cast(n.Class, in, args[0])
	case kernel.Round:
		stored := helper("store_of") + "<" + memory(uint8(n.B)) + ">(" + args[0] + ")"
		return helper("load_of") + "<" + register(n.Class) + ">(" + stored + ")"
	}
	return expand(n.Op.Row().CUDA.Of(in.Set()), in, args, helper)
}

// cast converts a register between classes.
func cast(to, from kernel.Class, a string) string {
	switch {
	case to == kernel.B8:
		return a + " != 0"
	case to == kernel.I64 && from == kernel.F32: // C++ leaves results that do not fit undefined; the instruction does not
		return "__float2ll_rz(" + a + ")"
	case to == kernel.I64 && from == kernel.F64:
		return "__double2ll_rz(" + a + ")"
	}
	return "(" + register(to) + ")" + a
}

// expand fills in an expression of the catalogue: registers, the suffix of f32 functions, and functions of the prelude.
func expand(text string, in kernel.Class, args []string, helper func(string) string) string {
	var b strings.Builder
	for i := 0; i < len(text); i++ {
		switch c := text[i]; c {
		case '$':
			i++
			switch {
			case text[i] != 'f':
				b.WriteString(args[text[i]-'a'])
			case in == kernel.F32:
				b.WriteByte('f')
			}
		case '@':
			end := i + strings.IndexByte(text[i:], '(')
			b.WriteString(helper(text[i+1 : end]))
			i = end - 1
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// constant returns a number as C++ text: the shortest decimal text with these bits, or the bits of a NaN or an
// infinity.
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

// literal makes the text of a number a floating-point literal.
func literal(s string) string {
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// identity returns the value with which a reduction begins.
func identity(op kernel.Op, c kernel.Class) string {
	inf, whole := math.Inf(1), uint64(math.MaxInt64)
	start := op.Row().Start
	if start == catalogue.IdentityLowest {
		inf, whole = -inf, 1<<63
	}
	switch {
	case start == catalogue.IdentityZero:
		return "0"
	case c == kernel.I64:
		return constant(c, whole)
	case c == kernel.B8:
		return strconv.FormatBool(start == catalogue.IdentityHighest)
	}
	return constant(c, math.Float64bits(inf))
}
