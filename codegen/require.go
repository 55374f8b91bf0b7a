// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"math"
	"math/bits"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

// Require states that two products of sizes are equal. Its dims are those of package ir with the trace's parameter
// slots as symbols.
type Require struct {
	Left, Right []ir.Dim
}

// requires returns the requirements of a graph.
func requires(g *ir.Graph) []Require {
	out := make([]Require, len(g.Requires))
	for i, r := range g.Requires {
		left, right := g.Reduce(r.Left, r.Right)
		out[i] = Require{slotsOf(g, left), slotsOf(g, right)}
	}
	for _, s := range g.Syms {
		for _, also := range s.Also {
			out = append(out, Require{[]ir.Dim{ir.SymDim(int(s.Slot))}, []ir.Dim{ir.SymDim(int(also))}})
		}
	}
	return out
}

// Holds reports whether the program is valid for a trace with these parameters.
func (c *Compiled) Holds(trace []uint64) bool {
	for _, n := range c.Numbers {
		if !has(trace, n) {
			return false
		}
	}
	for i := range c.Requires {
		if !c.Requires[i].holds(trace) {
			return false
		}
	}
	return true
}

// Broken returns the first requirement that does not hold for these parameters, "" if all hold.
func (c *Compiled) Broken(trace []uint64) string {
	for _, n := range c.Numbers {
		if !has(trace, n) {
			here := n.Value
			if int(n.Slot) < len(trace) {
				here.V = int64(trace[n.Slot])
			}
			return fmt.Sprintf("the number %v, which is %v here", number(n.Value), number(here))
		}
	}
	for i := range c.Requires {
		if r := &c.Requires[i]; !r.holds(trace) {
			return r.String() + ", where s<n> is the size in slot n"
		}
	}
	return ""
}

// has reports whether a trace has a number in its parameter slot.
func has(trace []uint64, n ir.Number) bool {
	return int(n.Slot) < len(trace) && trace[n.Slot] == uint64(n.Value.V)
}

// number is the number that a literal is.
func number(a ir.Arg) any {
	if a.Kind == ir.ArgFloat {
		return math.Float64frombits(uint64(a.V))
	}
	return a.V
}

func (r *Require) holds(trace []uint64) bool {
	left, ok := product(r.Left, trace)
	right, ok2 := product(r.Right, trace)
	return ok && ok2 && left == right
}

// product is false if a size is missing, or if the product exceeds 64 bits: no memory has so many elements.
func product(dims []ir.Dim, trace []uint64) (uint64, bool) {
	n := uint64(1)
	for _, d := range dims {
		v := uint64(d)
		if slot, ok := d.Sym(); ok {
			if slot >= len(trace) {
				return 0, false
			}
			v = trace[slot]
		}
		var hi uint64
		if hi, n = bits.Mul64(n, v); hi != 0 {
			return 0, false
		}
	}
	return n, true
}

// String is "p3 * p4 = p7", with the trace's parameter slots.
func (r *Require) String() string {
	side := func(dims []ir.Dim) string {
		if len(dims) == 0 {
			return "1"
		}
		words := make([]string, len(dims))
		for i, d := range dims {
			words[i] = slotString(d)
		}
		return strings.Join(words, " * ")
	}
	return side(r.Left) + " = " + side(r.Right)
}
