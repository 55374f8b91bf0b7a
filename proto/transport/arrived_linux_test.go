// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestArrived counts bytes in the read buffer, in the system, and those of frames that were taken.
func TestArrived(t *testing.T) {
	a, b := unixPair(t)
	const size = headerBytes // of a frame without metadata
	require.Zero(t, b.Arrived())
	for range 3 {
		require.NoError(t, a.Send(Sync, 1, nil, nil))
	}
	require.EqualValues(t, 3*size, b.Arrived())
	require.EqualValues(t, 3*size, b.Queued())
	require.Zero(t, b.Progress())
	_, err := b.Next()
	require.NoError(t, err)
	require.EqualValues(t, 2*3*size, b.Progress())
	require.EqualValues(t, 3*size, b.Arrived())
	require.EqualValues(t, size, b.Taken())
	require.Zero(t, b.Queued())
	done := make(chan error)
	go func() { _, err := b.Next(); done <- err }()
	require.NoError(t, <-done)
	go func() { _, _ = b.Next(); _, err := b.Next(); done <- err }()
	require.Eventually(t, func() bool { return b.Progress() == 2*3*size+1 }, time.Minute, time.Millisecond)
	require.NoError(t, a.Close())
	require.Error(t, <-done)
}
