// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package decomp

import "github.com/mycelya/mycelya/catalogue"

// Draw is the operator that draws the mask of a dropout. Its arguments are the sizes, the probability of false and the
// strides, which are empty if the mask is contiguous. A kernel reads the mask.
const Draw = "mycelya::dropout_mask"

const (
	// Iota is the operator that gives the position of each element along a dim. Its arguments are the sizes and the dim.
	Iota = "mycelya::iota"
	// Take is the operator that takes elements of its first operand at the positions in the second, along a dim. The
	// result has the sizes to which the two broadcast, where the first has size 1 along that dim. A kernel clamps a
	// position that is none.
	Take = "mycelya::take"
	// Within is the operator that fails if an element of its first operand is neither a position along a dim of a size,
	// its second operand, nor its third.
	Within = "mycelya::expect_within"
	// Nonzero is the operator that fails if an element of its first operand is 0 after a conversion to a dtype, its second
	// operand.
	Nonzero = "mycelya::expect_nonzero"
	// NonzeroNumber is Nonzero for a number.
	NonzeroNumber = "mycelya::expect_nonzero.number"
)

// Checks reports whether an operator checks values in front of the kernels. If it fails, the group's operators run, and
// say what is wrong.
func Checks(name string) bool { return name == Within || name == Nonzero || name == NonzeroNumber }

// operator is the catalogue's row of an operator, with its cases parsed.
type operator struct {
	*catalogue.ATen
	rules []*rule // in the order of the cases
}

// operators has the operators that Expand writes out, or has a reason to leave whole. Nothing changes it after it is
// made.
var operators = func() map[string]*operator {
	m := map[string]*operator{}
	rows := catalogue.ATenRows()
	for i := range rows {
		r := &rows[i]
		if len(r.Cases) == 0 && r.Whole == "" && r.Point == catalogue.NoPoint && r.Alpha == 0 {
			continue
		}
		o := &operator{ATen: r}
		for _, c := range r.Cases {
			o.rules = append(o.rules, read(r, c))
		}
		m[r.Name] = o
	}
	return m
}()

// unknown stands for all other operators.
var unknown = &operator{ATen: &catalogue.ATen{}}

// find is the entry of an operator. It is never nil.
func find(name string) *operator {
	if o := operators[name]; o != nil {
		return o
	}
	return unknown
}
