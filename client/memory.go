// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	goruntime "runtime"
	"runtime/debug"
	"runtime/metrics"
)

// leastMemory is the smallest limit of the memory of Go's runtime: twice the most that a session's programs take. Near
// a limit the garbage collector runs all the time, so the limit is at least three times the live heap, which several
// sessions make larger.
const leastMemory = 512 << 20

// limitAfterCollections sets the limit after each collection. The cleanup of a value that nothing holds runs then.
func limitAfterCollections() {
	goruntime.AddCleanup(new([2]*byte), func(struct{}) {
		live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
		metrics.Read(live)
		debug.SetMemoryLimit(max(leastMemory, 3*int64(live[0].Value.Uint64())))
		limitAfterCollections()
	}, struct{}{})
}
