// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// sleeper waits for bytes of a unix socket in the kernel, on the caller's thread.
type sleeper struct {
	raw syscall.RawConn
	fds [1]unix.PollFd
}

func newSleeper(c net.Conn) *sleeper {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return nil
	}
	return &sleeper{raw: raw}
}

// sleep returns when a read would not block.
func (s *sleeper) sleep() error {
	return s.raw.Read(func(fd uintptr) bool {
		s.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		for {
			if _, err := unix.Poll(s.fds[:], -1); err != unix.EINTR {
				return true
			}
		}
	})
}

// ready reports whether sleep would return at once.
func (s *sleeper) ready() bool {
	n := 0
	_ = s.raw.Control(func(fd uintptr) {
		s.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		n, _ = unix.Poll(s.fds[:], 0)
	})
	return n > 0
}

// wake ends a sleep by shutting down the socket for reading.
func (s *sleeper) wake() {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
}
