// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// cut ends the graph. The outputs are the storages that the trace made or wrote and that are wanted.
func (b *builder) cut(wanted []bool) *trace.Captured {
	n := len(b.storages)
	c := &trace.Captured{Graph: b.g, Ops: b.ops, Inputs: make([]bool, n), Changed: make([]bool, n)}
	outputs, versions := 0, 0
	for i := range b.storages {
		if s := &b.storages[i]; s.changed && wanted[i] {
			outputs++
			versions += len(s.written)
		}
	}
	b.g.Outputs, b.g.Versions = make([]ir.Output, 0, outputs), make([]ir.Version, 0, versions)
	for i := range b.storages {
		s := &b.storages[i]
		c.Inputs[i], c.Changed[i] = s.input, s.changed
		if s.changed && wanted[i] {
			b.g.Outputs = append(b.g.Outputs, ir.Output{Value: s.value, Slot: uint32(i)})
			for _, v := range s.written {
				b.g.Versions = append(b.g.Versions, ir.Version{Slot: uint32(i), Record: v.record, Value: v.value})
			}
		}
	}
	return c
}
