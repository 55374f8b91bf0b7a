// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package crash

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestTheMemoryCannotShrink: a read of mapped memory that has gone would end the supervisor.
func TestTheMemoryCannotShrink(t *testing.T) {
	for _, journal := range []bool{false, true} {
		p, f, err := NewProgress(journal)
		require.NoError(t, err)
		p.Note(7, 3)
		require.Error(t, f.Truncate(0))
		require.Error(t, f.Truncate(1<<30))
		call, step := p.Last()
		require.Equal(t, [2]uint64{7, 4}, [2]uint64{call, step})
		p.Unmap()
		require.NoError(t, f.Close())
	}
}
