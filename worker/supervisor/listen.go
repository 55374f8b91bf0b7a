// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"net"
	"strings"
	"sync"
)

// Listen listens on an address of a network, or on several with commas between them. Networks between the client and
// the worker may treat ports differently: one lets TCP pass, another one only what comes in a TLS of its own.
func Listen(network, addresses string) (net.Listener, error) {
	if network == "unix" { // a path may have a comma
		return net.Listen(network, addresses)
	}
	m := &several{conns: make(chan accepted), closed: make(chan struct{})}
	for address := range strings.SplitSeq(addresses, ",") {
		l, err := net.Listen(network, address)
		if err != nil {
			_ = m.Close()
			return nil, err
		}
		m.all = append(m.all, l)
	}
	if len(m.all) == 1 {
		return m.all[0], nil
	}
	for _, l := range m.all {
		go m.accept(l)
	}
	return m, nil
}

// several are listeners that are one.
type several struct {
	all    []net.Listener
	conns  chan accepted
	once   sync.Once
	closed chan struct{}
}

type accepted struct {
	conn net.Conn
	err  error
}

// accept passes on what one of the listeners accepts, and its errors.
func (m *several) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		select {
		case m.conns <- accepted{c, err}:
		case <-m.closed:
			if err == nil {
				_ = c.Close()
			}
			return
		}
		if err != nil && !scarce(err) {
			return
		}
	}
}

// Accept implements net.Listener.
func (m *several) Accept() (net.Conn, error) {
	select {
	case <-m.closed:
		return nil, net.ErrClosed
	case a := <-m.conns:
		return a.conn, a.err
	}
}

// Close implements net.Listener.
func (m *several) Close() error {
	m.once.Do(func() { close(m.closed) })
	var errs []error
	for _, l := range m.all {
		errs = append(errs, l.Close())
	}
	return errors.Join(errs...)
}

// Addr implements net.Listener: it is the first.
func (m *several) Addr() net.Addr { return m.all[0].Addr() }
