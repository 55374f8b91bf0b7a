// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
)

// Compare only results of the same run.
//
//	go test -run xxx -bench . -benchtime 10x ./proto/link

const bulk = 256 << 20

// loopback is a TLS connection over TCP on this host.
func loopback(b testing.TB) (client, worker net.Conn) {
	near, far, err := transport.Mint(time.Hour)
	if err != nil {
		b.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan net.Conn)
	go func() {
		c, err := l.Accept()
		if err != nil {
			b.Error(err)
		}
		w := far.WorkerSide(c)
		_ = w.Handshake()
		accepted <- w
	}()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	secure := near.ClientSide(c, transport.NewSessionName())
	if err := secure.Handshake(); err != nil {
		b.Fatal(err)
	}
	client, worker = secure, <-accepted
	b.Cleanup(func() { _, _ = client.Close(), worker.Close() })
	return client, worker
}

// linked is a stream over such a connection.
func linked(b testing.TB) (client, worker net.Conn) {
	c, w := loopback(b)
	end := NewWorker(Default)
	go func() {
		h, err := ReadHello(w)
		if err != nil {
			b.Error(err)
		}
		_ = end.Attach(w, h)
	}()
	s, err := Dial(b.Context(), Default, func(context.Context) (net.Conn, error) { return c, nil }, nil, func(Notice) {})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _, _ = s.Close(), end.Close() })
	return s, end
}

// BenchmarkBulk is 256 MiB in one direction.
func BenchmarkBulk(b *testing.B) {
	for name, make2 := range map[string]func(testing.TB) (net.Conn, net.Conn){"TLS": loopback, "link": linked} {
		b.Run(name, func(b *testing.B) {
			c, w := make2(b)
			src, dst := make([]byte, bulk), make([]byte, bulk)
			b.SetBytes(bulk)
			b.ResetTimer()
			go func() {
				for range b.N {
					_, _ = c.Write(src)
				}
			}()
			for range b.N {
				if _, err := io.ReadFull(w, dst); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRoundTrip is 64 bytes there and back.
func BenchmarkRoundTrip(b *testing.B) {
	for name, make2 := range map[string]func(testing.TB) (net.Conn, net.Conn){"TLS": loopback, "link": linked} {
		b.Run(name, func(b *testing.B) {
			c, w := make2(b)
			go func() { _, _ = io.Copy(struct{ io.Writer }{w}, struct{ io.Reader }{w}) }()
			p := make([]byte, 64)
			for b.Loop() {
				if _, err := c.Write(p); err != nil {
					b.Fatal(err)
				}
				if _, err := io.ReadFull(c, p); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
