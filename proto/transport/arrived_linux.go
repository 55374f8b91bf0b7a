// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// queued returns how many bytes the system holds for a reader of a socket or a pipe.
func queued(c syscall.Conn) uint64 {
	n := 0
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { n, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	}
	return uint64(max(n, 0))
}
