// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	typeAt = 5 // the place of the type in a frame's header
	// The header of a TLS record: its type, a version, and the length of what follows.
	recordBytes     = 5
	recordHandshake = 22
	// The first message of a client has less than 2 KiB. A longer one is not read.
	maxClientHello = 8 << 10
)

// A Socket is a connection with a descriptor: a unix or a TCP socket.
type Socket interface {
	net.Conn
	syscall.Conn
}

// PeekType returns the type of the first frame of a connection and leaves the frame unread. The connection can then be
// given to another process. The frame need not be valid.
func PeekType(c Socket) (Type, error) {
	b := make([]byte, typeAt+1)
	if _, err := peek(c, b, func([]byte) bool { return false }); err != nil {
		return 0, err
	}
	return Type(b[typeAt]), nil
}

// PeekName returns the name that a TLS client asks for, NewSessionName's or EndOf's, and leaves its message unread, as
// PeekType does. Nothing is known about the client yet.
func PeekName(c Socket) (string, error) {
	b := make([]byte, maxClientHello)
	whole := func(b []byte) bool {
		return b[0] != recordHandshake ||
			len(b) >= recordBytes && len(b) >= recordBytes+int(binary.BigEndian.Uint16(b[recordBytes-2:]))
	}
	n, err := peek(c, b, whole)
	if err != nil {
		return "", err
	}
	return nameIn(b[:n])
}

// peek returns how many bytes have arrived in b, once it is full or `enough` says so.
func peek(c Socket, b []byte, enough func([]byte) bool) (n int, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0, err
	}
	var failed error
	err = raw.Read(func(fd uintptr) bool {
		n, _, failed = unix.Recvfrom(int(fd), b, unix.MSG_PEEK|unix.MSG_DONTWAIT)
		if failed == unix.EAGAIN || failed == unix.EINTR {
			return false
		}
		return failed != nil || n == 0 || n == len(b) || enough(b[:n])
	})
	switch {
	case err != nil:
		return 0, err
	case failed != nil:
		return 0, failed
	case n == 0:
		return 0, io.EOF
	}
	return n, nil
}

// errNotTLS does not show the bytes, which may be anything.
var errNotTLS = errors.New("transport: the connection does not begin with the TLS handshake of a client")

// nameIn returns the name in the first message of a TLS client. The TLS library decodes the message.
func nameIn(hello []byte) (string, error) {
	found := errors.New("found")
	name := ""
	config := &tls.Config{GetConfigForClient: func(info *tls.ClientHelloInfo) (*tls.Config, error) {
		name = info.ServerName
		return nil, found
	}}
	err := tls.Server(&replayed{r: bytes.NewReader(hello)}, config).HandshakeContext(context.Background())
	if !errors.Is(err, found) {
		return "", errNotTLS
	}
	return shortName(name)
}

// replayed is a connection from which only these bytes can be read. What is written is dropped.
type replayed struct {
	net.Conn
	r io.Reader
}

func (r *replayed) Read(p []byte) (int, error)  { return r.r.Read(p) }
func (r *replayed) Write(p []byte) (int, error) { return len(p), nil }
