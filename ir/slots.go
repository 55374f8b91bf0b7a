// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

// BySlot has a value for each binding slot of a graph. Capture numbers slots from 0, so the values are in an array. A
// graph from a file may have any slots; if they are large, the values are in a map.
type BySlot[T any] struct {
	array []T
	large map[uint32]*T
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
		return BySlot[T]{large: map[uint32]*T{}}
	}
	return BySlot[T]{array: make([]T, largest+1)}
}

// At returns a pointer to the value of a slot.
func (s *BySlot[T]) At(slot uint32) *T {
	if s.large == nil {
		return &s.array[slot]
	}
	v := s.large[slot]
	if v == nil {
		v = new(T)
		s.large[slot] = v
	}
	return v
}
