// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
)

// peer is the client's end of one way to exchange bytes with a server in another process.
type peer interface {
	up(src []byte) error   // sends bytes; returns when the server has them all in its memory
	down(dst []byte) error // receives bytes from the server's memory
	trip() error           // sends tripBytes and receives as many
}

const tripBytes = 64

// memory is what a server receives into and sends from. One transfer at a time uses it, and it is never given back, so
// its pages are mapped after the first transfer.
type memory struct {
	sync.Mutex
	bytes []byte
}

// use calls f with n bytes.
func (m *memory) use(n uint64, f func(b []byte) error) error {
	m.Lock()
	defer m.Unlock()
	if uint64(len(m.bytes)) < n {
		m.bytes = make([]byte, n)
		for i := range m.bytes { // zeros need not be mapped
			m.bytes[i] = byte(i)
		}
	}
	return f(m.bytes[:n])
}

// stream is a peer on a net.Conn. A request has tripBytes: what it asks for, and a number of bytes in 8 bytes. The
// answer to "up" and to "trip" is the request, when the server has what follows it; that to "down" are the bytes.
type stream struct{ conn net.Conn }

const (
	askUp   = 'u'
	askDown = 'd'
	askTrip = 't'
)

func (s stream) ask(what byte, n int) error {
	var request [tripBytes]byte
	request[0] = what
	binary.LittleEndian.PutUint64(request[1:], uint64(n))
	_, err := s.conn.Write(request[:])
	return err
}

func (s stream) answer() error {
	var answer [tripBytes]byte
	_, err := io.ReadFull(s.conn, answer[:])
	return err
}

func (s stream) up(src []byte) error {
	if err := s.ask(askUp, len(src)); err != nil {
		return err
	}
	if _, err := s.conn.Write(src); err != nil {
		return err
	}
	return s.answer()
}

func (s stream) down(dst []byte) error {
	if err := s.ask(askDown, len(dst)); err != nil {
		return err
	}
	_, err := io.ReadFull(s.conn, dst)
	return err
}

func (s stream) trip() error {
	if err := s.ask(askTrip, 0); err != nil {
		return err
	}
	return s.answer()
}

// serve answers the requests of a connection until it ends.
func serve(c net.Conn, m *memory) error {
	defer c.Close()
	var request [tripBytes]byte
	for {
		if _, err := io.ReadFull(c, request[:]); err != nil {
			return err
		}
		n, err := binary.LittleEndian.Uint64(request[1:]), error(nil)
		switch request[0] {
		case askUp:
			err = m.use(n, func(b []byte) error { _, err := io.ReadFull(c, b); return err })
		case askDown:
			err = m.use(n, func(b []byte) error { _, err := c.Write(b); return err })
		}
		if err == nil && request[0] != askDown {
			_, err = c.Write(request[:])
		}
		if err != nil {
			return err
		}
	}
}

// names of the peers. Those of one server differ in what a round trip is.
const (
	rawTCP    = "raw"
	plainTLS  = "tls"
	ourLink   = "link"
	gRPC      = "grpc"
	gRPCTLS   = "grpc-tls"
	gRPCUnary = "grpc-unary" // a round trip is a call of its own, not two messages of one call
)

// open connects to the server of a peer. addresses are by the names of the servers.
func open(name string, addresses map[string]string, secret *transport.Credentials) (peer, error) {
	switch name {
	case gRPC, gRPCUnary:
		return openGRPC(addresses[gRPC], nil, name == gRPCUnary)
	case gRPCTLS:
		return openGRPC(addresses[gRPCTLS], secret.Client(transport.NewSessionName()), false)
	}
	address, ok := addresses[name]
	if !ok {
		return nil, fmt.Errorf("there is no peer %q", name)
	}
	c, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	session := transport.NewSessionName()
	switch name {
	case rawTCP:
		return stream{c}, nil
	case plainTLS:
		return stream{tls.Client(c, secret.Client(session))}, nil
	}
	dialed := func(context.Context) (net.Conn, error) { return secret.ClientSide(c, session), nil }
	s, err := link.Dial(context.Background(), link.Default, dialed, nil, func(link.Notice) {})
	return stream{s}, err
}

// listen starts the servers of all peers, and returns their addresses by name.
func listen(secret *transport.Credentials, m *memory) (map[string]string, error) {
	servers := map[string]func(net.Conn) error{
		rawTCP:   func(c net.Conn) error { return serve(c, m) },
		plainTLS: func(c net.Conn) error { return serve(tls.Server(c, secret.Worker()), m) },
		ourLink:  func(c net.Conn) error { return serveLink(secret.WorkerSide(c), m) },
	}
	addresses := map[string]string{}
	for name, answer := range servers {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		addresses[name] = l.Addr().String()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				go func() { report(name, answer(c)) }()
			}
		}()
	}
	for name, config := range map[string]*tls.Config{gRPC: nil, gRPCTLS: secret.Worker()} {
		var err error
		if addresses[name], err = listenGRPC(config, m); err != nil {
			return nil, err
		}
	}
	return addresses, nil
}

func serveLink(c *tls.Conn, m *memory) error {
	if err := c.Handshake(); err != nil {
		return err
	}
	hello, err := link.ReadHello(c)
	if err != nil {
		return err
	}
	end := link.NewWorker(link.Default)
	if err := end.Attach(c, hello); err != nil {
		return err
	}
	return serve(end, m)
}

// isEnd says whether an error only means that the other end has closed the connection.
func isEnd(err error) bool {
	return err == nil || errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed)
}
