// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"net"
	"time"
)

// sleeper is a socket whose reads can wait in the kernel.
type sleeper interface {
	Sleep(yes bool)
	ReadWithin(d time.Duration, read func() (int, error)) (int, error)
}

// corker is a socket that can hold what is written to it.
type corker interface {
	Cork()
	Uncork() error
}

// under is the connection below TLS.
func under(c net.Conn) net.Conn {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		return t.NetConn()
	}
	return c
}

func setSleep(c net.Conn, yes bool) {
	if z, ok := under(c).(sleeper); ok {
		z.Sleep(yes)
	}
}

// Sleep makes reads wait in the kernel, on this and later connections, if they can.
func (s *Stream) Sleep(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sleeps = yes; s.conn != nil {
		setSleep(s.conn, yes)
	}
}

// sleeping returns what the reader waits on in the kernel; nil: it waits elsewhere.
func (s *Stream) sleeping() sleeper {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil || !s.sleeps {
		return nil
	}
	z, _ := under(s.conn).(sleeper)
	return z
}
