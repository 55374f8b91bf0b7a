// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"bytes"
	"context"
	"io"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// busy are the stacks of goroutines of streams.
func busy() (out []string) {
	text := make([]byte, 4<<20)
	text = text[:runtime.Stack(text, true)]
	for stack := range strings.SplitSeq(string(text), "\n\n") {
		if strings.Contains(stack, "spdystream") || strings.Contains(stack, "kubernetes.(*stream)") {
			out = append(out, stack)
		}
	}
	return out
}

// allEnded waits until no goroutine of a stream is left.
func allEnded(t *testing.T) {
	t.Helper()
	for end := time.Now().Add(patience); len(busy()) > 0; time.Sleep(5 * time.Millisecond) {
		require.True(t, time.Now().Before(end), "%s", busy())
	}
}

// TestStreamsLeaveNothing: neither streams that are closed at either end, nor those with bytes that nobody has read.
func TestStreamsLeaveNothing(t *testing.T) {
	s := begin(t)
	in := started(t, specOf())
	for range 5 {
		c, err := in.Dial(within(t))
		require.NoError(t, err)
		require.NoError(t, c.Close())
		_, err = c.Write([]byte{1})
		require.ErrorIs(t, err, net.ErrClosed)
	}
	for range 5 {
		c, err := provider.Connect(within(t), in, transport.NewSessionName())
		require.NoError(t, err)
		require.NoError(t, c.Close())
	}
	allEnded(t)
	for range 5 { // the other end closes: such bytes are no TLS
		c, err := in.Dial(within(t))
		require.NoError(t, err)
		_, err = c.Write(bytes.Repeat([]byte("x"), 1<<20))
		if err == nil {
			_, err = io.ReadAll(c)
		}
		_ = err // an end, or an error that says the same
		require.NoError(t, c.Close())
	}
	allEnded(t)
	for range 5 {
		_, err := in.Dial(within(t))
		require.NoError(t, err)
	}
	require.NotEmpty(t, busy())
	s.CutStreams()
	allEnded(t)
}

// TestACutStreamEnds: reads and writes of a stream whose connection has ended end.
func TestACutStreamEnds(t *testing.T) {
	s := begin(t)
	in := started(t, specOf())
	c, err := in.Dial(within(t))
	require.NoError(t, err)
	defer c.Close()
	ends := make(chan error, 1)
	go func() {
		_, err := c.Read(make([]byte, 1))
		ends <- err
	}()
	require.Positive(t, s.CutStreams())
	select {
	case err := <-ends:
		require.Error(t, err)
	case <-time.After(patience):
		t.Fatal("the read goes on")
	}
	require.Eventually(t, func() bool {
		_, err := c.Write(make([]byte, 1<<16))
		return err != nil
	}, patience, time.Millisecond)
}

// TestAStreamThatIsBeingMade notices at once that its connection or its context has ended.
func TestAStreamThatIsBeingMade(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(*site, context.CancelFunc)
		want error
	}{
		{"connection", func(s *site, _ context.CancelFunc) {
			for s.CutStreams() == 0 { // the client knows of the connection a moment before the server does
				time.Sleep(time.Millisecond)
			}
		}, provider.ErrUnavailable},
		{"context", func(_ *site, cancel context.CancelFunc) { cancel() }, context.Canceled},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := begin(t)
			in := started(t, specOf())
			s.HoldStreams(true)
			t.Cleanup(func() { s.HoldStreams(false) })
			ctx, cancel := context.WithCancel(within(t))
			defer cancel()
			ends := make(chan error, 1)
			go func() {
				_, err := in.Dial(ctx)
				ends <- err
			}()
			require.Eventually(t, func() bool {
				return strings.Contains(strings.Join(busy(), ""), "kubernetes.(*stream).open")
			}, patience, time.Millisecond)
			began := time.Now()
			c.end(s, cancel)
			require.ErrorIs(t, <-ends, c.want)
			require.Less(t, time.Since(began), 20*time.Second, "less than the 30 s for which client-go waits for a reply")
			s.HoldStreams(false)
			allEnded(t)
		})
	}
}

// TestAPortThatNobodyListensOn: the stream's error has what the node says.
func TestAPortThatNobodyListensOn(t *testing.T) {
	s := begin(t)
	in := started(t, specOf())
	s.StopListening(in.name)
	c, err := in.Dial(within(t))
	require.NoError(t, err)
	defer c.Close()
	_, err = io.ReadAll(c)
	require.ErrorIs(t, err, provider.ErrUnavailable)
	require.ErrorContains(t, err, "error forwarding port 7070")
}

// TestADescriptorForForks: a forked child finds the descriptor of a stream's connection.
func TestADescriptorForForks(t *testing.T) {
	begin(t)
	in := started(t, specOf())
	c, err := in.Dial(within(t))
	require.NoError(t, err)
	defer c.Close()
	for {
		above, ok := c.(interface{ NetConn() net.Conn })
		if !ok {
			break
		}
		c = above.NetConn()
	}
	require.IsType(t, new(net.TCPConn), c)
}
