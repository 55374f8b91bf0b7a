// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
)

// TestOvers compares each row with the schemas: the arguments of the form, the first one written, or one more at the
// end.
func TestOvers(t *testing.T) {
	schema := func(name string) []string {
		args, s := schemaOf(t, name)
		for i, a := range s.Arguments {
			if a.Write {
				args[i] = "written " + args[i]
			}
		}
		return args
	}
	for _, r := range opRows {
		for _, f := range r.ATen {
			row := catalogue.FindATen(f.Name)
			is := row != nil && row.Elementwise
			assert.Equal(t, r.Kind == KindElementwise || r.Kind == KindFill, is, "%s has no row, or one too many", f.Name)
		}
	}
	names := func(args []string) (out []string) {
		for _, a := range args {
			out = append(out, strings.Replace(a[strings.LastIndexByte(a, ' ')+1:], "fill_value", "value", 1))
		}
		return out
	}
	kind := func(a string) string { return a[:strings.IndexByte(a, ' ')] }
	for _, o := range catalogue.ATenRows() {
		form := o.Name
		if !o.Elementwise {
			continue
		}
		args := schema(form)
		if form == "aten::full_like" {
			args = args[:2]
		}
		if o.InPlace != "" {
			self := schema(o.InPlace)
			assert.Equal(t, "written Tensor self", self[0], o.InPlace)
			assert.Equal(t, names(args), names(self), o.InPlace)
			for i := range args[1:] {
				assert.Equal(t, kind(args[1+i]), kind(self[1+i]), o.InPlace)
			}
		}
		if o.Out != "" {
			out := schema(o.Out)
			assert.Equal(t, args, out[:len(args)], o.Out)
			assert.Contains(t, []string{"written Tensor out", "written Tensor grad_input"},
				strings.Join(out[len(args):], ", "), o.Out)
		}
		for _, name := range []string{o.InPlace, o.Out} {
			if back, out := FormOver(name); name != "" && form != "aten::full_like" {
				assert.Equal(t, form, back)
				assert.Equal(t, name == o.Out, out)
			}
		}
	}
	form, out := FormOver("aten::fill_.Scalar")
	assert.True(t, form == "aten::fill.Scalar" && !out)
	form, _ = FormOver("aten::add.Tensor")
	assert.Empty(t, form)
}

// TestToATenOver: nodes that can write an operand, and those that can't.
func TestToATenOver(t *testing.T) {
	g, err := Parse(`graph g r {
  dims n=4@0
  %0: f32[n] = input 0
  %1: f32[n] = input 1
  %2: f64[] = param 1
  %3: f32[] = scalar 2
  %4: b8[n] = input 2
}`)
	require.NoError(t, err)
	for _, c := range []struct {
		op      Op
		args    []ValueID
		operand int
		want    string
	}{
		{OpNeg, []ValueID{0}, 0, "aten::neg_ 0!"},
		{OpAdd, []ValueID{0, 1}, 0, "aten::add_.Tensor 0! 1 1"},
		{OpAdd, []ValueID{0, 1}, 1, "aten::add.out 0 1 1 1!"},
		{OpSub, []ValueID{2, 0}, 0, ""}, // a number has no memory
		{OpSub, []ValueID{2, 0}, 1, "aten::sub.out 2 0 1 0!"},
		{OpSub, []ValueID{3, 0}, 0, ""}, // nor has a scalar
		{OpSub, []ValueID{0, 2}, 0, "aten::sub_.Tensor 0! 2 1"},
		{OpPow, []ValueID{0, 2}, 0, "aten::pow_.Scalar 0! 2"},
		{OpPow, []ValueID{2, 0}, 1, "aten::pow.Scalar_out 2 0 0!"},
		{OpPow, []ValueID{0, 1}, 1, "aten::pow.Tensor_Tensor_out 0 1 1!"},
		{OpMaximum, []ValueID{0, 1}, 0, "aten::maximum.out 0 1 0!"},
		{OpMul, []ValueID{0, 0}, 1, "aten::mul.out 0 0 0!"},
		{OpEq, []ValueID{4, 2}, 0, "aten::eq_.Scalar 4! 2"},
		{OpIsNaN, []ValueID{4}, 0, ""},
		{OpFma, []ValueID{0, 1, 1}, 0, "aten::addcmul.out 1 0 1 1 0!"},
		{OpFma, []ValueID{0, 1, 0}, 1, "aten::addcmul.out 0 0 1 1 1!"},
		{OpFma, []ValueID{0, 0, 1}, 2, "aten::addcmul_ 1! 0 0 1"},
		{OpWhere, []ValueID{4, 0, 1}, 2, "aten::where.self_out 4 0 1 1!"},
		{OpFill, []ValueID{0, 2}, 0, "aten::fill_.Scalar 0! 2"},
		{OpCast, []ValueID{0}, 0, ""},
		{OpCopy, []ValueID{0}, 0, ""},
	} {
		var args []Arg
		for _, v := range c.args {
			args = append(args, Value(v))
		}
		id := g.Add(Node{Op: c.op}, args, []Type{g.Types[c.args[0]]})
		name, over := ToATenOver(g, id, c.operand)
		got := name
		for _, a := range over {
			got += " " + string(rune('0'+a.V))
			if a.Write {
				got += "!"
			}
		}
		assert.Equal(t, c.want, got)
	}

	call := func(flags Flags, name string, results int, args ...Arg) string {
		id := g.Add(Node{Op: OpCall, Name: g.Intern(name), Flags: flags}, args, make([]Type, results))
		over, _ := ToATenOver(g, id, 0)
		return over
	}
	written := Value(0)
	written.Write = true
	assert.Equal(t, "aten::threshold_backward.grad_input",
		call(0, "aten::threshold_backward", 1, Value(0), Value(1), Value(2)))
	assert.Equal(t, "aten::add_.Tensor", call(0, "aten::add.Tensor", 1, Value(0), Value(1), Value(2)))
	assert.Empty(t, call(0, "aten::add.Tensor", 2, written, Value(1), Value(2)))
	assert.Empty(t, call(FlagRNG, "aten::gelu", 1, Value(0)))
	assert.Empty(t, call(0, "aten::mm", 1, Value(0), Value(1)))
	assert.Empty(t, call(0, "aten::gelu", 1, Value(2)))
	assert.Empty(t, call(0, "aten::gelu", 1, Arg{Kind: ArgNone}))
}
