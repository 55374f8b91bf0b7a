// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"fmt"
	"math/bits"

	"github.com/mycelya/mycelya/kernel"
)

// field is a word of struct Args: its declaration, and its value for an instance.
type field struct {
	declared string
	value    func(p *choice) uint64
}

// arguments are the fields of a variant, in order. The text and the words come from this one list.
type arguments struct {
	fields   []field
	pointers []int // the operands whose addresses are the first words
	numbers  []NumberWord
	scratch  int // the word of the scratch memory's address
}

func (a *arguments) words(p *choice) []uint64 {
	out := make([]uint64, len(a.fields))
	for i, f := range a.fields {
		out[i] = f.value(p)
	}
	return out
}

// divisor returns the word by which `over` divides. For a dividend m < 2^31, m / n is (high 32 bits of m*low + m) >>
// shift.
func divisor(n int64) uint64 {
	shift := bits.Len64(uint64(n - 1))
	low := (uint64(1)<<32*(uint64(1)<<shift-uint64(n)))/uint64(n) + 1
	return low&math32 | uint64(shift)<<32
}

const math32 = 1<<32 - 1

func layout(c *code, v *Variant) *arguments {
	a := &arguments{}
	add := func(value func(p *choice) uint64, format string, args ...any) {
		a.fields = append(a.fields, field{fmt.Sprintf(format, args...), value})
	}
	number := func(value func(p *choice) int64, format string, args ...any) {
		add(func(p *choice) uint64 { return uint64(value(p)) }, "long long "+format, args...)
	}
	for i, o := range c.k.Operands {
		if !c.touched(i) {
			continue
		}
		qualifier := ""
		if o.Access&kernel.Write == 0 {
			qualifier = "const "
		}
		a.pointers = append(a.pointers, i)
		add(func(p *choice) uint64 { return p.at.Operands[i].Address }, "%s%s* a%d", qualifier, memory(o.DType), i)
	}
	for i := range c.k.Operands {
		if c.taken(i) && c.touched(i) {
			number(func(p *choice) int64 { return p.at.Operands[i].Taken }, "t%d", i)
			number(func(p *choice) int64 { return p.at.Operands[i].Strides[c.k.Operands[i].Takes()] }, "p%d", i)
		}
	}
	for i, n := range c.k.Code {
		if c.needed[i] && n.Op == kernel.Number {
			a.numbers = append(a.numbers, NumberWord{len(a.fields), int(n.A), n.Class})
			add(func(p *choice) uint64 { return p.at.Numbers[n.A].Bits(n.Class) }, "unsigned long long c%d", i)
		}
	}
	if c.k.Reduced > 0 {
		number(func(p *choice) int64 { return p.walks[0].points }, "rows")
		number(func(p *choice) int64 { return p.walks[1].points }, "n")
		if v.Split {
			number(func(p *choice) int64 { return p.parts }, "parts")
			number(func(p *choice) int64 { return p.part }, "part")
			a.scratch = len(a.fields)
			add(func(p *choice) uint64 { return uint64(p.scratch) }, "unsigned long long scratch")
		}
	} else {
		number(func(p *choice) int64 { return p.walks[0].points }, "n")
	}
	for w, shape := range v.Walks {
		first := 1 // the outermost dim needs no division
		if v.Template == Transpose {
			first = 0
		}
		for d := first; d < shape.Rank; d++ {
			number(func(p *choice) int64 { return p.walks[w].sizes[d] }, "n%d_%d", w, d)
			if !v.Wide && v.Template != Transpose { // Transpose divides once per block, not in each thread
				add(func(p *choice) uint64 { return divisor(p.walks[w].sizes[d]) }, "unsigned long long m%d_%d", w, d)
			}
		}
		for i, letters := range shape.Ways {
			if letters == "-" {
				continue
			}
			for d := range shape.Rank {
				if letters[d] == 's' {
					number(func(p *choice) int64 { return p.walks[w].strides[i][d] }, "s%d_%d_%d", i, w, d)
				}
			}
		}
	}
	return a
}

// touched reports whether the code loads or stores an operand.
func (c *code) touched(operand int) bool {
	for i, n := range c.k.Code {
		memory := n.Op == kernel.Load || n.Op == kernel.Take || n.Op == kernel.Store
		if c.needed[i] && memory && int(n.A) == operand {
			return true
		}
	}
	return false
}
