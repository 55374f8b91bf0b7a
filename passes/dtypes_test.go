// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

// These tests apply rules to all dtypes, and compare where they fire with a table.

// fires returns the rules that a pass applies to a graph with these statements.
func fires(t *testing.T, pass, statements string) string {
	t.Helper()
	g, err := ir.Parse("graph f.py:1 read {\n  dims a=4@0\n" + statements + "\n}")
	require.NoError(t, err, statements)
	var w firings
	_, err = Run(g, Options{Check: 1, Only: []string{pass}, Observer: &w})
	require.NoError(t, err, statements)
	return strings.Join(w, " ")
}

// firings is an observer that keeps the names of the rules.
type firings []string

func (w *firings) Begin(*ir.Graph)                {}
func (w *firings) Crash(string, *ir.Graph, error) {}
func (w *firings) After(_ string, _ bool, fired []Firing, _ *ir.Graph, _ time.Duration) {
	for _, f := range fired {
		*w = append(*w, f.Rule)
	}
}

func everyDType() (all []ir.DType) {
	for d := ir.DType(1); d < ir.NumDTypes; d++ {
		all = append(all, d)
	}
	return all
}

func TestHolds(t *testing.T) {
	held := map[string]string{
		"f64": "f32 f16 bf16 i32 u32 i16 u16 i8 u8 b8", "f32": "f16 bf16 i16 u16 i8 u8 b8", "f16": "b8", "bf16": "b8",
		"i64": "i32 u32 i16 u16 i8 u8 b8", "i32": "i16 u16 i8 u8 b8", "i16": "i8 u8 b8", "i8": "b8",
		"u64": "u32 u16 u8 b8", "u32": "u16 u8 b8", "u16": "u8 b8", "u8": "b8",
	}
	for _, wide := range everyDType() {
		for _, narrow := range everyDType() {
			want := wide == narrow || strings.Contains(" "+held[wide.String()]+" ", " "+narrow.String()+" ")
			assert.Equal(t, want, holds(wide, narrow), "%s holds %s", wide, narrow)
		}
	}
}

// numbers are the ways in which a graph has a number: statements that make %9, and its text as an argument.
var numbers = []struct{ kind, statement, argument string }{
	{"f64", "%9: f64[] = param 1", "%9"}, {"i64", "%9: i64[] = param 1", "%9"}, {"b8", "%9: b8[] = param 1", "%9"},
	{"c128", "%9: c128[] = param 1", "%9"}, {"tensor", "%9: f32[] = input 9", "%9"},
	{"f64", "", "0.5"}, {"i64", "", "3"}, {"zero", "", "0"}, {"f64", "", "0.0"}, {"b8", "", "true"}, {"b8", "", "false"},
}

// TestFillOfEmpty: the number is of the storage's kind.
func TestFillOfEmpty(t *testing.T) {
	for _, d := range everyDType() {
		for _, n := range numbers {
			if n.kind == "tensor" {
				continue // no call of PyTorch takes it
			}
			text := fmt.Sprintf("%s\n%%0: %s[a] = empty\n%%1: %s[a] = aten.fill_.Scalar %%0! %s\noutput %%1 -> s1",
				n.statement, d, d, n.argument)
			want := d.Is(ir.Floats) && n.kind != "c128" || d == ir.I64 && (n.kind == "i64") ||
				d.Is(ir.Numbers) && n.kind == "zero"
			assert.Equal(t, map[bool]string{true: "FillOfEmpty"}[want], fires(t, "fold", text), text)
		}
	}
	const add = "%0: f32[a] = empty\n%1: f32[a] = aten.add_.Scalar %0! 2 1\noutput %1 -> s1"
	assert.Empty(t, fires(t, "fold", add), "it reads the storage")
}

// TestFillsNothing: the first argument of a call may be a literal, whose number is no value's.
func TestFillsNothing(t *testing.T) {
	assert.Empty(t, fires(t, "fold", "%0: f32[a] = my.call 1000000\noutput %0 -> s1"))
}

// TestNumberOfFill: the number is rounded once, by the fill or by the op.
func TestNumberOfFill(t *testing.T) {
	for _, d := range everyDType() {
		if !d.Is(ir.Numbers) || d == ir.U16 || d == ir.U32 || d == ir.U64 {
			continue // the op does not take it
		}
		for _, n := range numbers {
			if n.statement == "" || n.kind == "tensor" {
				continue // the number of a fill is a value
			}
			text := fmt.Sprintf("%s\n%%0: %s[a] = input 0\n%%1: %s[a] = fill %%0 %%9\n%%2: %s[a] = add %%0 %%1\n"+
				"output %%2 -> s1", n.statement, d, d, d)
			want := (d == ir.F32 || d == ir.F64) && (n.kind == "f64" || n.kind == "i64") || d == ir.I64 && n.kind == "i64"
			assert.Equal(t, map[bool]string{true: "NumberOfFill"}[want], fires(t, "fold", text), text)
		}
	}
	const numbers = "%0: f64[] = input 0\n%1: f64[] = param 1\n%2: f64[] = fill %0 %1\n%3: f64[] = add %2 %1\n" +
		"output %3 -> s1"
	assert.Empty(t, fires(t, "fold", numbers), "no operand would be a tensor")
}

// TestPowers: the base is a float of the result's dtype.
func TestPowers(t *testing.T) {
	for _, d := range everyDType() {
		if !d.Is(ir.Numbers) {
			continue
		}
		for exponent, rule := range map[string]string{
			"1": "PowOfOne", "1.0": "PowOfOne", "2": "PowOfTwo", "2.0": "PowOfTwo", "3": "", "0.5": "", "1.5": "", "2.5": "",
			"true": "", "-1": "", fmt.Sprint(math.Float64bits(1)): "", fmt.Sprint(math.Float64bits(2)): "",
		} {
			text := fmt.Sprintf("%%0: %s[a] = input 0\n%%1: %s[a] = aten.pow.Tensor_Scalar %%0 %s\noutput %%1 -> s1",
				d, d, exponent)
			if !d.Is(ir.Floats) {
				rule = ""
			}
			assert.Equal(t, rule, fires(t, "fold", text), text)
		}
		other := ir.F64
		if d == other {
			other = ir.F32
		}
		text := fmt.Sprintf("%%0: %s[a] = input 0\n%%1: %s[a] = aten.pow.Tensor_Scalar %%0 2.0\noutput %%1 -> s1", d, other)
		assert.Empty(t, fires(t, "fold", text), text)
	}
	for _, statement := range []string{
		"%1: f32[a] = aten.mul.Scalar %0 2", "%1: f32[a] = aten.pow.Tensor_Scalar %0 2 !effect",
		"%1: f32[a] = other.pow %0 2",
	} {
		assert.Empty(t, fires(t, "fold", "%0: f32[a] = input 0\n"+statement+"\noutput %1 -> s1"), statement)
	}
}

// TestKnownNumbers: an op and a number, which a literal or a parameter has. Nothing else does.
func TestKnownNumbers(t *testing.T) {
	statement := func(number string) string {
		kind := "i64"
		if strings.ContainsAny(number, ".e") {
			kind = "f64"
		}
		return "%9: " + kind + "[] = " + number
	}
	check := func(want string, d ir.DType, number, expression string) {
		text := fmt.Sprintf("%%0: %s[a] = input 0\n%s\n%%1: %s[a] = %s\n%%2: %s[a] = relu %%1\noutput %%2 -> s2",
			d, number, d, expression, d)
		assert.Equal(t, want, fires(t, "fold", text), text)
	}
	for _, d := range []ir.DType{ir.F16, ir.BF16, ir.F32, ir.F64, ir.I64, ir.I32, ir.U8} {
		float, integer := "", ""
		if d.Is(ir.Floats) {
			float = "DivOfPower"
		} else {
			integer = "AddOfZero"
		}
		for _, source := range []string{"const", "param 1"} {
			for _, n := range []struct{ number, expression, want string }{
				{"0", "add %0 %9", integer}, {"0", "add %9 %0", integer}, {"1", "add %0 %9", ""},
				{"0", "sub %0 %9", "SubOfZero"}, {"0", "sub %9 %0", ""}, {"1", "sub %0 %9", ""},
				{"1", "mul %0 %9", "MulOfOne"}, {"1", "mul %9 %0", "MulOfOne"}, {"0", "mul %0 %9", ""},
				{"-1", "mul %0 %9", ""},
			} {
				check(n.want, d, statement(source+" "+n.number), n.expression)
			}
			if float == "" {
				continue
			}
			for _, n := range []struct{ number, expression, want string }{
				{"0.0", "sub %0 %9", "SubOfZero"}, {"-0.0", "sub %0 %9", ""}, {"1.0", "mul %9 %0", "MulOfOne"},
				{"1.0", "div %0 %9", "DivOfOne"}, {"1", "div %9 %0", ""}, {"-1.0", "div %0 %9", ""}, {"0.0", "add %0 %9", ""},
				{"4", "div %0 %9", float}, {"-0.5", "div %0 %9", float}, {"4.0", "div %9 %0", ""}, {"3.0", "div %0 %9", ""},
				{"0.0", "div %0 %9", ""}, {"6.103515625e-05", "div %0 %9", float}, {"16384.0", "div %0 %9", float},
			} {
				check(n.want, d, statement(source+" "+n.number), n.expression)
			}
		}
		for exponent, allowed := range map[int][]ir.DType{
			15: {ir.BF16, ir.F32, ir.F64}, 126: {ir.BF16, ir.F32, ir.F64}, 127: {ir.F64}, 1022: {ir.F64}, 1023: {},
		} {
			for _, e := range []int{exponent, -exponent} {
				want := map[bool]string{true: "DivOfPower"}[slices.Contains(allowed, d)]
				if float != "" {
					number := strconv.FormatFloat(math.Ldexp(1, e), 'e', -1, 64)
					check(want, d, "%9: f64[] = param 1 "+number, "div %0 %9")
				}
			}
		}
		for _, unknown := range []string{"i64[] = param 1", "i64[] = scalar 1", "i64[] = input 1", "b8[] = const true"} {
			check("", d, "%9: "+unknown, "mul %0 %9")
		}
	}
	for _, d := range []ir.DType{ir.U16, ir.U32, ir.U64} {
		for _, expression := range []string{"add %0 %9", "sub %0 %9"} {
			check("", d, statement("const 0"), expression)
		}
		check("", d, statement("const 1"), "mul %0 %9")
	}
	const b8 = "%0: b8[a] = input 0\n%9: i64[] = const 0\n%1: i64[a] = add %0 %9\noutput %1 -> s1"
	assert.Empty(t, fires(t, "fold", b8), "the sum is no b8")
	const call = "%0: f32[a] = input 0\n%9: f32[] = my.call 0.0\n%1: f32[a] = sub %0 %9\noutput %1 -> s1"
	assert.Empty(t, fires(t, "fold", call), "the number is an argument of what makes the operand")
}

// TestSigns: the rules about neg and abs, for each dtype, and beside an operand of another dtype.
func TestSigns(t *testing.T) {
	for _, d := range everyDType() {
		if !d.Is(ir.Reals|ir.Complexes) || d == ir.U16 || d == ir.U32 || d == ir.U64 {
			continue // neg does not take it
		}
		signed := map[bool]string{true: "AbsOfNeg"}[d.Is(ir.Floats) || d.Signed()]
		if !d.Is(ir.Complexes) {
			text := fmt.Sprintf("%%0: %s[a] = input 0\n%%1: %s[a] = neg %%0\n%%2: %s[a] = abs %%1\noutput %%2 -> s1", d, d, d)
			assert.Equal(t, signed, fires(t, "simplify", text), text)
		}
		for _, other := range everyDType() {
			result, err := ir.ResultType(ir.PromoteOperand{DType: d, Rank: 1}, ir.PromoteOperand{DType: other, Rank: 1})
			if !other.Is(ir.Numbers) || err != nil {
				continue
			}
			for op, rule := range map[string]string{"add": "AddOfNeg", "sub": "SubOfNeg"} {
				if op == "sub" && other == ir.Bool {
					continue
				}
				text := fmt.Sprintf("%%0: %s[a] = input 0\n%%1: %s[a] = input 1\n%%2: %s[a] = neg %%1\n%%3: %s[a] = %s %%0 %%2\n"+
					"output %%3 -> s1", other, d, d, result, op)
				if result != d || d.Is(ir.Complexes) || other == ir.Bool {
					rule = ""
				}
				assert.Equal(t, rule, fires(t, "simplify", text), text)
			}
		}
	}
}

// TestRulesAreSwitchedOff: a word of MYCELYA_PASSES leaves a rule out, and no other.
func TestRulesAreSwitchedOff(t *testing.T) {
	const text = "graph f.py:1 read {\n  %0: f32[2] = input 0\n  %1: f32[2] = neg %0\n  %2: f32[2] = neg %1\n" +
		"  output %2 -> s1\n}\n"
	for word, want := range map[string]int{"": 1, "-NegOfNeg": 3, "-AbsOfNeg": 1} {
		s, err := ParseSpec(word)
		require.NoError(t, err)
		for _, spec := range []*Spec{s, nil} {
			out, err := Run(parse(t, text), Options{Spec: spec})
			require.NoError(t, err)
			if spec == nil {
				want = 1
			}
			assert.Len(t, out.Nodes, want, word)
		}
	}
}
