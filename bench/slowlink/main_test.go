// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

var programs string // a folder with the two programs, built by TestMain

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "mslow")
	if err != nil {
		panic(err)
	}
	programs = dir
	const module = "github.com/mycelya/mycelya/"
	build := exec.Command("go", "build", "-o", dir, module+"bench/slowlink", module+"worker/cmd/mycelya-worker")
	out, err := build.CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "building: %v\n%s", err, out)
		os.Exit(1)
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	os.Exit(code)
}

// started is a slowlink that was started as a client starts it: with a socket in a private folder.
type started struct {
	cmd   *exec.Cmd
	dir   string
	stdin io.Closer
	line  string
}

func start(t *testing.T) *started {
	base := t.TempDir()
	s := &started{dir: filepath.Join(base, transport.FolderPrefix+"1")}
	require.NoError(t, os.Mkdir(s.dir, 0o700))
	s.cmd = exec.Command(filepath.Join(programs, "slowlink"), "--delay", "10ms",
		"--worker", filepath.Join(programs, "mycelya-worker"),
		"--", "--socket", filepath.Join(s.dir, "s"), "--stdin-eof", "--backend", "ref")
	s.cmd.Stderr = os.Stderr
	stdin, err := s.cmd.StdinPipe()
	require.NoError(t, err)
	s.stdin = stdin
	out, err := s.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() { _ = s.cmd.Process.Kill(); _ = s.cmd.Wait() })
	s.line, err = bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return s
}

// greet sends Hello to the worker and returns the time until its answer.
func (s *started) greet(t *testing.T) time.Duration {
	nc, err := net.Dial("unix", filepath.Join(s.dir, "s"))
	require.NoError(t, err)
	require.NoError(t, transport.CheckPeer(nc))
	c := transport.New(nc)
	defer c.Close()
	begin := time.Now()
	hello := &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion}
	require.NoError(t, c.Send(transport.Hello, 0, hello, nil))
	h, err := c.Next()
	require.NoError(t, err)
	took := time.Since(begin)
	require.Equal(t, transport.Hello, h.Type)
	var m proto.Hello
	require.NoError(t, c.Meta(&m))
	assert.Empty(t, m.Error)
	assert.NotEqualValues(t, s.cmd.Process.Pid, m.Pid, "the worker is another process")
	return took
}

// nothingLeft waits until the folder is gone. Both processes have then ended and removed their sockets.
func (s *started) nothingLeft(t *testing.T) {
	assert.Eventually(t, func() bool {
		_, err := os.Stat(s.dir)
		return os.IsNotExist(err)
	}, time.Minute, 10*time.Millisecond)
}

func TestWorkerBehindALink(t *testing.T) {
	s := start(t)
	h, err := transport.ParseHandshake(s.line)
	require.NoError(t, err)
	assert.Equal(t, transport.Handshake{Version: transport.Version, Network: "unix", Addr: filepath.Join(s.dir, "s"),
		PID: s.cmd.Process.Pid, Build: transport.Build}, h)
	for range 2 { // clients
		assert.GreaterOrEqual(t, s.greet(t), 20*time.Millisecond)
	}
	require.NoError(t, s.stdin.Close())
	require.NoError(t, s.cmd.Wait())
	s.nothingLeft(t)
}

func TestSignal(t *testing.T) {
	s := start(t)
	require.NoError(t, s.cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, s.cmd.Wait())
	s.nothingLeft(t)
}

// TestKilled checks that the worker ends after slowlink was killed. In that case the client removes the folder.
func TestKilled(t *testing.T) {
	s := start(t)
	require.FileExists(t, filepath.Join(s.dir, "w"))
	require.NoError(t, s.cmd.Process.Kill())
	assert.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "w"))
		return os.IsNotExist(err)
	}, time.Minute, 10*time.Millisecond)
}

// TestWorkerEnds checks that slowlink ends if the worker does not start.
func TestWorkerEnds(t *testing.T) {
	cmd := exec.Command(filepath.Join(programs, "slowlink"), "--worker", filepath.Join(programs, "mycelya-worker"),
		"--", "--socket", filepath.Join(t.TempDir(), "s"), "--no-such-flag")
	stdin, err := cmd.StdinPipe() // stays open
	require.NoError(t, err)
	defer stdin.Close()
	assert.Error(t, cmd.Run())
	assert.Equal(t, 2, cmd.ProcessState.ExitCode())
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{
		{},
		{"--worker", "w"},
		{"--worker", "w", "--", "--backend", "ref"},
		{"--worker", "w", "--delay", "1us", "--", "--socket", "s"},
		{"--delay"},
	} {
		cmd := exec.Command(filepath.Join(programs, "slowlink"), args...)
		assert.Error(t, cmd.Run())
		assert.Equal(t, 2, cmd.ProcessState.ExitCode(), "%v", args)
	}
}

func TestSplit(t *testing.T) {
	for _, flags := range [][]string{
		{"--backend", "ref", "--socket", "a/s", "--stdin-eof"},
		{"--backend", "ref", "-socket=a/s", "--stdin-eof"},
	} {
		socket, others := split(flags)
		assert.Equal(t, "a/s", socket)
		assert.Equal(t, []string{"--backend", "ref", "--stdin-eof"}, others)
	}
}
