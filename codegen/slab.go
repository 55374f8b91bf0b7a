// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

// slab gives out parts of arrays. The messages of a program live and die together, and a long list has thousands: an
// allocation for each takes longer than to fill it in. An array has an eighth of what was given out before, so that
// little is wasted.
type slab[T any] struct {
	free  []T
	given int
}

const maxSlab = 512

// take returns n zero values with a capacity of n.
func (s *slab[T]) take(n int) []T {
	if len(s.free) < n {
		s.free = make([]T, max(n, min(s.given/8, maxSlab)))
	}
	s.given += n
	out := s.free[:n:n]
	s.free = s.free[n:]
	return out
}

// one returns a zero value.
func (s *slab[T]) one() *T { return &s.take(1)[0] }
