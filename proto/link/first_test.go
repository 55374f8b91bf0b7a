// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

// first are bytes that go with a hello.
var first = bytes.Repeat([]byte("first "), 300)

// tripTime is the time of a round trip of slow.
const tripTime = 100 * time.Millisecond

// slow is a connection whose bytes arrive half a round trip after they were written.
type slow struct {
	net.Conn
	under chan late
}

type late struct {
	bytes []byte
	at    time.Time
}

func newSlow(c net.Conn) *slow {
	s := &slow{c, make(chan late, 1000)}
	go func() {
		for l := range s.under {
			time.Sleep(time.Until(l.at))
			if len(l.bytes) == 0 {
				_ = s.Conn.Close()
				return
			}
			_, _ = s.Conn.Write(l.bytes)
		}
	}()
	return s
}

func (s *slow) Write(p []byte) (int, error) {
	s.under <- late{bytes.Clone(p), time.Now().Add(tripTime / 2)}
	return len(p), nil
}

// Close closes the connection when the bytes before have arrived.
func (s *slow) Close() error {
	s.under <- late{at: time.Now().Add(tripTime / 2)}
	return nil
}

// TestTheFirstBytesTakeNoRoundTrip: the answer to the first bytes comes with the answer to the hello. The clock of
// testing/synctest stands still while anything computes, so a time is a number of round trips.
func TestTheFirstBytesTakeNoRoundTrip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, Default, 0)
		go func() {
			p := make([]byte, len(first))
			_, _ = io.ReadFull(w.attached, p)
			_, _ = w.attached.Write(p)
		}()
		began := time.Now()
		c, err := Dial(t.Context(), Default, func(ctx context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			go w.accept(newSlow(far))
			out := w.client.ClientSide(newSlow(near), transport.NewSessionName())
			return out, out.HandshakeContext(ctx)
		}, first, func(Notice) {})
		require.NoError(t, err)
		got := make([]byte, len(first))
		_, err = io.ReadFull(c, got)
		require.NoError(t, err)
		require.Equal(t, first, got)
		require.Equal(t, 2*tripTime, time.Since(began), "TLS, and the answers")
		_, _ = c.Close(), w.attached.Close()
		time.Sleep(Default.Grace)
	})
}

// TestFirstBytesThatMayHaveArrived: the worker has taken the first bytes, and the connection ends before its answer
// comes. The client asks before it sends them again.
func TestFirstBytesThatMayHaveArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, Default, 0)
		dials := 0
		c, err := Dial(t.Context(), Default, func(ctx context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			if dials++; dials == 1 {
				go func() {
					w.accept(deaf{far})
					p := make([]byte, 7)
					_, _ = io.ReadFull(w.attached, p)
					_ = far.Close()
				}()
			} else {
				go w.accept(far)
			}
			out := w.client.ClientSide(near, transport.NewSessionName())
			return out, out.HandshakeContext(ctx)
		}, first, func(Notice) {})
		require.NoError(t, err)
		require.Equal(t, 2, dials)
		require.NoError(t, c.CloseWrite())
		rest, err := io.ReadAll(w.attached)
		require.NoError(t, err)
		require.Equal(t, first[7:], rest)
		_, _ = c.Close(), w.attached.Close()
	})
}

// deaf is a connection of a worker whose records of the size of an answer never arrive.
type deaf struct{ net.Conn }

func (d deaf) Write(p []byte) (int, error) {
	const answer = 5 + helloBytes + 1 + 16 // in a record of TLS
	if len(p) == answer {
		return len(p), nil
	}
	return d.Conn.Write(p)
}

// TestFirstBytesAreSentAgain after a verdict: the process of another session has dropped them.
func TestFirstBytesAreSentAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, Default, 0)
		dials := 0
		c, err := Dial(t.Context(), Default, func(ctx context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			if dials++; dials < 4 {
				go func() {
					c := w.worker.WorkerSide(far)
					if _, err := ReadHello(c); err == nil {
						_ = Refuse(c, Again)
					}
				}()
			} else {
				go w.accept(far)
			}
			out := w.client.ClientSide(near, transport.NewSessionName())
			return out, out.HandshakeContext(ctx)
		}, first, func(Notice) {})
		require.NoError(t, err)
		require.Equal(t, 4, dials)
		require.NoError(t, c.CloseWrite())
		got, err := io.ReadAll(w.attached)
		require.NoError(t, err)
		require.Equal(t, first, got)
		_, _ = c.Close(), w.attached.Close()
	})
}

// TestARefusalArrives: a client on TCP reads that it is refused, although the worker has not read its first bytes.
func TestARefusalArrives(t *testing.T) {
	client, ours, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	refused := make(chan error, 1)
	go func() {
		raw, err := l.Accept()
		if err != nil {
			refused <- err
			return
		}
		c := ours.WorkerSide(raw)
		if _, err := ReadHello(c); err != nil {
			refused <- err
			return
		}
		began := time.Now()
		err = Refuse(c, Stopping)
		if time.Since(began) > 10*refuseWait {
			err = errors.New("it has waited for a client that is gone")
		}
		refused <- err
	}()
	_, err = Dial(t.Context(), Default, func(ctx context.Context) (net.Conn, error) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return nil, err
		}
		out := client.ClientSide(c, transport.NewSessionName())
		return out, out.HandshakeContext(ctx)
	}, make([]byte, MaxFirst), func(Notice) {})
	require.ErrorIs(t, err, ErrStopping)
	require.NoError(t, <-refused)
}

func TestTooManyFirstBytes(t *testing.T) {
	never := func(context.Context) (net.Conn, error) { panic("it dials") }
	_, err := Dial(t.Context(), Default, never, make([]byte, MaxFirst+1), nil)
	require.EqualError(t, err, "link: there are 8193 first bytes, and at most 8192 can go with a hello")
}

// TestAnotherVersion: each end learns which versions there are.
func TestAnotherVersion(t *testing.T) {
	near, far := net.Pipe()
	theirs := make(chan error, 1)
	go func() {
		_, err := ReadHello(far)
		theirs <- err
	}()
	hello := Hello{Fresh: true, Epoch: 1}.encode()
	hello[4] = Version + 1
	go func() { _, _ = near.Write(append(hello, first...)) }()
	answer := make([]byte, helloBytes)
	_, err := io.ReadFull(near, answer)
	require.NoError(t, err)
	require.NoError(t, near.Close())
	require.EqualError(t, <-theirs, "link: the other end speaks another version: 2, and this end speaks version 1")
	require.EqualValues(t, Version, answer[4])
	require.Equal(t, OtherVersion, Verdict(answer[5]))
	answer[4] = Version + 1 // of a worker that speaks only that
	_, _, err = decodeAnswer(answer)
	require.EqualError(t, err, "link: the other end speaks another version: 2, and this end speaks version 1")
}
