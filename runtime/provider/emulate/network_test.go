// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package emulate

import (
	"io"
	"math/rand/v2"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// The lower bounds below are exact. The upper bounds leave a wide margin, because the machine may be busy.

// ends returns the two ends of a connection through a network.
func ends(t *testing.T, delay time.Duration, rate int64) (near, far *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	address, listener, err := New(delay, rate).Listen(l.Addr().String())
	require.NoError(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	c, err := net.Dial("tcp", address)
	require.NoError(t, err)
	d, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(); _ = d.Close() })
	return c.(*net.TCPConn), d.(*net.TCPConn)
}

func TestDelay(t *testing.T) {
	for _, delay := range []time.Duration{0, time.Millisecond / 2, 50 * time.Millisecond} {
		near, far := ends(t, delay, 0)
		go func() { _, _ = io.Copy(struct{ io.Writer }{far}, far) }()
		best := time.Hour
		for range 5 {
			start := time.Now()
			_, err := near.Write([]byte("ping"))
			require.NoError(t, err)
			_, err = io.ReadFull(near, make([]byte, 4))
			require.NoError(t, err)
			took := time.Since(start)
			assert.GreaterOrEqual(t, took, 2*delay)
			best = min(best, took)
		}
		assert.Less(t, best, 2*delay+time.Second/2)
	}
}

// TestRate checks that the line keeps its rate, with and without a delay.
func TestRate(t *testing.T) {
	const tenths = 3
	for _, delay := range []time.Duration{0, 50 * time.Millisecond} {
		for _, rate := range []int64{100_000_000, 1_000_000_000} {
			near, far := ends(t, delay, rate)
			n := rate / 8 * tenths / 10
			start := time.Now()
			go func() { _, _ = near.Write(make([]byte, n)) }()
			_, err := io.CopyN(io.Discard, far, n)
			took := time.Since(start)
			require.NoError(t, err)
			assert.GreaterOrEqual(t, took, delay+tenths*time.Second/10)
			assert.Less(t, took, time.Minute, "%d bits per second", rate)
		}
	}
}

// TestShared checks that two connections share the rate of a line.
func TestShared(t *testing.T) {
	const n = 4_000_000
	l := newLine(0, 8*n) // a second for n bytes
	start := time.Now()
	for range 10 {
		l.send(n / 20)
	}
	assert.GreaterOrEqual(t, l.send(0).Sub(start), time.Second/2)
}

// TestQueue checks that a sender has to wait when the queue is full, so that bytes of another connection wait no longer
// than the queue is long.
func TestQueue(t *testing.T) {
	const rate = 8_000_000
	near, _ := ends(t, 0, rate)
	require.NoError(t, near.SetWriteDeadline(time.Now().Add(time.Second/2)))
	n, err := near.Write(make([]byte, 64<<20))
	assert.Error(t, err)
	assert.Less(t, n, 16<<20) // in half a second 0.5 MB are sent; what the system buffers varies
}

// TestWhole checks that the same bytes arrive, independent of the sizes of writes, and that each direction ends alone.
func TestWhole(t *testing.T) {
	near, far := ends(t, 3*time.Millisecond, 400_000_000)
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
}

// TestGone checks that a writer has an error when the other end is closed, even with bytes under way.
func TestGone(t *testing.T) {
	near, far := ends(t, 5*time.Millisecond, 0)
	_, err := near.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	_, err = io.ReadFull(far, make([]byte, 1<<19))
	require.NoError(t, err)
	require.NoError(t, far.Close())
	require.NoError(t, near.SetWriteDeadline(time.Now().Add(time.Minute)))
	for b := make([]byte, 1<<20); err == nil; {
		_, err = near.Write(b)
	}
	assert.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestParse(t *testing.T) {
	for text, want := range map[string]time.Duration{"50ms": 50 * time.Millisecond, "0.5s": time.Second / 2,
		"250us": 250 * time.Microsecond, "0ms": 0} {
		got, err := ParseRTT(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for text, want := range map[string]int64{"100Mbit": 1e8, "1.5Gbit": 15e8, "64kbit": 64000, "8000bit": 8000} {
		got, err := ParseRate(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "50", "-1ms", "2m", "61s", "1h", "ms", "1.2.3ms"} {
		_, err := ParseRTT(text)
		require.ErrorContains(t, err, `as "50ms" is`, text)
	}
	for _, text := range []string{"", "100", "0bit", "1Tbit", "100MB", "1.2.3Mbit", "5000Gbit"} {
		_, err := ParseRate(text)
		require.ErrorContains(t, err, `as "100Mbit" is`, text)
	}
}
