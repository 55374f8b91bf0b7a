// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

// readyWithin reports whether a descriptor is ready within a time. A signal makes the time shorter.
func readyWithin(fds []unix.PollFd, within time.Duration) bool {
	n, _ := unix.Poll(fds, int((within+time.Millisecond-1)/time.Millisecond)) // it takes whole milliseconds
	return n > 0
}
