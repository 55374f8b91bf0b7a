// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// BySlot has a value for each binding slot of a graph. Capture numbers slots from 0, so an array holds them; a graph
// from a file may have any numbers, and gets a map.
type BySlot[T any] struct {
	few  []T
	many map[uint32]*T
}

// NewBySlot makes room for the slots of a graph's inputs, outputs and versions, with zero values.
func NewBySlot[T any](g *Graph) BySlot[T] {
	largest := uint32(0)
	for i := range g.Nodes {
		if n := &g.Nodes[i]; n.Op == OpInput {
			largest = max(largest, n.Slot)
		}
	}
	for _, o := range g.Outputs {
		largest = max(largest, o.Slot)
	}
	for i := range g.Versions {
		largest = max(largest, g.Versions[i].Slot)
	}
	if int(largest) > 8*(len(g.Nodes)+len(g.Outputs))+64 {
		return BySlot[T]{many: map[uint32]*T{}}
	}
	return BySlot[T]{few: make([]T, largest+1)}
}

// At returns the value of a slot, which may be changed.
func (s *BySlot[T]) At(slot uint32) *T {
	if s.many == nil {
		return &s.few[slot]
	}
	v := s.many[slot]
	if v == nil {
		v = new(T)
		s.many[slot] = v
	}
	return v
}
