// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"slices"

	"github.com/mycelya/mycelya/catalogue"
)

// DType is the type of one element. The catalogue has its numbers and its facts.
type DType uint8

// dtypes holds the rows of the catalogue by number; the row of Invalid is empty.
var dtypes = func() (rows [NumDTypes]catalogue.DType) {
	copy(rows[1:], catalogue.DTypes)
	return rows
}()

// Valid reports whether there is a dtype of this number.
func (d DType) Valid() bool { return d > Invalid && d < NumDTypes }

func (d DType) String() string { return dtypes[d].Name }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypes[d].Size }

// ParseDType is the inverse of DType.String.
func ParseDType(s string) (DType, bool) {
	for d := U8; d < NumDTypes; d++ {
		if dtypes[d].Name == s {
			return d, true
		}
	}
	return Invalid, false
}

// Dim is a size, stride or offset: a constant (>= 0) or a symbol of the graph.
type Dim int64

// Const is the dim with a constant value; v must not be negative.
func Const(v int64) Dim { return Dim(v) }

// SymDim is the dim whose value is symbol i of the graph.
func SymDim(i int) Dim { return Dim(-int64(i) - 1) }

// Sym returns the symbol's number, if the dim is one.
func (d Dim) Sym() (int, bool) { return int(-d - 1), d < 0 }

// Type is dtype and geometry of a tensor value. Strides nil means row-major contiguous. The offset is not part of it:
// a value that isn't a view or the region of an update begins at its storage's first byte.
type Type struct {
	DType   DType
	Dims    []Dim
	Strides []Dim
}

// Bytes is a product: the number of bytes of a value without gaps.
func (t Type) Bytes() []Dim { return append(slices.Clone(t.Dims), Const(int64(t.DType.Size()))) }

// Repeats reports whether a geometry has one element in several places, by a stride of 0. PyTorch refuses to write
// such a tensor.
func (g *Graph) Repeats(t Type) bool {
	for i, s := range t.Strides {
		if g.Same(s, Const(0)) && !g.Same(t.Dims[i], Const(1)) {
			return true
		}
	}
	return false
}

// Symbol is a size that is known only at run time.
type Symbol struct {
	Name     string    // as printed: "n", "d7"
	Slot     uint32    // the parameter word that holds it, unless it is a quotient
	First    int64     // the value first seen; a comment, never relied on
	Quotient *Quotient // nil: the symbol is a parameter. Graphs share quotients, and nothing changes them
	// Further parameter words that held the same value. The program serves only calls in which they do.
	Also []uint32
}

// Quotient is one product of earlier sizes over another. It divides evenly in every call that the graph serves.
type Quotient struct {
	Of, By []Dim // Of begins with a symbol; none of By is 0
}
