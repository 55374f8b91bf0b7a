// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// TestCopySharedSurvivesMissingPages checks that a missing page is an error of the client and does not end the worker.
// The test truncates the file, which a seal would forbid.
func TestCopySharedSurvivesMissingPages(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	require.NoError(t, err)
	defer f.Close()
	const n = 1 << 20
	require.NoError(t, f.Truncate(n))
	b, err := mapMemory(f, n)
	require.NoError(t, err)
	defer unmapMemory(b)
	dst := make([]byte, n)
	require.NoError(t, copyShared(dst, b))
	require.NoError(t, f.Truncate(4096))
	require.ErrorContains(t, copyShared(dst, b), "The client's shared memory cannot be read")
	require.NoError(t, copyShared(dst[:100], b[:100]), "the remaining pages can be read")
}

func TestMemoryThatCannotBeMapped(t *testing.T) {
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "x")
	defer f.Close()
	_, err = mapMemory(f, 1<<60)
	require.Error(t, err)
}
