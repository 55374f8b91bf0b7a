// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernel

import (
	"fmt"
	"math"

	"github.com/mycelya/mycelya/catalogue"
)

// Limits of a kernel.
const (
	MaxRank     = 16
	MaxFrames   = 8
	MaxInstrs   = 4096
	MaxOperands = 1024
	MaxNumbers  = 1024
)

// Verify says what is wrong with a kernel: after it nothing in the code can name what is not there, and each point of an operand that is
// written is written once. That indices stay within operands is for sizes to say: each operand's are those of the dims along which it
// runs, or the kernel doesn't run.
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
	}{{"frames", len(k.Frames), MaxFrames}, {"operands", len(k.Operands), MaxOperands}, {"numbers", k.Numbers, MaxNumbers}, {"instructions", len(k.Code), MaxInstrs}} {
		if c.n > c.limit {
			return fmt.Errorf("kernel: %d %s, at most %d are allowed", c.n, c.what, c.limit)
		}
	}
	if len(k.Frames) == 0 || len(k.Code) == 0 {
		return fmt.Errorf("kernel: it has no frame or no code")
	}
	for i, rank := range k.Frames {
		if rank < 0 || rank > MaxRank {
			return fmt.Errorf("kernel: frame %d has %d dims, at most %d are allowed", i, rank, MaxRank)
		}
	}
	switch {
	case k.Folded < 0 || k.Folded > k.Frames[0]:
		return fmt.Errorf("kernel: %d dims of %d are folded", k.Folded, k.Frames[0])
	case k.Folded > 0 && len(k.Frames) > 1:
		return fmt.Errorf("kernel: it folds, and has %d frames", len(k.Frames))
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
	case o.Frame < 0 || o.Frame >= len(k.Frames):
		return fmt.Errorf("frame %d of %d", o.Frame, len(k.Frames))
	case len(o.Along) > MaxRank:
		return fmt.Errorf("%d dims", len(o.Along))
	}
	var seen [MaxRank]bool
	for i, d := range o.Along {
		if d < -1 || int(d) >= k.Frames[o.Frame] {
			return fmt.Errorf("dim %d runs along dim %d of %d", i, d, k.Frames[o.Frame])
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

// level is along what a register varies.
type level uint8

const (
	perKernel level = iota
	perRow          // one for all that is folded together
	perPoint
)

type verifier struct {
	k      *Kernel
	level  []level
	stored []bool
}

// runs says along which of the dims that are kept, and of those that are folded, an operand runs.
func (k *Kernel) runs(o Operand) (kept, folded int) {
	for _, d := range o.Along {
		switch {
		case d < 0:
		case int(d) >= k.Frames[o.Frame]-k.Folded:
			folded++
		default:
			kept++
		}
	}
	return kept, folded
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

// classes checks an instruction that is no store and whose registers are there.
func (v *verifier) classes(i int, n *Instr, r *catalogue.Instr) error {
	k := v.k
	of := func(reg uint64) Class { return k.Code[reg].Class }
	switch n.Op {
	case Load:
		if n.A >= uint64(len(k.Operands)) {
			return fmt.Errorf("operand %d of %d", n.A, len(k.Operands))
		}
		o := k.Operands[n.A]
		if o.Access&Read == 0 {
			return fmt.Errorf("operand %d is only written", n.A)
		}
		if c := ClassOf(o.DType); c != n.Class {
			return fmt.Errorf("operand %d is loaded as %s, not %s", n.A, c, n.Class)
		}
		v.level[i] = perPoint
		if _, folded := k.runs(o); k.Folded > 0 && folded == 0 {
			v.level[i] = perRow
		}
		return nil
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
		if n.Class == B8 || k.Folded == 0 {
			return fmt.Errorf("as %s in a kernel that folds %d dims", n.Class, k.Folded)
		}
		return nil
	case Index:
		if n.Class != I64 || n.A >= uint64(k.Frames[0]) {
			return fmt.Errorf("dim %d of %d as %s", n.A, k.Frames[0], n.Class)
		}
		v.level[i] = perPoint
		if k.Folded > 0 && int(n.A) < k.Frames[0]-k.Folded {
			v.level[i] = perRow
		}
		return nil
	case Cast:
		return nil
	case Round:
		if n.B >= uint64(len(dtypes)) || !dtypes[n.B].rounds || dtypes[n.B].class != of(n.A) || n.Class != of(n.A) {
			return fmt.Errorf("a %s to dtype %d, as %s", of(n.A), n.B, n.Class)
		}
		return nil
	}
	if n.Op.Reduces() {
		if k.Folded == 0 {
			return fmt.Errorf("nothing is folded here")
		}
		v.level[i] = perRow
	}
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
	kept, folded := k.runs(o)
	if kept < k.Frames[o.Frame]-k.Folded || folded < k.Folded && (folded > 0 || v.level[n.B] == perPoint) {
		return fmt.Errorf("points would write one element of operand %d together", n.A)
	}
	return nil
}
