// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
)

// ErrPeer means that the other end of a unix socket runs as another user.
var ErrPeer = errors.New("transport: the peer is another user")

// CheckPeer returns an error unless the process at the other end of a unix socket runs as this user. Both ends call it
// before the first byte: on one host it replaces certificates.
func CheckPeer(c net.Conn) error {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return fmt.Errorf("transport: %s is not a unix socket", c.RemoteAddr())
	}
	raw, err := u.SyscallConn()
	if err != nil {
		return fmt.Errorf("transport: peer: %w", err)
	}
	var uid int
	var asked error
	if err := raw.Control(func(fd uintptr) { uid, asked = peerUID(int(fd)) }); err != nil {
		return fmt.Errorf("transport: peer: %w", err)
	}
	if asked != nil {
		return fmt.Errorf("transport: peer: %w", asked)
	}
	if me := os.Getuid(); uid != me {
		return fmt.Errorf("%w: uid %d, this process has %d", ErrPeer, uid, me)
	}
	return nil
}
