// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"errors"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/mycelya/mycelya/worker/supervisor"

	"github.com/stretchr/testify/require"
)

func TestListenOnSeveralPorts(t *testing.T) {
	first, second := freePort(t), freePort(t)
	l, err := supervisor.Listen("tcp", first+","+second)
	for errors.Is(err, syscall.EADDRINUSE) { // another process has taken one of them meanwhile
		first, second = freePort(t), freePort(t)
		l, err = supervisor.Listen("tcp", first+","+second)
	}
	require.NoError(t, err)
	require.Equal(t, first, l.Addr().String())
	for _, addr := range []string{second, first, second} {
		client, err := net.Dial("tcp", addr)
		require.NoError(t, err)
		defer client.Close()
		theirs, err := l.Accept()
		require.NoError(t, err)
		require.Equal(t, addr, theirs.LocalAddr().String())
		require.IsType(t, &net.TCPConn{}, theirs)
		require.NoError(t, theirs.Close())
	}
	accepted := make(chan error, 1)
	go func() { _, err := l.Accept(); accepted <- err }()
	require.NoError(t, l.Close())
	select {
	case err := <-accepted:
		require.ErrorIs(t, err, net.ErrClosed)
	case <-time.After(patience):
		t.Fatal("Close does not end Accept")
	}
	for _, addr := range []string{first, second} {
		_, err := net.Dial("tcp", addr)
		require.Error(t, err)
	}
}

func TestListenWithAPortThatIsTaken(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	isFree := false
	for try := 0; !isFree && try < 5; try++ { // another process may take a port at any time
		free := freePort(t)
		_, err = supervisor.Listen("tcp", free+","+l.Addr().String())
		require.Error(t, err)
		again, err := net.Listen("tcp", free)
		if isFree = err == nil; isFree {
			require.NoError(t, again.Close())
		}
	}
	require.True(t, isFree, "the first port is free again")
}
