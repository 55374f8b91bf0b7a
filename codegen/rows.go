// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
)

// A group's graph has two of the rows that operators on lists compute alike (fusion/rows.go). The kernel of the first
// is lowered once, and bound to the memory of each other row.

// row is a row that the group's graph does not have.
type row struct {
	class *fusion.Class
	index int // among the rows that are left out
}

// inRow is a value of the group's graph, or what it stands for in a row that is left out.
type inRow struct {
	v   ir.ValueID
	row int // one more than its index, 0 for the group's graph
}

const differs = "the rows of its lists differ in memory"

// differ reports whether a row that is left out has its results in other locations than the row that stands for it: the
// operators have overwritten a result of one and not of the other.
func (f *group) differ() bool {
	p := f.p
	var before *fusion.Class
	for i := range f.Loops {
		c := f.Class(i)
		if c == nil || c == before {
			continue
		}
		before = c
		for _, left := range f.Leaves {
			for _, own := range left {
				for k := range c.Rows() {
					other, ok := c.Value(own, k)
					if !ok {
						break
					}
					if (p.at[own].buffer < 0) != (p.at[other].buffer < 0) {
						return true
					}
				}
			}
		}
	}
	return false
}

// of is a value of the row that is being bound.
func (f *group) of(v ir.ValueID) inRow {
	if f.row == nil {
		return inRow{v, 0}
	}
	return inRow{v, f.row.index + 1}
}

// own is what a value of the given graph is in the row that is being bound.
func (f *group) own(v ir.ValueID) (ir.ValueID, refused) {
	if f.row == nil {
		return v, ""
	}
	own, ok := f.row.class.Value(v, f.row.index)
	if !ok {
		return f.shared(v)
	}
	return own, ""
}

// shared is a value that all rows read. A loop of a row writes no such value.
func (f *group) shared(v ir.ValueID) (ir.ValueID, refused) {
	if !f.p.reads.has(int(v)) {
		return v, differs
	}
	return v, ""
}

// dim is what a size of the group's graph is in the row that is being bound.
func (f *group) dim(d ir.Dim) ir.Dim {
	if f.row != nil {
		d, _ = f.row.class.Dim(d, f.row.index)
	}
	return d
}

func (f *group) dims(dims []ir.Dim) []ir.Dim {
	if f.row == nil {
		return dims
	}
	out := make([]ir.Dim, len(dims))
	for i, d := range dims {
		out[i] = f.dim(f.Graph.Find(d))
	}
	return out
}

func (f *group) typ(t ir.Type) ir.Type {
	if f.row == nil {
		return t
	}
	out := ir.Type{DType: t.DType, Dims: f.dims(t.Dims)}
	if t.Strides != nil {
		out.Strides = f.dims(t.Strides)
	}
	return out
}

// number is the node of a number of the group's graph in the row that is being bound.
func (f *group) number(v ir.ValueID) *ir.Node {
	if f.row != nil {
		if own, ok := f.Number(v); ok {
			own, _ = f.row.class.Value(own, f.row.index)
			return &f.p.g.Nodes[f.p.g.Def[own]]
		}
	}
	return &f.Graph.Nodes[f.Graph.Def[v]]
}
