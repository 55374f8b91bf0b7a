// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"fmt"
	goruntime "runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestStoreDropsOnce checks that each program is dropped once, never while get can return it, and at the latest at the
// end.
func TestStoreDropsOnce(t *testing.T) {
	for _, limit := range []int64{1, 160, 1 << 30} {
		s, err := newStore(limit)
		require.NoError(t, err)
		dropped := map[int]bool{}
		drop := func(p Prepared) {
			require.False(t, dropped[p.(int)], "dropped twice")
			dropped[p.(int)] = true
		}
		const n = 200
		for i := range n {
			key := fmt.Sprintf("%020d", i%150) // the last 50 replace earlier ones
			s.put(&loaded{key: key, prepared: i, bytes: 8})
			s.reap(drop)
			require.Equal(t, i, s.get([]byte(key)).prepared)
			for j := range i {
				if p := s.get(fmt.Appendf(nil, "%020d", j%150)); p != nil {
					require.False(t, dropped[p.prepared.(int)], "dropped, but get returns it")
				}
			}
		}
		require.Nil(t, s.get([]byte("another key of 20 b.")))
		if limit == 1 {
			require.Len(t, dropped, n-newest)
		}
		s.close(drop)
		require.Len(t, dropped, n)
	}
}

// TestACalledProgramIsKept calls a new program that the cache has rejected, because it is full of programs that were
// called often. The program must be there after newer ones have come.
func TestACalledProgramIsKept(t *testing.T) {
	s, err := newStore(1000)
	require.NoError(t, err)
	defer s.close(func(Prepared) {})
	key := func(i int) []byte { return fmt.Appendf(nil, "%020d", i) }
	put := func(i int) { s.put(&loaded{key: string(key(i)), prepared: i, bytes: 8}) }
	call := func(first, end int) { // the cache counts calls in the background, and not all of many at once
		for range 50 {
			for i := first; i < end; i++ {
				s.get(key(i))
				goruntime.Gosched()
			}
		}
	}
	made := 1000 / 8
	for i := range made {
		put(i)
	}
	rejected := false
	for ; !rejected; made++ {
		require.Less(t, made, 1000)
		call(0, made)
		put(made)
		_, cached := s.cache.Get(string(key(made)))
		rejected = !cached
	}
	require.Eventually(t, func() bool {
		call(made-1, made)
		s.cache.Wait()
		_, cached := s.cache.Get(string(key(made - 1)))
		return cached
	}, time.Minute, time.Microsecond)
	for i := range newest {
		put(1000 + i)
	}
	require.NotNil(t, s.get(key(made-1)))
}
