// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernel

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// String lists a kernel as text: its index space, its operands with the dims along which they run, and the code.
//
//	kernel i0 i1 reduce j2
//	  a0 read  f32[i0,j2]
//	  a1 write f32[i0]
//	  r0 f32 = load a0
//	  r1 f32 = sum r0
//	  store a1 r1
func (k *Kernel) String() string {
	var b strings.Builder
	b.WriteString("kernel")
	dim := func(space, d int) string {
		switch {
		case space > 0:
			return fmt.Sprintf("%c%d", 'i'+rune(min(space, 8))+1, d)
		case d >= k.Spaces[0]-k.Reduced:
			return fmt.Sprintf("j%d", d)
		}
		return fmt.Sprintf("i%d", d)
	}
	for f, rank := range k.Spaces {
		if f > 0 {
			b.WriteString(" =")
		}
		for d := range rank {
			if f == 0 && k.Reduced > 0 && d == rank-k.Reduced {
				b.WriteString(" reduce")
			}
			b.WriteString(" " + dim(f, d))
		}
	}
	b.WriteByte('\n')
	for i, o := range k.Operands {
		dims := make([]string, len(o.Along))
		for j, d := range o.Along {
			switch dims[j] = "1"; {
			case d >= 0:
				dims[j] = dim(o.Space, int(d))
			case d == Taken:
				dims[j] = "?"
			}
		}
		access := [...]string{Read: "read", Write: "write", Read | Write: "both"}[o.Access&3]
		fmt.Fprintf(&b, "  a%d %-5s %s[%s]\n", i, access, dtypeName(uint64(o.DType)), strings.Join(dims, ","))
	}
	for i, n := range k.Code {
		b.WriteString("  " + n.text(i) + "\n")
	}
	return b.String()
}

func dtypeName(number uint64) string {
	if row := catalogue.DTypeOf(number); row != nil {
		return row.Name
	}
	return "?"
}

func (n *Instr) text(i int) string {
	args := [3]uint64{n.A, n.B, n.C}
	var words []string
	switch n.Op {
	case Store:
		return fmt.Sprintf("store a%d r%d", n.A, n.B)
	case Take:
		words = []string{fmt.Sprintf("a%d", n.A), fmt.Sprintf("r%d", n.B)}
	case Load:
		words = []string{fmt.Sprintf("a%d", n.A)}
	case Number:
		if words = []string{fmt.Sprintf("n%d", n.A)}; n.B != 0 {
			words = append(words, dtypeName(n.B))
		}
	case Index:
		words = []string{fmt.Sprintf("i%d", n.A)}
	case Const:
		words = []string{n.constant()}
	case Round:
		words = []string{fmt.Sprintf("r%d", n.A), dtypeName(n.B)}
	default:
		for _, a := range args[:n.Op.Row().Operands] {
			words = append(words, fmt.Sprintf("r%d", a))
		}
	}
	return strings.TrimRight(fmt.Sprintf("r%d %s = %s %s", i, n.Class, n.Op, strings.Join(words, " ")), " ")
}

func (n *Instr) constant() string {
	switch n.Class {
	case F32, F64:
		return strconv.FormatFloat(math.Float64frombits(n.A), 'g', -1, 64)
	case B8:
		return strconv.FormatBool(n.A != 0)
	}
	return strconv.FormatInt(int64(n.A), 10)
}
