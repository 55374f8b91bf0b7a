// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package count

import (
	"crypto/tls"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

const delay = 5 * time.Millisecond

// echo serves TLS on the loopback, behind a line: it sends back what comes, in pieces of this size.
func echo(t *testing.T, size int) (addr string, client *transport.Credentials, c *Counter) {
	client, ours, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	behind, before := listen(t), listen(t)
	go func() {
		for {
			raw, err := behind.Accept()
			if err != nil {
				return
			}
			go func() {
				defer raw.Close()
				conn := ours.WorkerSide(raw)
				p := make([]byte, size)
				for {
					if _, err := io.ReadFull(conn, p); err != nil {
						return
					}
					if _, err := conn.Write(p); err != nil {
						return
					}
				}
			}()
		}
	}()
	c = new(Counter)
	go func() { _ = Line{Delay: delay, Counter: c}.Serve(before, "tcp", behind.Addr().String()) }()
	return before.Addr().String(), client, c
}

func listen(t *testing.T) net.Listener {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func dial(t *testing.T, addr string, client *transport.Credentials) *tls.Conn {
	raw, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = raw.Close() })
	c := client.ClientSide(raw, transport.NewSessionName())
	require.NoError(t, c.Handshake())
	return c
}

// ask sends n bytes and waits for them.
func ask(t *testing.T, c net.Conn, n int) {
	_, err := c.Write(make([]byte, n))
	require.NoError(t, err)
	_, err = io.ReadFull(c, make([]byte, n))
	require.NoError(t, err)
}

func TestEachWaitIsATrip(t *testing.T) {
	addr, client, c := echo(t, 100)
	conn := dial(t, addr, client)
	require.Equal(t, 2, c.Result().Trips, "the handshakes of TCP and TLS")
	for i := range 5 {
		ask(t, conn, 100)
		got := c.Result()
		require.Equal(t, 3+i, got.Trips)
		require.Equal(t, 1, got.Connections)
		require.Greater(t, got.Seconds, float64(3+i)*2*delay.Seconds()*0.99, "each costs its time")
	}
	c.Reset()
	require.Zero(t, c.Result().Trips)
	ask(t, conn, 100)
	require.Equal(t, 1, c.Result().Trips)
}

// TestOneFlightIsOneTrip: what the client sends without a wait is one trip, in many chunks and over many connections.
func TestOneFlightIsOneTrip(t *testing.T) {
	c := new(Counter)
	c.begin(true)
	c.begin(true)
	require.Equal(t, 2, c.Result().Trips, "one after the other: nothing says that the client has not waited")
	var there, back []int
	for range 20 {
		there = append(there, c.sent(true))
	}
	c.arrived(there[0], false)
	back = append(back, c.sent(false)) // the first answer leaves before the other chunks arrive
	for _, n := range there[1:] {
		c.arrived(n, false)
		back = append(back, c.sent(false))
	}
	for _, n := range back {
		c.arrived(n, true)
		require.Equal(t, 3, c.Result().Trips)
	}
	c.arrived(c.sent(false), true) // the worker sends more without a request
	require.Equal(t, 3, c.Result().Trips)
	c.arrived(c.sent(true), false)
	c.arrived(c.sent(false), true)
	require.Equal(t, 4, c.Result().Trips)
	require.Equal(t, 2, c.Result().Connections)
}

// TestEmptyRecordsAreNotCounted: those of a link that carry no bytes have 16.
func TestEmptyRecordsAreNotCounted(t *testing.T) {
	addr, client, c := echo(t, 16)
	conn := dial(t, addr, client)
	for range 3 {
		ask(t, conn, 16)
	}
	require.Equal(t, 2, c.Result().Trips)
}

// TestAPipe: text comes before TLS, and counts.
func TestAPipe(t *testing.T) {
	c := new(Counter)
	client, ours, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	near, nearLine := net.Pipe()
	far, farLine := net.Pipe()
	go Line{Delay: delay, Counter: c}.Pipe(nearLine, farLine, farLine, nearLine, true)
	go func() {
		p := make([]byte, 6)
		_, _ = io.ReadFull(far, p)
		_, _ = far.Write(p)
		conn := ours.WorkerSide(far)
		_, _ = io.Copy(struct{ io.Writer }{conn}, conn)
	}()
	ask(t, near, 6)
	require.Equal(t, 1, c.Result().Trips)
	conn := client.ClientSide(near, transport.NewSessionName())
	require.NoError(t, conn.Handshake())
	require.Equal(t, 2, c.Result().Trips)
	ask(t, conn, 16)
	require.Equal(t, 2, c.Result().Trips)
	ask(t, conn, 17)
	require.Equal(t, 3, c.Result().Trips)
	_, _ = near.Close(), far.Close()
}
