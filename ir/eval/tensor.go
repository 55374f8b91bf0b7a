// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package eval gives each own op of ir its meaning in plain loops over bytes: the reference that every other execution
// is compared with. It never runs fast, and never calls an operator that has no own op.
package eval

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"

	"github.com/mycelya/mycelya/ir"
)

// Tensor is a strided window on a storage. Sizes, strides and the offset count elements of DType; Data is the whole
// storage, little endian, and may be shared with other windows.
type Tensor struct {
	DType   ir.DType
	Sizes   []int64
	Strides []int64
	Offset  int64
	Data    []byte
}

// limit bounds the elements of a storage, so that a wrong size is an error and not an exhausted machine.
const limit = 1 << 26

// Contiguous gives the row-major strides of sizes.
func Contiguous(sizes []int64) []int64 {
	strides := make([]int64, len(sizes))
	step := int64(1)
	for i := len(sizes) - 1; i >= 0; i-- {
		strides[i] = step
		step *= max(sizes[i], 1)
	}
	return strides
}

// New makes a tensor of zeros at the start of a storage just large enough. Strides nil: contiguous.
func New(d ir.DType, sizes, strides []int64) (*Tensor, error) {
	t := &Tensor{DType: d, Sizes: sizes, Strides: strides}
	if strides == nil {
		t.Strides = Contiguous(sizes)
	}
	end, err := t.end()
	if err != nil {
		return nil, err
	}
	t.Data = make([]byte, end)
	return t, nil
}

// Numel is the number of elements.
func (t *Tensor) Numel() int64 {
	n := int64(1)
	for _, s := range t.Sizes {
		n *= s
	}
	return n
}

// end is the number of bytes that the storage needs at least.
func (t *Tensor) end() (int64, error) {
	if !t.DType.Valid() {
		return 0, fmt.Errorf("dtype %d is invalid", t.DType)
	}
	if len(t.Sizes) != len(t.Strides) {
		return 0, fmt.Errorf("%d sizes and %d strides", len(t.Sizes), len(t.Strides))
	}
	numel, last := uint64(1), uint64(t.Offset)
	over := t.Offset < 0
	for i, n := range t.Sizes {
		s := t.Strides[i]
		if n < 0 || s < 0 {
			return 0, fmt.Errorf("negative size or stride in %v, %v", t.Sizes, t.Strides)
		}
		hi, step := bits.Mul64(uint64(max(n-1, 0)), uint64(s))
		hi2, product := bits.Mul64(numel, uint64(n))
		over = over || hi|hi2 != 0 || step > limit || product > limit
		numel, last = product, last+step
		over = over || last > limit
	}
	switch {
	case over:
		return 0, fmt.Errorf("sizes %v with strides %v and offset %d are out of bounds", t.Sizes, t.Strides, t.Offset)
	case numel == 0:
		return 0, nil
	}
	return int64(last+1) * int64(t.DType.Size()), nil
}

// check makes sure that every element lies in the storage.
func (t *Tensor) check() error {
	end, err := t.end()
	if err == nil && end > int64(len(t.Data)) {
		err = fmt.Errorf("the elements end at byte %d of a storage of %d", end, len(t.Data))
	}
	return err
}

// each calls f with the position of each element in row-major order, in elements from the start of the storage.
func (t *Tensor) each(f func(pos int64)) { each(t.Sizes, t.Strides, t.Offset, f) }

func each(sizes, strides []int64, pos int64, f func(pos int64)) {
	if len(sizes) == 0 {
		f(pos)
		return
	}
	for range sizes[0] {
		each(sizes[1:], strides[1:], pos, f)
		pos += strides[0]
	}
}

// positions lists where the elements are, in row-major order of sizes, to which the tensor broadcasts.
func (t *Tensor) positions(sizes []int64) ([]int64, error) {
	skip := len(sizes) - len(t.Sizes)
	if skip < 0 {
		return nil, fmt.Errorf("sizes %v do not broadcast to %v", t.Sizes, sizes)
	}
	strides := make([]int64, len(sizes))
	for i, n := range t.Sizes {
		switch n {
		case sizes[skip+i]:
			strides[skip+i] = t.Strides[i]
		case 1:
		default:
			return nil, fmt.Errorf("sizes %v do not broadcast to %v", t.Sizes, sizes)
		}
	}
	out := make([]int64, 0, product(sizes))
	each(sizes, strides, t.Offset, func(pos int64) { out = append(out, pos) })
	return out, nil
}

func product(sizes []int64) int64 {
	n := int64(1)
	for _, s := range sizes {
		n *= s
	}
	return n
}

// elem is one element. Integers and bools are in i, sign or zero extended (u64: its bits); floats in f; complex in c.
type elem struct {
	i int64
	f float64
	c complex128
}

// load reads the element at a position.
func (t *Tensor) load(pos int64) elem {
	b := t.Data[pos*int64(t.DType.Size()):]
	le := binary.LittleEndian
	switch t.DType {
	case ir.Bool:
		if b[0] != 0 {
			return elem{i: 1}
		}
		return elem{}
	case ir.U8:
		return elem{i: int64(b[0])}
	case ir.I8:
		return elem{i: int64(int8(b[0]))}
	case ir.I16:
		return elem{i: int64(int16(le.Uint16(b)))}
	case ir.U16:
		return elem{i: int64(le.Uint16(b))}
	case ir.I32:
		return elem{i: int64(int32(le.Uint32(b)))}
	case ir.U32:
		return elem{i: int64(le.Uint32(b))}
	case ir.I64, ir.U64:
		return elem{i: int64(le.Uint64(b))}
	case ir.F16:
		return elem{f: fromHalf(le.Uint16(b))}
	case ir.BF16:
		return elem{f: float64(math.Float32frombits(uint32(le.Uint16(b)) << 16))}
	case ir.F32:
		return elem{f: float64(math.Float32frombits(le.Uint32(b)))}
	case ir.F64:
		return elem{f: math.Float64frombits(le.Uint64(b))}
	case ir.C64:
		return elem{c: complex(float64(math.Float32frombits(le.Uint32(b))), float64(math.Float32frombits(le.Uint32(b[4:]))))}
	case ir.C128:
		return elem{c: complex(math.Float64frombits(le.Uint64(b)), math.Float64frombits(le.Uint64(b[8:])))}
	}
	panic("BUG: no arithmetic in " + t.DType.String())
}

// store writes an element that fit() has rounded to the dtype.
func (t *Tensor) store(pos int64, e elem) {
	b := t.Data[pos*int64(t.DType.Size()):]
	le := binary.LittleEndian
	switch t.DType {
	case ir.Bool, ir.U8, ir.I8:
		b[0] = byte(e.i)
	case ir.I16, ir.U16:
		le.PutUint16(b, uint16(e.i))
	case ir.I32, ir.U32:
		le.PutUint32(b, uint32(e.i))
	case ir.I64, ir.U64:
		le.PutUint64(b, uint64(e.i))
	case ir.F16:
		le.PutUint16(b, toHalf(e.f))
	case ir.BF16:
		le.PutUint16(b, toBrain(e.f))
	case ir.F32:
		le.PutUint32(b, math.Float32bits(float32(e.f)))
	case ir.F64:
		le.PutUint64(b, math.Float64bits(e.f))
	case ir.C64:
		le.PutUint32(b, math.Float32bits(float32(real(e.c))))
		le.PutUint32(b[4:], math.Float32bits(float32(imag(e.c))))
	case ir.C128:
		le.PutUint64(b, math.Float64bits(real(e.c)))
		le.PutUint64(b[8:], math.Float64bits(imag(e.c)))
	default:
		panic("BUG: no arithmetic in " + t.DType.String())
	}
}

// arithmetic reports whether elements of the dtype can be loaded: the formats that are only stored cannot.
func arithmetic(d ir.DType) bool { return d.Is(ir.Numbers) && d != ir.C32 }
