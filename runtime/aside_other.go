// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package runtime

import "sync/atomic"

// stepAside does nothing where the system does not say which core a thread runs on.
func stepAside(*atomic.Int64) {}

func onAllCores(f func()) { f() }
