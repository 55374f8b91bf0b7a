// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package exhausted_test runs the real worker where something is used up: descriptors, the disk of its log, memory of a
// session. Who asks for more gets a reason, and the other sessions go on.
package exhausted_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/hostile/peer"
	"github.com/mycelya/mycelya/tests/remote"
)

var program string

func TestMain(m *testing.M) {
	os.Exit(func() int {
		folder, err := os.MkdirTemp("", "exhausted")
		if err != nil {
			panic(err)
		}
		defer func() { _ = os.RemoveAll(folder) }()
		program = filepath.Join(folder, "mycelya-worker")
		build := exec.Command("go", "build", "-o", program, "../../worker/cmd/mycelya-worker")
		build.Stderr = os.Stderr
		if err := build.Run(); err != nil {
			panic(err)
		}
		return m.Run()
	}())
}

// start starts a worker with the reference backend. limit is a command of a shell that comes first.
func start(t *testing.T, limit, log string, flags ...string) *remote.Worker {
	t.Helper()
	w, err := remote.Start(remote.Options{
		Program: program, Log: log, Wrap: []string{"sh", "-c", limit + `; exec "$@"`, "sh"},
		Flags: append([]string{"--backend", "ref", "--grace", "5s"}, flags...),
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, w.Stop())
		if log != full {
			require.NoError(t, w.CheckLog())
		}
	})
	return w
}

// full is a file on a disk that is always full.
const full = "/dev/full"

// session opens a session and computes in it.
func session(t *testing.T, w *remote.Worker) (*peer.Session, error) {
	t.Helper()
	stream, err := w.Link(transport.NewSessionName(), nil)
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = stream.Close() })
	_ = stream.SetDeadline(time.Now().Add(5 * time.Minute))
	s, err := peer.Greet(transport.New(stream))
	if err != nil {
		return nil, err
	}
	if err := s.Prepare(); err != nil {
		return nil, err
	}
	return s, s.Check(1)
}

// TestFewDescriptors: a worker that cannot start another session says so, the others go on, and when one of them has
// ended there is room for another one.
func TestFewDescriptors(t *testing.T) {
	w := start(t, "ulimit -n 40", filepath.Join(t.TempDir(), "log"))
	var all []*peer.Session
	var err error
	for range 64 {
		var s *peer.Session
		if s, err = session(t, w); err != nil {
			break
		}
		all = append(all, s)
	}
	require.ErrorIs(t, err, link.ErrFull)
	require.Greater(t, len(all), 3)
	for i, s := range all {
		require.NoError(t, s.Check(uint32(i)))
	}
	require.NoError(t, all[0].C.Close())
	require.Eventually(t, func() bool { _, err = session(t, w); return err == nil }, 2*time.Minute, 50*time.Millisecond)
	require.NoError(t, all[1].Check(7))
}

// TestSilentConnectionsUseAllDescriptors: the worker closes the oldest ones, so that a client comes in.
func TestSilentConnectionsUseAllDescriptors(t *testing.T) {
	w := start(t, "ulimit -n 40", filepath.Join(t.TempDir(), "log"))
	first, err := session(t, w)
	require.NoError(t, err)
	quick := false
	for try := 0; !quick && try < 5; try++ { // a slow machine may need long for other reasons
		for range 60 {
			c, err := net.Dial("tcp", w.Addr)
			require.NoError(t, err)
			t.Cleanup(func() { _ = c.Close() })
		}
		require.NoError(t, first.Check(2))
		began := time.Now()
		second, err := session(t, w)
		require.NoError(t, err)
		quick = time.Since(began) < 9*time.Second
		require.NoError(t, second.Check(3))
		require.NoError(t, second.C.Close())
	}
	require.True(t, quick, "each new client has waited for the deadline of the silent connections")
	require.NoError(t, first.Check(4))
}

// TestALogOnAFullDisk: a worker that cannot write its log serves as before.
func TestALogOnAFullDisk(t *testing.T) {
	if _, err := os.Stat(full); err != nil {
		t.Skip("this system has no /dev/full")
	}
	w := start(t, "true", full, "--log", "debug")
	s, err := session(t, w)
	require.NoError(t, err)
	c, err := net.Dial("tcp", w.Addr) // its refusal is written to the log
	require.NoError(t, err)
	_, err = c.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	_, _ = c.Read(make([]byte, 1))
	require.NoError(t, c.Close())
	require.NoError(t, s.C.Send(transport.Upload, s.Next(), &proto.Upload{Storage: 0}, nil)) // breaks the protocol
	var last proto.Hello
	_, err = remote.Expect(s.C, transport.Hello, &last)
	require.NoError(t, err)
	require.Contains(t, last.Error, "An upload to storage 0")
	_, err = session(t, w)
	require.NoError(t, err)
}
