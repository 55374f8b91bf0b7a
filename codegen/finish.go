// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"

	"github.com/mycelya/mycelya/ir"
)

// outputs decides which buffer each output storage takes. A buffer goes to one storage, and the buffer of an input only
// to the storage that it came from. All other outputs get a copy.
func (p *planner) outputs() error {
	p.record = -1
	taken := make([]bool, len(p.buffers), len(p.buffers)+len(p.g.Outputs))
	chosen := make([]int, len(p.g.Outputs))
	for i, o := range p.g.Outputs {
		if p.g.Immediate(o.Value) {
			return fmt.Errorf("output %d is a number", o.Slot)
		}
		at, err := p.locate(o.Value) // may copy a root into a buffer of its own
		if err != nil {
			return fmt.Errorf("output %d: %w", o.Slot, err)
		}
		for len(taken) < len(p.buffers) {
			taken = append(taken, false)
		}
		chosen[i] = -1
		if p.storable(o.Value, at) && p.buffers[at.buffer].slot == int32(o.Slot) && !taken[at.buffer] {
			chosen[i], taken[at.buffer] = at.buffer, true
		}
	}
	for i, o := range p.g.Outputs {
		if chosen[i] >= 0 {
			continue
		}
		p.record = p.g.Nodes[p.g.Def[o.Value]].Record
		at, err := p.locate(o.Value)
		switch {
		case err != nil:
			return fmt.Errorf("output %d: %w", o.Slot, err)
		case !p.storable(o.Value, at):
			to := location{buffer: p.newBuffer(), full: true}
			p.copy(p.tensor(to, p.g.Types[o.Value]), p.tensor(at, p.g.Types[o.Value]))
			chosen[i] = to.buffer
		case taken[at.buffer] || p.buffers[at.buffer].slot >= 0:
			chosen[i] = p.clone(at.buffer)
		default:
			chosen[i], taken[at.buffer] = at.buffer, true
		}
	}
	for i, o := range p.g.Outputs {
		n := &p.g.Nodes[p.g.Def[o.Value]]
		if n.Op == ir.OpInput && n.Slot == o.Slot && p.buffers[chosen[i]].slot == int32(o.Slot) {
			continue // the storage holds it already
		}
		p.out.Program.Outputs = append(p.out.Program.Outputs, uint32(chosen[i]))
		p.out.Outputs = append(p.out.Outputs, o.Slot)
	}
	return nil
}

// storable reports whether a value fills its buffer.
func (p *planner) storable(v ir.ValueID, at location) bool { return p.u.root[v] == v && at.full }

func (p *planner) finish() *Compiled {
	c := p.out
	c.Slots, c.Derived = p.params.slots, p.params.derived
	c.Requires, c.Numbers = requires(p.g), p.g.Numbers
	c.Program.Params = uint32(len(c.Slots))
	c.Program.Buffers = uint32(len(p.buffers))
	p.failure()
	return c
}
