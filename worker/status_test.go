// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker"
)

// page reads a page of a supervisor.
func page(t *testing.T, l net.Listener, path string) (int, string) {
	t.Helper()
	answer, err := http.Get("http://" + l.Addr().String() + path)
	require.NoError(t, err)
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	require.NoError(t, err)
	return answer.StatusCode, string(text)
}

func TestStatus(t *testing.T) {
	r := superviseRemote(t)
	l, err := worker.ListenStatus("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { _ = r.supervisor.Status(l) }()
	has := func(line string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, text := page(t, l, "/metrics")
			return strings.Contains(text, "\n"+line+"\n")
		}, 10*time.Second, 10*time.Millisecond, line)
	}
	code, text := page(t, l, "/healthz")
	require.Equal(t, http.StatusOK, code, text)
	has("mycelya_sessions 0")
	name := transport.NewSessionName()
	first, pid := r.session(t, name)
	_, _ = r.session(t, transport.NewSessionName())
	has("mycelya_sessions 2")
	has("mycelya_sessions_total 2")
	_, err = r.raw(t).Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	has("mycelya_connections_refused_total 1")
	works(t, first)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	has(`mycelya_session_ends_total{how="signal"} 1`)
	has("mycelya_sessions 1")
	_, text = page(t, l, "/metrics")
	require.NotContains(t, text, name, "names of sessions are nobody's business")
	code, _ = page(t, l, "/other")
	require.Equal(t, http.StatusNotFound, code)
	r.supervisor.Close()
	code, text = page(t, l, "/healthz")
	require.Equal(t, http.StatusServiceUnavailable, code)
	require.Equal(t, "the worker ends\n", text)
}

func TestAStatusPageIsForThisHost(t *testing.T) {
	for _, address := range []string{"0.0.0.0:0", ":0", "10.1.2.3:80", "localhost:0", "nonsense", "[::]:0"} {
		_, err := worker.ListenStatus(address)
		require.Error(t, err, address)
	}
}

// serveWith serves with clocks, and returns the supervisor and when it has ended.
func serveWith(t *testing.T, c worker.Clocks) (*remote, <-chan error) {
	r, l := newRemote(t)
	r.supervisor.Clocks = c
	ended := make(chan error, 1)
	go func() { ended <- r.supervisor.Serve(l) }()
	t.Cleanup(r.supervisor.Close)
	return r, ended
}

func TestAWorkerEndsWhenItIsAlone(t *testing.T) {
	const alone = 2 * time.Second // the first session must be faster
	r, ended := serveWith(t, worker.Clocks{Alone: alone})
	c, _ := r.session(t, transport.NewSessionName())
	time.Sleep(alone + alone/4)
	works(t, c)
	began := time.Now()
	require.NoError(t, c.c.Close())
	require.NoError(t, <-ended)
	require.GreaterOrEqual(t, time.Since(began), alone*3/4)
	require.Contains(t, r.log.String(), "it had no session")
}

func TestAWorkerEndsWithItsLease(t *testing.T) {
	r, ended := serveWith(t, worker.Clocks{Lease: 4 * time.Second, Alone: time.Hour})
	c, pid := r.session(t, transport.NewSessionName())
	works(t, c)
	require.NoError(t, <-ended)
	require.False(t, isRunning(pid))
	require.Contains(t, r.log.String(), "its lease has passed")
}
