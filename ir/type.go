// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// DType is the type of one element. The numbers are those of csrc/abi/mycelya.h.
type DType uint8

const (
	Invalid DType = iota
	U8
	I8
	I16
	I32
	I64
	F16
	F32
	F64
	C32
	C64
	C128
	Bool
	BF16
	F8E5M2
	F8E4M3FN
	F8E5M2FNUZ
	F8E4M3FNUZ
	U16
	U32
	U64
	NumDTypes
)

var dtypes = [NumDTypes]struct {
	name string
	size int // bytes
}{
	U8: {"u8", 1}, I8: {"i8", 1}, I16: {"i16", 2}, I32: {"i32", 4}, I64: {"i64", 8},
	F16: {"f16", 2}, F32: {"f32", 4}, F64: {"f64", 8},
	C32: {"c32", 4}, C64: {"c64", 8}, C128: {"c128", 16},
	Bool: {"b8", 1}, BF16: {"bf16", 2},
	F8E5M2: {"f8e5m2", 1}, F8E4M3FN: {"f8e4m3fn", 1}, F8E5M2FNUZ: {"f8e5m2fnuz", 1}, F8E4M3FNUZ: {"f8e4m3fnuz", 1},
	U16: {"u16", 2}, U32: {"u32", 4}, U64: {"u64", 8},
}

func (d DType) Valid() bool    { return d > Invalid && d < NumDTypes }
func (d DType) String() string { return dtypes[d].name }

// Size is the number of bytes of one element.
func (d DType) Size() int { return dtypes[d].size }

// ParseDType is the inverse of DType.String.
func ParseDType(s string) (DType, bool) {
	for d := U8; d < NumDTypes; d++ {
		if dtypes[d].name == s {
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

// Repeats says whether a geometry has one element in several places, by a stride of 0. PyTorch refuses to write such a tensor.
func (g *Graph) Repeats(t Type) bool {
	for i, s := range t.Strides {
		if g.Same(s, Const(0)) && !g.Same(t.Dims[i], Const(1)) {
			return true
		}
	}
	return false
}

// Symbol is a size that is only known at run time.
type Symbol struct {
	Name     string    // as printed: "n", "d7"
	Slot     uint32    // parameter word that holds it, if it is no quotient
	First    int64     // the value first seen; a comment, never relied on
	Quotient *Quotient // nil: it is a parameter. Graphs share it, and nothing changes it
}

// Quotient is one product of earlier sizes over another. It has no rest in any call that the graph is for.
type Quotient struct {
	Of, By []Dim // Of begins with a symbol; none of By is 0
}
