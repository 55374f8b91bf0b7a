// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package provider

import (
	"net"

	"golang.org/x/sys/unix"
)

// unsentBytes bounds the bytes that a socket takes before it can send them. What is written next waits for them.
const unsentBytes = 256 << 10

// sendLate bounds the bytes that wait in a TCP socket: a program that is sent during a large upload waits for them.
func sendLate(c net.Conn) {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return
	}
	if raw, err := tcp.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_NOTSENT_LOWAT, unsentBytes)
		})
	}
}
