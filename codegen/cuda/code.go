// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package cuda

import (
	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

// level is how many values a register has.
type level uint8

const (
	uniform level = iota // one
	perRow               // one for all points that are reduced together
	perPoint
)

// code is a kernel with the facts that follow from it alone, for all instances.
type code struct {
	k      *kernel.Kernel
	level  []level // by instruction
	stage  []int   // by instruction: the longest chain of reductions that it depends on
	needed []bool  // by instruction: a store depends on it
	passes int     // over the points
	index  []int   // dims of space 0 whose index the code uses; walked like operands of stride 1, after the operands
}

// registers lists the registers that an instruction reads.
func registers(n *kernel.Instr) []uint64 {
	if n.Op == kernel.Store || n.Op == kernel.Take {
		return []uint64{n.B}
	}
	return []uint64{n.A, n.B, n.C}[:n.Op.Row().Operands]
}

func analyse(k *kernel.Kernel) *code {
	n := len(k.Code)
	c := &code{k: k, level: make([]level, n), stage: make([]int, n), needed: make([]bool, n)}
	for i := n - 1; i >= 0; i-- {
		if k.Code[i].Op == kernel.Store {
			c.needed[i] = true
		}
		for _, r := range registers(&k.Code[i]) {
			c.needed[r] = c.needed[r] || c.needed[i]
		}
	}
	for i := range k.Code {
		in := &k.Code[i]
		for _, r := range registers(in) {
			c.level[i], c.stage[i] = max(c.level[i], c.level[r]), max(c.stage[i], c.stage[r])
		}
		switch {
		case in.Op == kernel.Load || in.Op == kernel.Take:
			c.level[i] = max(c.level[i], c.along(k.Operands[in.A]))
		case in.Op == kernel.Index:
			c.level[i] = perPoint
			if k.Reduced > 0 && int(in.A) < k.Spaces[0]-k.Reduced {
				c.level[i] = perRow
			}
			if c.needed[i] {
				c.index = append(c.index, int(in.A))
			}
		case in.Op.Reduces():
			c.level[i], c.stage[i] = perRow, c.stage[i]+1
		case in.Op == kernel.Store:
			if o := k.Operands[in.A]; k.Reduced == 0 || c.along(o) == perPoint {
				c.level[i] = perPoint
			} else {
				c.level[i] = perRow
			}
		}
		switch {
		case !c.needed[i]:
		case in.Op == kernel.Store && c.level[i] == perPoint:
			c.passes = max(c.passes, c.stage[i]+1)
		case in.Op.Reduces():
			c.passes = max(c.passes, c.stage[i])
		}
	}
	return c
}

// along returns the level of an operand's elements.
func (c *code) along(o kernel.Operand) level {
	l := uniform
	for _, d := range o.Along {
		switch {
		case d < 0:
		case int(d) >= c.k.Spaces[o.Space]-c.k.Reduced || c.k.Reduced == 0:
			return perPoint
		default:
			l = perRow
		}
	}
	return l
}

// ways counts what a walk visits: the operands, then the indices. A way is the number of one of them.
func (c *code) ways() int { return len(c.k.Operands) + len(c.index) }

// way returns the way of a LOAD, TAKE, STORE or INDEX.
func (c *code) way(i int) int {
	in := &c.k.Code[i]
	if in.Op != kernel.Index {
		return int(in.A)
	}
	at := len(c.k.Operands)
	for j := range c.k.Code[:i] {
		if c.k.Code[j].Op == kernel.Index && c.needed[j] {
			at++
		}
	}
	return at
}

// taken reports whether a way is an operand of a TAKE. Threads read such an operand element by element.
func (c *code) taken(way int) bool { return way < len(c.k.Operands) && c.k.Operands[way].Takes() >= 0 }

// used reports, by way, whether the code accesses it at each point.
func (c *code) used() []bool {
	used := make([]bool, c.ways())
	for i := range c.k.Code {
		switch c.k.Code[i].Op {
		case kernel.Load, kernel.Take, kernel.Store, kernel.Index:
			if c.needed[i] && c.level[i] == perPoint {
				used[c.way(i)] = true
			}
		}
	}
	return used
}

// roots reports whether pass p has to compute the operand of instruction i. Pass p computes the operands of the
// reductions of stage p+1, and the last pass those of stores.
func (c *code) roots(i, p int) bool {
	in := &c.k.Code[i]
	switch {
	case !c.needed[i]:
		return false
	case in.Op.Reduces():
		return c.stage[i] == p+1
	}
	return in.Op == kernel.Store && c.level[i] == perPoint && p+1 == c.passes
}

// cost is the cost of an instruction in additions.
func cost(op kernel.Op) int {
	weights := [...]int{catalogue.CostSimple: 1, catalogue.CostDivide: 8, catalogue.CostFunction: 24}
	return weights[op.Row().Cost]
}

// weight estimates the code for one point.
func (c *code) weight() int {
	w := 1
	for i := range c.k.Code {
		if c.needed[i] && c.level[i] == perPoint {
			w += 1 + cost(c.k.Code[i].Op)
		}
	}
	return w
}

// cheap is the largest cost of a value that a later pass computes again instead of keeping it in registers.
const cheap = 3

// schedule returns, by pass, which values of points the pass computes, and which values later passes find in registers.
// With keep false no value is kept.
func (c *code) schedule(keep bool) (makes [][]bool, kept []bool) {
	n := len(c.k.Code)
	made := make([]bool, n)
	kept = make([]bool, n)
	var again func(i uint64) int
	again = func(i uint64) int {
		in := &c.k.Code[i]
		if c.level[i] != perPoint {
			return 0
		}
		w := cost(in.Op)
		if in.Op == kernel.Load || in.Op == kernel.Take {
			w = cheap + 1
		}
		for _, r := range registers(in) {
			if w <= cheap {
				w += again(r)
			}
		}
		return w
	}
	for p := range c.passes {
		now := make([]bool, n)
		var need func(i uint64)
		need = func(i uint64) {
			if c.level[i] != perPoint || now[i] {
				return
			}
			if keep && made[i] && again(i) > cheap {
				kept[i] = true
				return
			}
			now[i] = true
			for _, r := range registers(&c.k.Code[i]) {
				need(r)
			}
		}
		for i := range c.k.Code {
			if c.roots(i, p) {
				need(registers(&c.k.Code[i])[0])
			}
		}
		for i := range now {
			made[i] = made[i] || now[i]
		}
		makes = append(makes, now)
	}
	return makes, kept
}

// ofPoint is the number of 32-bit registers, per point, for values that a pass keeps for a later one, and the largest
// number of bytes, per point, that a pass loads.
func (c *code) ofPoint() (kept, loaded int) {
	makes, keeps := c.schedule(true)
	for i, is := range keeps {
		if !is {
			continue
		}
		switch c.k.Code[i].Class {
		case kernel.F64, kernel.I64:
			kept += 2
		default:
			kept++
		}
	}
	for _, made := range makes {
		bytes := 0
		for i, is := range made {
			if n := &c.k.Code[i]; is && n.Op == kernel.Load {
				bytes += int(sizeOf(c.k.Operands[n.A].DType))
			}
		}
		loaded = max(loaded, bytes)
	}
	return kept, loaded
}
