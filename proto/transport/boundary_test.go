// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestBoundary(t *testing.T) {
	var all []byte
	ends := map[int]bool{0: true}
	for i, n := range []int{0, 5, 100, 0, 70_000} {
		all = append(all, sent(t, Upload, uint64(i), pattern(n))...)
		ends[len(all)] = true
	}
	rapid.Check(t, func(t *rapid.T) {
		var b Boundary
		for at := 0; at < len(all); {
			n := min(rapid.SampledFrom([]int{1, 31, 32, 33, 500, 10_000, 1 << 20}).Draw(t, "bytes"), len(all)-at)
			b.Pass(all[at : at+n])
			at += n
			require.Equal(t, ends[at], b.Whole(), "after %d bytes", at)
		}
	})
}
