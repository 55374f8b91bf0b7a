// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package transport

import "syscall"

// queued is not known here.
func queued(syscall.Conn) uint64 { return 0 }
