// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package runtime

import "sync/atomic"

// stepAside does nothing on systems that do not report the core of a thread.
func stepAside(*atomic.Int64) {}

func onAllCores(f func()) { f() }
