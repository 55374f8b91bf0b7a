// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"io"
	"net"

	"golang.org/x/sys/unix"
)

// typeAt is the place of the type in a header.
const typeAt = 5

// Peek returns the type of the first frame of a connection and leaves the frame unread. The connection can then be
// given to another process. The frame need not be valid.
func Peek(c *net.UnixConn) (Type, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var b [typeAt + 1]byte
	n := 0
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), b[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if failed == unix.EAGAIN || failed == unix.EINTR {
			return false
		}
		return failed != nil || n == 0 || n == len(b) // otherwise the header has not arrived as a whole
	})
	switch {
	case err != nil:
		return 0, err
	case failed != nil:
		return 0, failed
	case n == 0:
		return 0, io.EOF
	}
	return Type(b[typeAt]), nil
}
