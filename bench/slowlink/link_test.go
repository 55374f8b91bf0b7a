// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lower bounds below are exact. The upper bounds leave a wide margin, because the machine may be busy.

// pair returns the two ends of a unix connection.
func pair(t *testing.T) (a, b *net.UnixConn) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	d, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(); _ = d.Close() })
	return c.(*net.UnixConn), d.(*net.UnixConn)
}

// ends returns the two ends of a link. joined is closed when the link ends.
func ends(t *testing.T, delay time.Duration, rate int64) (near, far *net.UnixConn, joined chan struct{}) {
	l, err := newLink(delay, rate)
	require.NoError(t, err)
	near, client := pair(t)
	worker, far := pair(t)
	joined = make(chan struct{})
	go func() { defer close(joined); l.join(client, worker) }()
	return near, far, joined
}

// echo returns one end of a link; the other end sends back what it receives.
func echo(t *testing.T, delay time.Duration, rate int64) *net.UnixConn {
	near, far, _ := ends(t, delay, rate)
	go func() { _, _ = io.Copy(far, far); _ = far.CloseWrite() }()
	return near
}

func TestDelay(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond / 2, 5 * time.Millisecond, 50 * time.Millisecond} {
		c := echo(t, delay, 0)
		best := time.Hour
		for range 5 {
			start := time.Now()
			_, err := c.Write([]byte("ping"))
			require.NoError(t, err)
			_, err = io.ReadFull(c, make([]byte, 4))
			require.NoError(t, err)
			took := time.Since(start)
			assert.GreaterOrEqual(t, took, 2*delay)
			best = min(best, took)
		}
		assert.Less(t, best, 2*delay+time.Second/2)
	}
}

// TestMany checks that a message is not delayed by the messages in flight before it.
func TestMany(t *testing.T) {
	const delay, messages = 50 * time.Millisecond, 200
	c := echo(t, delay, 0)
	start := time.Now()
	go func() {
		for range messages {
			_, _ = c.Write([]byte("ping"))
			time.Sleep(time.Millisecond)
		}
	}()
	_, err := io.ReadFull(c, make([]byte, 4*messages))
	require.NoError(t, err)
	assert.Less(t, time.Since(start), messages*2*delay*3/4)
}

// TestDelayIsNoRate checks that a delay alone does not limit the rate of a large transfer.
func TestDelayIsNoRate(t *testing.T) {
	const delay, n = 50 * time.Millisecond, 64 << 20
	c := echo(t, delay, 0)
	start := time.Now()
	go func() { _, _ = c.Write(make([]byte, n)) }()
	got, err := io.CopyN(io.Discard, c, n)
	require.NoError(t, err)
	assert.EqualValues(t, n, got)
	assert.Less(t, time.Since(start), time.Minute) // with one chunk of 32 KiB per round trip: 200 s
}

func TestRate(t *testing.T) {
	for _, rate := range []int64{100_000_000, 1_000_000_000} {
		const tenths = 3
		near, far, _ := ends(t, 0, rate)
		n := rate / 8 * tenths / 10
		start := time.Now()
		go func() { _, _ = near.Write(make([]byte, n)) }()
		_, err := io.CopyN(io.Discard, far, n)
		took := time.Since(start)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, took, tenths*time.Second/10)
		assert.Less(t, took, time.Minute, "%d bits per second", rate)
	}
}

// TestWhole checks that the same bytes arrive, independent of the sizes of writes, and that each direction ends alone.
func TestWhole(t *testing.T) {
	near, far, joined := ends(t, 3*time.Millisecond, 400_000_000)
	random := rand.New(rand.NewPCG(1, 2))
	sent := make([]byte, 4<<20+7)
	for i := range sent {
		sent[i] = byte(random.Uint32())
	}
	go func() {
		for rest := sent; len(rest) > 0; {
			n := min(len(rest), 1+random.IntN(100_000))
			_, _ = near.Write(rest[:n])
			rest = rest[n:]
		}
		_ = near.CloseWrite()
	}()
	got, err := io.ReadAll(far)
	require.NoError(t, err)
	require.True(t, string(got) == string(sent), "the bytes differ")

	_, err = far.Write([]byte("the other way is open"))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	back, err := io.ReadAll(near)
	require.NoError(t, err)
	assert.Equal(t, "the other way is open", string(back))
	<-joined
}

// TestGone checks that a link ends when one end is closed, even with bytes in flight.
func TestGone(t *testing.T) {
	near, far, joined := ends(t, 5*time.Millisecond, 0)
	go func() { // writes more than sockets and link hold
		for b := make([]byte, 1<<20); ; {
			if _, err := near.Write(b); err != nil {
				return
			}
		}
	}()
	_, err := io.ReadFull(far, make([]byte, 1<<20))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	select {
	case <-joined:
	case <-time.After(time.Minute):
		t.Error("the link is still there")
	}
}

func TestNewLink(t *testing.T) {
	for _, test := range []struct {
		delay time.Duration
		rate  int64
		want  link
		ok    bool
	}{
		{0, 0, link{}, true},
		{50 * time.Millisecond, 1_000_000_000, link{50, 50, 125_000}, true},
		{time.Millisecond / 2, 100_000_000, link{1, 0, 12_500}, true},
		{time.Millisecond / 4, 0, link{}, false},
		{-time.Millisecond, 0, link{}, false},
		{0, 1, link{}, false},
		{0, -8000, link{}, false},
	} {
		l, err := newLink(test.delay, test.rate)
		assert.Equal(t, test.ok, err == nil, "%v", test)
		assert.Equal(t, test.want, l, "%v", test)
	}
}
