// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package lru_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/program/lru"
)

// TestCache compares a cache with a list, over random operations: each value leaves once, the last one put stays, and
// the rest are those used last whose bytes fit.
func TestCache(t *testing.T) {
	type kept struct {
		key, value int
		bytes      int64
	}
	rapid.Check(t, func(t *rapid.T) {
		const most = 100
		var list, gone []kept // list: the one used longest ago first
		left := []int{}
		c := lru.New[int](most, func(value int) { left = append(left, value) })
		remove := func(i int) {
			gone = append(gone, list[i])
			list = slices.Delete(list, i, i+1)
		}
		for value := 1; value <= 60; value++ {
			key := rapid.IntRange(0, 9).Draw(t, "key")
			at := slices.IndexFunc(list, func(k kept) bool { return k.key == key })
			if rapid.Bool().Draw(t, "get") {
				want := 0
				if at >= 0 {
					k := list[at]
					list = append(slices.Delete(list, at, at+1), k)
					want = k.value
				}
				require.Equal(t, want, c.Get(key))
				continue
			}
			if at >= 0 {
				remove(at)
			}
			bytes := rapid.Int64Range(0, 120).Draw(t, "bytes")
			list = append(list, kept{key, value, bytes})
			c.Put(key, value, bytes)
			for sum := func() (n int64) {
				for _, k := range list {
					n += k.bytes
				}
				return n
			}; sum() > most && len(list) > 1; {
				remove(0)
			}
			require.Len(t, left, len(gone))
		}
		for i, k := range gone {
			require.Equal(t, k.value, left[i])
		}
		c.Clear()
		require.Len(t, left, len(gone)+len(list))
		require.Zero(t, c.Get(1))
	})
}
