// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/ir"
)

// FirstSeen returns the parameters with the sizes that the program had when its graph was made. Numbers are 0.
func (c *Compiled) FirstSeen(g *ir.Graph) ([]uint64, error) {
	n := uint32(0)
	for _, s := range c.Slots {
		n = max(n, s+1)
	}
	for _, s := range g.Syms {
		n = max(n, s.Slot+1)
	}
	trace := make([]uint64, n)
	for _, s := range g.Syms {
		if s.Quotient == nil {
			trace[s.Slot] = uint64(s.First)
		}
	}
	return c.Params(trace)
}

// MemoryText describes the memory of a call with these parameters: the peak, and for each buffer the steps that see it,
// its size, and the operators that write it, in order.
func (c *Compiled) MemoryText(params []uint64) string {
	w, err := c.walk(params, true)
	if err != nil {
		return fmt.Sprintf("memory: not known: %v\n", err)
	}
	slots := map[uint32]uint32{}
	for i, b := range c.Program.Inputs {
		slots[b] = c.Inputs[i]
	}
	var b strings.Builder
	fmt.Fprintf(&b, "memory: %s\n", w.peak)
	for i, l := range w.buffers {
		if l.first < 0 && !l.given {
			continue // of operators that kernels replace
		}
		steps := fmt.Sprintf("steps %d-%d", l.first, min(l.last, len(c.Program.Steps)))
		switch slot, given := slots[uint32(i)]; {
		case given:
			steps = fmt.Sprintf("storage %d", slot)
		case l.last == len(c.Program.Steps):
			steps = fmt.Sprintf("steps %d-end", l.first)
		}
		line := fmt.Sprintf("  b%-4d %-16s %12d bytes  %s", i, steps, l.bytes, strings.Join(l.ops, " "))
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	return b.String()
}

// String describes the peak.
func (p Peak) String() string {
	if p.Step < 0 {
		return fmt.Sprintf("nothing of its own, beside storages of %d bytes", p.Storages)
	}
	const text = "at most %d bytes of its own at once, at step %d, beside storages of %d"
	return fmt.Sprintf(text, p.Bytes, p.Step, p.Storages)
}
