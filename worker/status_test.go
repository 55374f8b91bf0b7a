// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/supervisor"
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
	l, err := supervisor.ListenStatus("127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() { _ = r.supervisor.Status(l) }()
	has := func(line string) {
		t.Helper()
		require.Eventually(t, func() bool {
			_, text := page(t, l, "/metrics")
			return strings.Contains(text, "\n"+line+"\n")
		}, time.Minute, 10*time.Millisecond, line)
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
		_, err := supervisor.ListenStatus(address)
		require.Error(t, err, address)
	}
}

// TestAStatusPageOnASocket reads the page of a worker with clocks and a client.
func TestAStatusPageOnASocket(t *testing.T) {
	gpu := supervisor.GPU{Device: "cuda:1", Utilization: 40, MemoryUtilization: -1, Temperature: 60, Power: -1,
		Clock: 1500, Memory: map[uint32]float64{9: 7}}
	r, _ := serveWith(t, supervisor.Clocks{Lease: time.Hour, Alone: 30 * time.Minute}, gpu)
	_, pid := r.session(t, transport.NewSessionName())
	path := filepath.Join(t.TempDir(), "status")
	for range 2 { // a socket that a worker has left is replaced
		l, err := supervisor.ListenStatus("unix:" + path)
		require.NoError(t, err)
		l.(*net.UnixListener).SetUnlinkOnClose(false)
		info, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
		done := make(chan error, 1)
		go func() { done <- r.supervisor.Status(l) }()
		client := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, "unix", path)
			}}}
		answer, err := client.Get("http://worker/metrics")
		require.NoError(t, err)
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		_ = answer.Body.Close()
		value := func(name string) float64 {
			found := regexp.MustCompile(`(?m)^` + name + ` (\S+)$`).FindSubmatch(text)
			require.NotNil(t, found, name)
			v, err := strconv.ParseFloat(string(found[1]), 64)
			require.NoError(t, err)
			return v
		}
		require.Equal(t, 1.0, value("mycelya_sessions"))
		require.Greater(t, value("mycelya_session_memory_bytes"), 1e6, "of process %d", pid)
		require.InDelta(t, 3600, value("mycelya_lease_seconds_left"), 600)
		require.Zero(t, value("mycelya_session_calls"))
		require.Equal(t, 3.0, value("mycelya_threads"))
		require.Greater(t, value("mycelya_uptime_seconds"), 0.0)
		require.Greater(t, value(fmt.Sprintf(`mycelya_process_memory_bytes\{pid="%d"\}`, pid)), 1e6)
		require.GreaterOrEqual(t, value(fmt.Sprintf(`mycelya_process_cpu_seconds\{pid="%d"\}`, pid)), 0.0)
		require.Equal(t, 40.0, value(`mycelya_gpu_utilization_percent\{device="cuda:1"\}`))
		require.Equal(t, 7.0, value(`mycelya_gpu_process_memory_bytes\{device="cuda:1",pid="9"\}`))
		require.NotContains(t, string(text), "mycelya_gpu_power_milliwatts{", "the driver does not tell it")
		require.Equal(t, -1.0, value("mycelya_last_call_seconds"))
		require.InDelta(t, 1800, value("mycelya_alone_seconds_left"), 600)
		require.NoError(t, l.Close())
		require.NoError(t, <-done)
	}
}

// serveWith serves with clocks, and returns the supervisor and when it has ended.
func serveWith(t *testing.T, c supervisor.Clocks, gpus ...supervisor.GPU) (*remote, <-chan error) {
	r, l := newRemote(t)
	r.supervisor.Clocks, r.supervisor.Threads = c, 3
	r.supervisor.GPUs = func() []supervisor.GPU { return gpus }
	ended, over := make(chan error, 1), make(chan struct{})
	go func() {
		ended <- r.supervisor.Serve(l)
		close(over)
	}()
	t.Cleanup(func() {
		r.supervisor.Close()
		<-over
	})
	return r, ended
}

// inTime serves with the clock of a time, longer ones after the first one, until a session begins in half of it.
func inTime(t *testing.T, clock time.Duration, clocks func(time.Duration) supervisor.Clocks) (
	r *remote, c *client, pid int, of time.Duration, ended <-chan error,
) {
	for ; ; clock *= 2 {
		began := time.Now()
		r, ended = serveWith(t, clocks(clock))
		s, err := r.link(t, transport.NewSessionName())
		if err != nil || time.Since(began) > clock/2 { // this machine was too slow for the clock
			require.Less(t, clock, patience, "%v", err)
			r.supervisor.Close()
			continue
		}
		c, pid = helloOf(t, s)
		return r, c, pid, clock, ended
	}
}

func TestAWorkerEndsWhenItIsAlone(t *testing.T) {
	r, c, _, alone, ended := inTime(t, 4*time.Second, func(d time.Duration) supervisor.Clocks {
		return supervisor.Clocks{Alone: d}
	})
	time.Sleep(alone + alone/4)
	works(t, c)
	began := time.Now()
	require.NoError(t, c.c.Close())
	require.NoError(t, <-ended)
	require.GreaterOrEqual(t, time.Since(began), alone*3/4)
	require.Contains(t, r.log.String(), "it had no session")
}

func TestAWorkerEndsWithItsLease(t *testing.T) {
	r, c, pid, _, ended := inTime(t, 4*time.Second, func(d time.Duration) supervisor.Clocks {
		return supervisor.Clocks{Lease: d, Alone: time.Hour}
	})
	works(t, c)
	require.NoError(t, <-ended)
	require.False(t, isRunning(pid))
	require.Contains(t, r.log.String(), "its lease has passed")
}

// TestAWorkerReports asks a worker on a connection of its own, over TLS and over a unix socket, while it has a client.
func TestAWorkerReports(t *testing.T) {
	r := superviseRemote(t)
	far, _ := r.session(t, transport.NewSessionName())
	s, _ := supervise(t)
	near, _ := s.session(t)
	for _, w := range []struct {
		client *client
		dial   func() *client
	}{
		{far, func() *client {
			return clientOf(t, tls.Client(r.raw(t), r.credentials.Client(transport.EndOf(transport.NewSessionName()))))
		}},
		{near, func() *client { return s.dial(t) }},
	} {
		for calls := range 3 {
			q := w.dial()
			var reply proto.Reported
			q.expect(transport.Reported, q.send(transport.Report, new(proto.Report), nil), &reply)
			require.Contains(t, reply.Metrics, "\nmycelya_sessions 1\n")
			require.Contains(t, reply.Metrics, fmt.Sprintf("\nmycelya_session_calls %d\n", calls))
			if calls > 0 {
				require.Regexp(t, `\nmycelya_last_call_seconds [0-9.e-]+\n`, reply.Metrics)
			}
			_, err := q.c.Next()
			require.ErrorIs(t, err, io.EOF, "it was the only question")
			works(t, w.client)
		}
	}
	q := clientOf(t, tls.Client(r.raw(t), r.credentials.Client(transport.EndOf(transport.NewSessionName()))))
	q.send(transport.Sync, new(proto.Sync), nil)
	_, err := q.c.Next()
	require.ErrorIs(t, err, io.EOF)
	require.Eventually(t, func() bool { return strings.Contains(r.log.String(), "the question is a Sync") },
		patience, 10*time.Millisecond)
}
