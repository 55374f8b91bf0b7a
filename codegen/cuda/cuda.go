// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package cuda prints kernels as CUDA C++ without #include, and plans their launches. The text depends only on a kernel
// and a Variant. Sizes, strides, addresses and the device are words of a launch. The package never compiles or runs
// anything.
package cuda

import (
	"fmt"
	"math"
	"slices"

	"github.com/mycelya/mycelya/kernel"
)

// Options are NVRTC's options beside the architecture; they are part of the meaning of a text. ATen's kernels round
// each op; without --fmad=false a product and a sum would be rounded only once. The other options are NVRTC's defaults.
var Options = [...]string{
	"--std=c++17", "--diag-suppress=177", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true",
}

// Device holds the properties of a GPU that a launch depends on.
type Device struct {
	SMs int // streaming multiprocessors
}

// Instance is one run of a kernel: the sizes of all index spaces, one space after the other, the operands and the
// numbers.
type Instance struct {
	Sizes    []int64
	Operands []Operand
	Numbers  []Number
}

// Operand is a tensor: its buffer, the address of its first element, and its strides in elements. Operands of different
// buffers share no memory.
type Operand struct {
	Buffer  uint32
	Address uint64
	Strides []int64
	Taken   int64 // the size of the dim from which a TAKE takes
}

// Number is a Python number, or the element of a tensor without dims.
type Number struct {
	Integral bool
	Real     float64
	Whole    int64
}

// NumberWord is a word of struct Args that holds a number in the bits of a register class.
type NumberWord struct {
	Word, Number int
	Class        kernel.Class
}

// Bits returns a number as the bits of a register class.
func (n Number) Bits(c kernel.Class) uint64 {
	switch {
	case c == kernel.F32 && n.Integral:
		return uint64(math.Float32bits(float32(n.Whole)))
	case c == kernel.F32:
		return uint64(math.Float32bits(float32(n.Real)))
	case c == kernel.F64 && n.Integral:
		return math.Float64bits(float64(n.Whole))
	case c == kernel.F64:
		return math.Float64bits(n.Real)
	case c == kernel.B8 && (n.Integral && n.Whole != 0 || !n.Integral && n.Real != 0):
		return 1
	case c == kernel.B8:
		return 0
	case n.Integral:
		return uint64(n.Whole)
	case n.Real >= -0x1p63 && n.Real < 0x1p63:
		return uint64(int64(n.Real))
	}
	return 1 << 63 // the result for numbers that don't fit, as in csrc/exec
}

// Launch is one execution of an entry of a variant's text.
type Launch struct {
	Variant Variant
	Entry   string
	Grid    uint32    // blocks
	Block   [2]uint32 // threads
	// Args are the words of struct Args, by instance. Without Variant.Table there is one struct, and it is the entry's
	// only parameter, by value. With it, the structs lie in memory one after the other. The entry then has two parameters,
	// the address of the structs and the address of Chunks, which has one word per block: the instance, and the number of
	// the block within it.
	Args   [][]uint64
	Chunks []uint64
	// Instances are the instances of the structs. Pointers are the operands whose addresses are the first words of each
	// struct, in order. A caller that plans with offsets in buffers adds the buffers' addresses there before the launch.
	// These addresses must be multiples of 16, or the plan is wrong.
	Instances []int
	Pointers  []int
	// Numbers are the words of each struct that hold a number of its instance. A later call with other numbers replaces
	// only these words.
	Numbers []NumberWord
	// Scratch is the size in bytes of the memory that the launches of a variant share beside operands. Unless it is 0, the
	// caller adds the memory's address to the word ScratchWord of each struct.
	Scratch     int64
	ScratchWord int
}

// maxParameters is the limit of parameters by value, in bytes: CUDA's limit before version 12.1, and in every version
// before compute capability 7.0.
const maxParameters = 4096

// MaxPoints limits the points of an instance. Then its blocks are fewer than 2^31, the limit of a launch, for every
// shape.
const MaxPoints = 1 << 36

// maxTogether limits the points of the instances that share a launch: Chunks has one word for each of their blocks.
const maxTogether = 1 << 28

// Launches returns the launches, in order, that run a kernel on instances. Sizes must fit: an operand has the sizes of
// the dims along which it runs, all index spaces have the same number of points, at most MaxPoints, and no product
// overflows. Instances must not depend on one another.
func Launches(k *kernel.Kernel, instances []Instance, d Device) []Launch {
	type group struct {
		variant Variant
		at      []*choice
		points  int64
	}
	c := analyse(k)
	var groups []group
	for i := range instances {
		p := c.choose(&instances[i], d)
		if p == nil {
			continue // it has no points
		}
		p.index = i
		points := int64(1)
		for _, size := range instances[i].Sizes[:k.Spaces[0]] {
			points *= size
		}
		j := slices.IndexFunc(groups, func(g group) bool {
			return g.variant.equal(&p.variant) && g.points+points <= maxTogether
		})
		if j < 0 {
			j = len(groups)
			groups = append(groups, group{variant: p.variant})
		}
		groups[j].variant.Apart = groups[j].variant.Apart && p.variant.Apart
		groups[j].at = append(groups[j].at, p)
		groups[j].points += points
	}
	var out []Launch
	for _, g := range groups {
		out = append(out, c.launch(g.variant, g.at, d)...)
	}
	return out
}

// sizeOf is the size in bytes of an element of a dtype (MYC_*).
func sizeOf(dtype uint8) int64 {
	switch dtype {
	case 1, 2, 12:
		return 1
	case 3, 6, 13, 18:
		return 2
	case 4, 7, 19:
		return 4
	case 5, 8:
		return 8
	}
	panic(fmt.Sprintf("BUG: no kernel has an operand of dtype %d", dtype))
}
