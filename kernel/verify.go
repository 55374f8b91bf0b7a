// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernel

import (
	"fmt"
	"math"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
)

// Verify returns what is wrong with a kernel. A kernel that it accepts refers only to existing registers, operands and
// dims, and writes each element of a written operand once. It does not check bounds: before the executor runs a kernel,
// it compares each operand's sizes with those of the dims along which the operand runs.
func (k *Kernel) Verify() error {
	if err := k.header(); err != nil {
		return err
	}
	v := verifier{k: k, level: make([]level, len(k.Code)), stored: make([]bool, len(k.Operands))}
	for i := range k.Code {
		if err := v.instr(i); err != nil {
			return fmt.Errorf("kernel: instruction %d, %s: %w", i, k.Code[i].Op, err)
		}
	}
	for i, o := range k.Operands {
		if o.Access&Write != 0 && !v.stored[i] {
			return fmt.Errorf("kernel: operand %d is never written", i)
		}
	}
	return nil
}

func (k *Kernel) header() error {
	for _, c := range []struct {
		what     string
		n, limit int
	}{
		{"index spaces", len(k.Spaces), MaxSpaces}, {"operands", len(k.Operands), MaxOperands},
		{"numbers", k.Numbers, MaxNumbers}, {"instructions", len(k.Code), MaxInstrs},
	} {
		if c.n > c.limit {
			return fmt.Errorf("kernel: %d %s, at most %d are allowed", c.n, c.what, c.limit)
		}
	}
	if len(k.Spaces) == 0 || len(k.Code) == 0 {
		return fmt.Errorf("kernel: it has no index space or no code")
	}
	for i, rank := range k.Spaces {
		if rank < 0 || rank > MaxRank {
			return fmt.Errorf("kernel: index space %d has %d dims, at most %d are allowed", i, rank, MaxRank)
		}
	}
	switch {
	case k.Reduced < 0 || k.Reduced > k.Spaces[0]:
		return fmt.Errorf("kernel: %d dims of %d are reduced", k.Reduced, k.Spaces[0])
	case k.Reduced > 0 && len(k.Spaces) > 1:
		return fmt.Errorf("kernel: it reduces, and has %d index spaces", len(k.Spaces))
	}
	for i, o := range k.Operands {
		if err := k.operand(o); err != nil {
			return fmt.Errorf("kernel: operand %d: %w", i, err)
		}
	}
	return nil
}

func (k *Kernel) operand(o Operand) error {
	switch {
	case ClassOf(o.DType) == 0:
		return fmt.Errorf("kernels don't compute in dtype %d", o.DType)
	case o.Access == 0 || o.Access > Read|Write:
		return fmt.Errorf("access %d", o.Access)
	case o.Space < 0 || o.Space >= len(k.Spaces):
		return fmt.Errorf("index space %d of %d", o.Space, len(k.Spaces))
	case len(o.Along) > MaxRank:
		return fmt.Errorf("%d dims", len(o.Along))
	}
	if at := o.Takes(); at >= 0 && (o.Access != Read || o.Space != 0 || slices.Contains(o.Along[at+1:], Taken)) {
		return fmt.Errorf("it is taken from in index space %d, with access %d, along %v", o.Space, o.Access, o.Along)
	}
	var seen [MaxRank]bool
	for i, d := range o.Along {
		if d < Taken || int(d) >= k.Spaces[o.Space] {
			return fmt.Errorf("dim %d runs along dim %d of %d", i, d, k.Spaces[o.Space])
		}
		if d >= 0 && seen[d] {
			return fmt.Errorf("two dims run along dim %d", d)
		}
		if d >= 0 {
			seen[d] = true
		}
	}
	return nil
}

// level is the number of values of a register.
type level uint8

const (
	perKernel level = iota // one
	perRow                 // one for the points that are reduced together
	perPoint
)

type verifier struct {
	k      *Kernel
	level  []level
	stored []bool
}

// runs counts the kept dims and the reduced dims along which an operand runs.
func (k *Kernel) runs(o Operand) (kept, reduced int) {
	for _, d := range o.Along {
		switch {
		case d < 0:
		case int(d) >= k.Spaces[o.Space]-k.Reduced:
			reduced++
		default:
			kept++
		}
	}
	return kept, reduced
}

func (v *verifier) instr(i int) error {
	k := v.k
	n := &k.Code[i]
	r := n.Op.Row()
	if r == nil {
		return fmt.Errorf("there is no op %d", n.Op)
	}
	args := [3]uint64{n.A, n.B, n.C}
	used := r.Operands
	switch n.Op {
	case Store: // its register is the second word
		return v.store(i)
	case Take:
		return v.take(i)
	case Load, Const, Index:
		used = 1
	case Round, Number:
		used = 2
	}
	for j := used; j < 3; j++ {
		if args[j] != 0 {
			return fmt.Errorf("word %d is %d, and means nothing", j, args[j])
		}
	}
	if n.Class < F32 || n.Class > B8 {
		return fmt.Errorf("class %d", n.Class)
	}
	for j := range r.Operands {
		if args[j] >= uint64(i) || k.Code[args[j]].Op == Store {
			return fmt.Errorf("register %d is not made before it", args[j])
		}
		v.level[i] = max(v.level[i], v.level[args[j]])
	}
	return v.classes(i, n, r)
}

// classes checks an instruction other than a store. Its registers exist.
func (v *verifier) classes(i int, n *Instr, r *catalogue.Instr) error {
	switch r.Group {
	case catalogue.GroupMemory, catalogue.GroupValue:
		return v.leaf(i, n)
	case catalogue.GroupConvert:
		from := v.k.Code[n.A].Class
		if n.Op == Cast {
			return nil
		}
		if n.B >= uint64(len(dtypes)) || !dtypes[n.B].rounds || dtypes[n.B].class != from || n.Class != from {
			return fmt.Errorf("a %s to dtype %d, as %s", from, n.B, n.Class)
		}
		return nil
	case catalogue.GroupReduce:
		if v.k.Reduced == 0 {
			return fmt.Errorf("the kernel reduces no dims")
		}
		v.level[i] = perRow
	}
	return v.operands(n, r)
}

// leaf checks an instruction without registers.
func (v *verifier) leaf(i int, n *Instr) error {
	k := v.k
	switch n.Op {
	case Load:
		if n.A >= uint64(len(k.Operands)) {
			return fmt.Errorf("operand %d of %d", n.A, len(k.Operands))
		}
		if k.Operands[n.A].Takes() >= 0 {
			return fmt.Errorf("operand %d has no position", n.A)
		}
		return v.load(i)
	case Number:
		if n.A >= uint64(k.Numbers) {
			return fmt.Errorf("number %d of %d", n.A, k.Numbers)
		}
		if n.B > math.MaxUint8 || n.B != 0 && ClassOf(uint8(n.B)) == 0 {
			return fmt.Errorf("a number of dtype %d", n.B)
		}
		return nil
	case Const:
		if n.Class == B8 && n.A > 1 {
			return fmt.Errorf("a b8 of %d", n.A)
		}
		return nil
	case Count:
		if n.Class == B8 || k.Reduced == 0 {
			return fmt.Errorf("as %s in a kernel that reduces %d dims", n.Class, k.Reduced)
		}
		return nil
	case Index:
		if n.Class != I64 || n.A >= uint64(k.Spaces[0]) {
			return fmt.Errorf("dim %d of %d as %s", n.A, k.Spaces[0], n.Class)
		}
		v.level[i] = perPoint
		if k.Reduced > 0 && int(n.A) < k.Spaces[0]-k.Reduced {
			v.level[i] = perRow
		}
		return nil
	}
	return nil
}

// load checks that an instruction may read an operand, and sets its level.
func (v *verifier) load(i int) error {
	k, n := v.k, &v.k.Code[i]
	o := k.Operands[n.A]
	if o.Access&Read == 0 {
		return fmt.Errorf("operand %d is only written", n.A)
	}
	if c := ClassOf(o.DType); c != n.Class {
		return fmt.Errorf("operand %d is loaded as %s, not %s", n.A, c, n.Class)
	}
	v.level[i] = perPoint
	if _, reduced := k.runs(o); k.Reduced > 0 && reduced == 0 {
		v.level[i] = perRow
	}
	return nil
}

// take checks a TAKE: its operand, and the register that has the position.
func (v *verifier) take(i int) error {
	k, n := v.k, &v.k.Code[i]
	switch {
	case n.A >= uint64(len(k.Operands)):
		return fmt.Errorf("operand %d of %d", n.A, len(k.Operands))
	case k.Operands[n.A].Takes() < 0:
		return fmt.Errorf("operand %d has no dim to take from", n.A)
	case n.B >= uint64(i) || k.Code[n.B].Op == Store:
		return fmt.Errorf("register %d is not made before it", n.B)
	case k.Code[n.B].Class != I64 || n.C != 0:
		return fmt.Errorf("a position of %s, word 2 is %d", k.Code[n.B].Class, n.C)
	}
	if err := v.load(i); err != nil {
		return err
	}
	v.level[i] = max(v.level[i], v.level[n.B])
	return nil
}

// operands checks the classes of the registers that an instruction uses, and its own.
func (v *verifier) operands(n *Instr, r *catalogue.Instr) error {
	of := func(reg uint64) Class { return v.k.Code[reg].Class }
	operands := []uint64{n.A, n.B, n.C}[:r.Operands]
	if r.Condition {
		if of(n.A) != B8 {
			return fmt.Errorf("its condition is %s", of(n.A))
		}
		operands = operands[1:]
	}
	want := of(operands[0])
	for _, o := range operands[1:] {
		if of(o) != want {
			return fmt.Errorf("of %s and %s", want, of(o))
		}
	}
	if !n.Op.Takes(want) {
		return fmt.Errorf("of %s", want)
	}
	if r.Truth {
		want = B8
	}
	if n.Class != want {
		return fmt.Errorf("makes %s, not %s", want, n.Class)
	}
	return nil
}

func (v *verifier) store(i int) error {
	k, n := v.k, &v.k.Code[i]
	switch {
	case n.A >= uint64(len(k.Operands)):
		return fmt.Errorf("operand %d of %d", n.A, len(k.Operands))
	case n.B >= uint64(i) || k.Code[n.B].Op == Store:
		return fmt.Errorf("register %d is not made before it", n.B)
	case n.C != 0:
		return fmt.Errorf("word 2 is %d, and means nothing", n.C)
	}
	o := k.Operands[n.A]
	switch c := ClassOf(o.DType); {
	case o.Access&Write == 0:
		return fmt.Errorf("operand %d is only read", n.A)
	case v.stored[n.A]:
		return fmt.Errorf("operand %d is written twice", n.A)
	case c != k.Code[n.B].Class || c != n.Class:
		return fmt.Errorf("operand %d is %s, the register %s, the class %s", n.A, c, k.Code[n.B].Class, n.Class)
	}
	v.stored[n.A] = true
	kept, reduced := k.runs(o)
	if kept < k.Spaces[o.Space]-k.Reduced || reduced < k.Reduced && (reduced > 0 || v.level[n.B] == perPoint) {
		return fmt.Errorf("points would write one element of operand %d together", n.A)
	}
	return nil
}
