// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// secureSocket is a supervisor with credentials on a unix socket, as on a host that is reached by ssh.
func secureSocket(t *testing.T) *remote {
	t.Helper()
	dir, err := os.MkdirTemp("", "mw") // t.TempDir's path is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	r, l := newRemoteOn(t, "unix", filepath.Join(dir, "s"))
	serveUntilTheEnd(t, r.supervisor, l)
	return r
}

// TestASocketWithCredentials: this user's clients must prove who they are, too.
func TestASocketWithCredentials(t *testing.T) {
	r := secureSocket(t)
	name := transport.NewSessionName()
	c, _ := r.session(t, name)
	works(t, c)
	other, _, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	r.refused(t, other.Client(transport.NewSessionName()))
	raw := r.raw(t)
	require.NoError(t, transport.New(raw).Send(transport.Hello, 1, goodHello(), nil))
	got, err := io.ReadAll(raw)
	require.False(t, errors.Is(err, os.ErrDeadlineExceeded))
	require.Empty(t, got, "a client without TLS gets no answer")
	works(t, c)
}

// TestRelay: a session works through a relay, which ends when its client does.
func TestRelay(t *testing.T) {
	r := secureSocket(t)
	theirIn, ourOut, err := os.Pipe()
	require.NoError(t, err)
	ourIn, theirOut, err := os.Pipe()
	require.NoError(t, err)
	ended := make(chan error, 1)
	go func() {
		ended <- supervisor.Relay(r.addr, theirIn, theirOut)
		_ = theirOut.Close()
	}()
	mark := make([]byte, len(transport.RelayMark))
	_, err = io.ReadFull(ourIn, mark)
	require.NoError(t, err)
	require.Equal(t, transport.RelayMark, string(mark))
	dial := func(ctx context.Context) (net.Conn, error) {
		secure := r.credentials.ClientSide(&pipeConn{in: ourIn, out: ourOut}, transport.NewSessionName())
		return secure, secure.HandshakeContext(ctx)
	}
	s, err := link.Dial(t.Context(), link.Default, dial, nil, func(link.Notice) {})
	require.NoError(t, err)
	c := clientOf(t, s)
	c.send(transport.Hello, goodHello(), nil)
	c.expect(transport.Hello, 0, new(proto.Hello))
	works(t, c)
	require.NoError(t, s.Close())
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(patience):
		t.Fatal("the relay does not end with its client")
	}
}

func TestARelayWithoutItsWorker(t *testing.T) {
	err := supervisor.Relay(filepath.Join(t.TempDir(), "none"), os.Stdin, os.Stdout)
	require.ErrorContains(t, err, "the worker's socket cannot be reached")
	require.ErrorIs(t, err, syscall.ENOENT)
}
