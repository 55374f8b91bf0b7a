// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"fmt"
	"testing"

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
			s.put(&program{key: key, prepared: i, bytes: 8})
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
