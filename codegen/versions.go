// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"math"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
)

// A failure leaves the storages as the records before the failing one have left them. So a program says in which buffer
// each version of a storage lies (ir.Version), and it overwrites the content of a storage only after all steps of
// earlier records.

// version is where a version of a storage lies.
type version struct {
	buffer int   // -1: nowhere
	writer int32 // the record of the step that leaves it there; -1: none, it is the content of an input
}

// versions has the first and the current location of each version: a content that is still needed is copied away before
// its buffer is overwritten.
type versions struct{ first, current []version }

// follow prepares what is known about versions.
func (p *planner) follow() {
	g := p.g
	p.versions = versions{make([]version, len(g.Versions)), make([]version, len(g.Versions))}
	p.version, p.another = make([]int32, len(g.Types)), make([]int32, len(g.Versions))
	for i := len(g.Versions) - 1; i >= 0; i-- {
		v := &g.Versions[i]
		p.versions.first[i].buffer, p.versions.current[i].buffer = -1, -1
		if v.Value != ir.NoValue {
			p.another[i], p.version[v.Value] = p.version[v.Value], int32(i)+1
		}
		s := p.slots.At(v.Slot)
		s.first, s.written = v.Record, true
	}
	p.earliest = make([]int32, len(g.Nodes))
	earliest := int32(math.MaxInt32)
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		p.earliest[i] = earliest
		n := &g.Nodes[i]
		if n.Record >= 0 && (n.Op == ir.OpCall && n.Group == 0 || g.MayFail(ir.NodeID(i))) {
			earliest = min(earliest, n.Record)
		}
	}
}

// hold notes the location of each version that a value is.
func (p *planner) hold(value ir.ValueID, at location) {
	for i := p.version[value] - 1; i >= 0; i = p.another[i] - 1 {
		v := version{buffer: -1}
		if at.full {
			v = version{at.buffer, p.record}
		}
		if p.g.Nodes[p.g.Def[value]].Op == ir.OpInput && at.full && p.buffers[at.buffer].slot >= 0 {
			v.writer = -1
		}
		p.versions.current[i] = v
		if p.versions.first[i].buffer < 0 {
			p.versions.first[i] = v
		}
	}
}

// mayOverwrite reports whether a node may overwrite a buffer's content in place. The content of a storage from before
// that a failure must leave as it is ends with the first record that writes the storage. An operator of an earlier
// record that runs later could still fail. What kernels compute fails only if memory runs out, and groups often move
// it.
func (p *planner) mayOverwrite(buffer int, node ir.NodeID) bool {
	slot := p.buffers[buffer].slot
	if slot < 0 {
		return true
	}
	s := p.slots.At(uint32(slot))
	record := p.g.Nodes[node].Record
	return !s.written || record >= s.first && p.earliest[node] >= record
}

// failure says what a failure in the middle of the program leaves behind. The worker counts records from 1.
func (p *planner) failure() {
	c := p.out
	for i, slot := range c.Outputs {
		p.slots.At(slot).output = i + 1
	}
	for i, v := range p.g.Versions {
		output := p.slots.At(v.Slot).output - 1
		if output < 0 {
			continue // the storage holds its content already
		}
		first, at := p.versions.first[i], p.versions.current[i]
		c.addVersion(output, v.Record, first)
		if i+1 == len(p.g.Versions) || p.g.Versions[i+1].Slot != v.Slot { // the last one
			if chosen := int(c.Program.Outputs[output]); at.buffer != chosen { // copied to it at the end
				at = version{chosen, p.g.Nodes[p.g.Def[v.Value]].Record}
			}
		}
		if at.buffer >= 0 && at != first {
			c.addVersion(output, v.Record, at)
		}
	}
}

// addVersion says that the storage of an output has this version from a record on. Versions without a location are
// added too: then the content is lost.
func (c *Compiled) addVersion(output int, record int32, at version) {
	c.Program.Versions = append(c.Program.Versions, program.Version{
		Output: uint32(output), Record: uint32(record + 1), Buffer: uint32(at.buffer + 1), Writer: uint32(at.writer + 1),
	})
}
