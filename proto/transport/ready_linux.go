// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"time"

	"golang.org/x/sys/unix"
)

// readyWithin reports whether a descriptor is ready within a time. A signal makes the time shorter.
func readyWithin(fds []unix.PollFd, within time.Duration) bool {
	timeout := unix.NsecToTimespec(int64(within))
	n, _ := unix.Ppoll(fds, &timeout, nil)
	return n > 0
}
