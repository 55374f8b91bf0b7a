// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"os"
	goruntime "runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMemoryLimit checks that the limit follows the live heap in both directions.
func TestMemoryLimit(t *testing.T) {
	if os.Getenv("GOMEMLIMIT") != "" { // then the library sets none
		debug.SetMemoryLimit(leastMemory)
		limitAfterCollections()
	}
	becomes := func(least, most int64) {
		t.Helper()
		require.Eventually(t, func() bool {
			goruntime.GC()
			limit := debug.SetMemoryLimit(-1)
			return least <= limit && limit <= most
		}, 30*time.Second, time.Millisecond)
	}
	held := make([]byte, 256<<20)
	becomes(3*256<<20, 3*300<<20)
	goruntime.KeepAlive(held)
	becomes(leastMemory, leastMemory)
}
