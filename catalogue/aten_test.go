// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package catalogue

import (
	"bytes"
	"os"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestATenRows walks every row: the row is not empty, its cells agree with each other, and PyTorch has the operators
// that it names. The generator of schemas.txt fails for a name that PyTorch doesn't have.
func TestATenRows(t *testing.T) {
	has := func(name string) bool { return name == "" || FindSchema(name) != nil }
	for _, r := range ATenRows() {
		said := r
		said.Name = ""
		assert.False(t, reflect.ValueOf(said).IsZero(), "the row of %s says nothing", r.Name)
		for _, name := range []string{r.Name, r.InPlace, r.Out, r.Capture.Infers, r.Capture.RecordedAs} {
			assert.True(t, has(name), "%s names %s, which schemas.txt lacks: run make gen", r.Name, name)
		}
		assert.True(t, r.Elementwise || r.InPlace == "" && r.Out == "", "%s is not elementwise", r.Name)
		assert.Equal(t, r.Args != "", len(r.Cases) > 0, "%s: names of arguments are for cases", r.Name)
		for _, c := range r.Cases {
			assert.Contains(t, c.Body, "->", r.Name)
		}
		assert.False(t, r.Whole != "" && r.Point != NoPoint, "%s stays whole for one reason", r.Name)
		assert.True(t, r.Fills == NoFill || r.Overwrites, "%s fills its operand, so it overwrites it", r.Name)
		testCapture(t, r.Name, r.Capture)
	}
	for _, names := range failing {
		for _, name := range names {
			assert.True(t, has(name), "%s may fail, but no program calls it", name)
		}
	}
}

// testCapture checks the cells of the recorder: names of C++ functions are declared in record/Special.h.
func testCapture(t *testing.T, name string, c Capture) {
	assert.LessOrEqual(t, c.Handling, Decompose, name)
	assert.LessOrEqual(t, c.Shortcut, ShortBiasedProduct, name)
	assert.Zero(t, c.Facts&^AllFacts, name)
	assert.True(t, c.IfTraining == 0 || c.RunningStats != 0, name)
	assert.Equal(t, c.RecordedAs != "", c.Classes != "", "%s: a rewritten operator has classes of its arguments", name)
	assert.True(t, c.Rewrites == "" || c.RecordedAs != "", name)
	assert.Regexp(t, regexp.MustCompile(`^[-lsvb]*$`), c.Classes, name)
}

// TestFacts: each fact has a name, each is used, and no two share one.
func TestFacts(t *testing.T) {
	var used Facts
	for _, r := range ATenRows() {
		used |= r.Capture.Facts
	}
	for _, f := range Families() {
		used |= f.Facts
	}
	for _, g := range FactRows() {
		used |= g.Facts
	}
	assert.Equal(t, AllFacts, used, "a fact that no row has")
	names := AllFacts.Names()
	assert.Len(t, names, numFacts)
	seen := map[string]bool{}
	for _, n := range names {
		assert.False(t, n == "" || seen[n], n)
		seen[n] = true
	}
}

// TestFactRows: an operator is in one row, and the recorder knows it.
func TestFactRows(t *testing.T) {
	table, err := os.ReadFile("../csrc/device/record/optable.inc")
	require.NoError(t, err)
	seen := map[string]bool{"copy_": true} // the recorder writes it by hand
	for _, g := range FactRows() {
		for _, name := range strings.Fields(g.Names) {
			assert.True(t, name == "copy_" || !seen[name], "%s is listed twice", name)
			assert.True(t, seen[name] || bytes.Contains(table, []byte(`("`+name+`", "`)), "%s is not recorded", name)
			seen[name] = true
		}
	}
}

func TestLists(t *testing.T) {
	assert.True(t, Lists("aten::_foreach_add.List"))
	assert.True(t, Lists("aten::_fused_adam_"))
	assert.False(t, Lists("aten::add.Tensor"))
}

func TestFindATen(t *testing.T) {
	assert.Nil(t, FindATen("aten::no_such_operator"))
	r := FindATen("aten::add.Tensor")
	require.NotNil(t, r)
	assert.Equal(t, "aten::add.out", r.Out)
}
