// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
)

// TestOpTable checks that the cells of each row agree with each other.
func TestOpTable(t *testing.T) {
	require.Len(t, opRows, int(NumOps)-1)
	forms := map[string]bool{}
	for i, r := range opRows {
		require.Equal(t, Op(i+1), r.Op, "row %d, %s: the order of rows is that of the constants", i, r.Name)
		assert.True(t, isIdent(r.Name), r.Name)
		assert.Equal(t, r.Op.Own(), len(r.ATen) > 0, "%s: own ops, and only they, have a form", r.Name)
		assert.Equal(t, r.Op.Own(), r.Kind >= KindElementwise, r.Name)
		assert.Equal(t, r.Kind == KindReduce, strings.HasSuffix(r.Args, " dims keepdim"), r.Name)
		assert.Equal(t, r.Kind == KindReduce, r.Shape == ShapeReduce, r.Name)
		if r.Op.Own() {
			assert.NotEmpty(t, r.ATenCall(), r.Name)
			assert.Equal(t, Pure, r.Pure, r.Name)
			assert.Equal(t, r.Arity() > 1 && r.Kind == KindElementwise, r.Shape == ShapeBroadcast, r.Name)
		}
		for _, f := range r.ATen {
			assert.False(t, forms[f.Name], "%s is a form of two ops", f.Name)
			forms[f.Name] = true
		}
		op, ok := ByName(r.Name)
		assert.True(t, ok && op == r.Op, r.Name)
		assert.Equal(t, r.Name, r.Op.String())
		assert.Same(t, &opRows[i], Info(r.Op))
	}
	assert.Panics(t, func() { Info(NumOps) })
	assert.Panics(t, func() { Info(OpInvalid) })
	_, ok := ByName("nothing")
	assert.False(t, ok)
	op, ok := ByATen("aten::rsub.Scalar")
	assert.True(t, ok && op == OpSub)
	assert.Equal(t, "aten::eq.Tensor", Info(OpEq).ATenCall())
	assert.Equal(t, "aten::full_like", Info(OpFill).ATenCall())
	assert.Equal(t, "", Info(OpView).ATenCall())
}

// schemaOf gives the arguments "Tensor self" of an operator, and its schema.
func schemaOf(t testing.TB, name string) (args []string, s *catalogue.Schema) {
	s = catalogue.FindSchema(name)
	require.NotNil(t, s, "catalogue/schemas.txt lacks %s: run make gen", name)
	for _, a := range s.Arguments {
		args = append(args, a.String()+" "+a.Name)
	}
	return args, s
}

// TestForms compares the words of each form with the types of the operator's schema.
func TestForms(t *testing.T) {
	types := map[string]string{
		"0": "^(Tensor|Scalar) ", "1": "^(Tensor|Scalar) ", "2": "^Tensor ", "0#": "^Scalar ", "1#": "^Scalar ",
		"one": "^Scalar (alpha|value)$", "dims": `^int\[\]\?? dim`, "keepdim": "^bool keepdim",
		"dtype":   `^ScalarType\? dtype`,
		"asdtype": `^ScalarType\? dtype`, "layout": `^Layout\? layout`, "device": `^Device\? device`,
		"pin": `^bool\? pin_memory`, "nonblock": "^bool non_blocking", "preserve": `^MemoryFormat\? `,
		"memfmt": `^MemoryFormat\? `,
	}
	for _, r := range opRows {
		for _, f := range r.ATen {
			args, s := schemaOf(t, f.Name)
			words := strings.Fields(strings.TrimSuffix(f.Args, " all"))
			require.Len(t, words, len(args), f.Name)
			for i, w := range words {
				require.Contains(t, types, w, f.Name)
				assert.Regexp(t, types[w], args[i], "%s: argument %d is %q", f.Name, i, w)
			}
			assert.Len(t, s.Results, 1, f.Name)
		}
	}
}

// TestCallDims compares the patterns of the catalogue with the operators' schemas.
func TestCallDims(t *testing.T) {
	for _, row := range catalogue.ATenRows() {
		name, d := row.Name, dimsByName[row.Name]
		if row.Dims == "" {
			continue
		}
		types, s := schemaOf(t, name)
		args, results := d.args, d.results
		require.LessOrEqual(t, len(args), len(types), name)
		require.LessOrEqual(t, len(results), len(s.Results), name)
		for i, p := range args {
			switch p {
			case "_":
			case "#":
				assert.Regexp(t, `^int\[\] size`, types[i], name)
			default:
				assert.Regexp(t, `^Tensor\??\s`, types[i], "%s: argument %d has the pattern %s", name, i, p)
			}
		}
		for _, p := range append(args, results...) {
			assert.Regexp(t, `^(\*|#|_|[a-z?]*[A-Z+]?[a-z?]*\|?)$`, p, name)
		}
	}
}

// TestGrammar: the grammar names every dtype, every kind of list and every word that begins an argument.
func TestGrammar(t *testing.T) {
	data, err := os.ReadFile("grammar.txt")
	require.NoError(t, err)
	for d := U8; d < NumDTypes; d++ {
		assert.Contains(t, string(data), "'"+d.String()+"'")
	}
	for _, s := range listNames[1:] {
		assert.Contains(t, string(data), "'"+s+"'")
	}
	for w := range reserved {
		assert.Contains(t, string(data), w)
	}
}
