// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// pipeConn is a client's end of a stream of two pipes.
type pipeConn struct {
	net.Conn // nil
	in, out  *os.File
}

func (p *pipeConn) Read(b []byte) (int, error)         { return p.in.Read(b) }
func (p *pipeConn) Write(b []byte) (int, error)        { return p.out.Write(b) }
func (p *pipeConn) Close() error                       { return errors.Join(p.in.Close(), p.out.Close()) }
func (p *pipeConn) SetReadDeadline(t time.Time) error  { return p.in.SetReadDeadline(t) }
func (p *pipeConn) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }
func (p *pipeConn) SetDeadline(t time.Time) error {
	return errors.Join(p.in.SetDeadline(t), p.out.SetDeadline(t))
}

// runStdio starts a worker with a stream on stdin and stdout, and returns the client and the number of the session's
// process.
func runStdio(t testing.TB, args ...string) (*running, *client, int) {
	t.Helper()
	r := runWorker(t, append([]string{"--stdio"}, args...)...)
	require.Equal(t, "stdio", r.line.Network)
	c, pid := greet(t, &pipeConn{in: r.stdout, out: r.stdin})
	return r, c, pid
}

// greet exchanges Hellos over a stream.
func greet(t testing.TB, nc net.Conn) (*client, int) {
	t.Helper()
	c := clientOf(t, nc)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.Empty(t, h.Error)
	require.Zero(t, h.Blocks, "no descriptor can be sent")
	return c, int(h.Pid)
}

func TestAProgramOverStdio(t *testing.T) {
	r, c, pid := runStdio(t)
	works(t, c)
	big := bytes.Repeat([]byte{1, 2, 3, 4}, 1<<20)
	c.upload(3, big)
	got, st := c.read(3, len(big))
	require.Nil(t, st)
	require.Equal(t, big, got)
	require.NoError(t, r.stdin.Close())
	_, err := c.c.Next()
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, r.ends(t))
	require.False(t, isRunning(pid))
	require.Contains(t, r.log.String(), "session ended")
}

// TestACrashOverStdio: the worker says in the stream how the session's process has ended, and ends.
func TestACrashOverStdio(t *testing.T) {
	folder := t.TempDir()
	r, c, pid := runStdio(t, "--crashes", folder)
	seq := slowCall(t, c, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
	var end proto.EndedReply
	c.expect(transport.EndedReply, 0, &end)
	require.True(t, end.Ended)
	require.EqualValues(t, pid, end.Pid)
	require.Equal(t, "segmentation fault", end.Signal)
	require.Equal(t, seq, end.Call)
	require.NotZero(t, end.Step)
	require.DirExists(t, end.Dump)
	_, err := c.c.Next()
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 1, r.ends(t))
	require.Contains(t, r.log.String(), "segmentation fault")
}

// waiting is the number of bytes that a pipe holds.
func waiting(t testing.TB, f *os.File) (n int) {
	t.Helper()
	raw, err := f.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) { n, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }))
	require.NoError(t, err)
	return n
}

// TestAStreamThatEndsInsideAFrame: nothing comes behind a part of a frame that could be taken for the rest of it.
func TestAStreamThatEndsInsideAFrame(t *testing.T) {
	r, c, pid := runStdio(t)
	c.upload(1, make([]byte, 1<<20))
	c.send(transport.Read, &proto.Read{Storage: 1, Dtype: 1, Sizes: []int64{1 << 20}, Strides: []int64{1}}, nil)
	head := make([]byte, 100) // of the answer, so the process waits for the reader
	_, err := io.ReadFull(r.stdout, head)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return waiting(t, r.stdout) > 1000 }, patience, time.Millisecond)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	rest, err := io.ReadAll(r.stdout)
	require.NoError(t, err)
	require.Less(t, len(rest), 1<<20)
	require.Equal(t, make([]byte, len(rest)-200), rest[200:], "the bytes of the storage, and nothing else")
	require.Equal(t, 1, r.ends(t))
}

func TestAStoppedWorkerOverStdio(t *testing.T) {
	t.Run("drained", func(t *testing.T) {
		r, c, _ := runStdio(t, "--drain", "1m")
		seq := c.send(transport.Sync, &proto.Sync{}, nil)
		c.expect(transport.SyncReply, seq, new(proto.SyncReply))
		r.signal(t, syscall.SIGTERM)
		require.Equal(t, stopped, c.fault())
		require.Zero(t, r.ends(t))
	})
	t.Run("killed", func(t *testing.T) {
		r, c, pid := runStdio(t, "--drain", "200ms")
		pause(t, pid)
		r.signal(t, syscall.SIGTERM)
		require.Equal(t, stopped, c.fault())
		require.Zero(t, r.ends(t))
	})
}

// TestAStreamWithoutAReader: a session that computes ends when nobody can read its answers.
func TestAStreamWithoutAReader(t *testing.T) {
	r, c, pid := runStdio(t)
	slowCall(t, c, pid)
	require.NoError(t, r.stdout.Close())
	require.Zero(t, r.ends(t))
	require.False(t, isRunning(pid))
}

// TestPrintsStayOutOfTheStream: what a library prints in the session's process goes to the log.
func TestPrintsStayOutOfTheStream(t *testing.T) {
	in, stdin, err := os.Pipe()
	require.NoError(t, err)
	stdout, out, err := os.Pipe()
	require.NoError(t, err)
	log := &logBuffer{}
	s := supervisor.Supervisor{
		Command: func() *exec.Cmd { return exec.Command(os.Args[0], sessionArgument, printingArgument) },
		Log:     slog.New(slog.NewTextHandler(log, nil)), Output: log,
	}
	ended := make(chan error, 1)
	go func() { ended <- s.ServeStream(in, out) }()
	c, _ := greet(t, &pipeConn{in: stdout, out: stdin})
	works(t, c)
	require.NoError(t, stdin.Close())
	require.NoError(t, <-ended)
	require.Contains(t, log.String(), "a library prints")
	for _, f := range []*os.File{in, out} {
		require.NoError(t, f.Close())
	}
	_, err = c.c.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestStreamsThatCannotBe(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"two ways":      {[]string{"--stdio", "--socket", "/tmp/s"}, "needs one of --socket, --listen, --stdio and --relay"},
		"no way":        {nil, "needs one of --socket, --listen, --stdio and --relay"},
		"end of stdin":  {[]string{"--stdio", "--stdin-eof"}, "--stdin-eof is not for it"},
		"one file":      {[]string{"--stdio", "--backend", "ref"}, "this one is stderr, too"},
		"drain is less": {[]string{"--stdio", "--drain", "-1s"}, "--drain, --lease and --alone at least 0"},
	} {
		t.Run(name, func(t *testing.T) {
			out, err := exec.Command(executable(t), test.args...).CombinedOutput()
			require.Error(t, err)
			require.Contains(t, string(out), test.want)
		})
	}
}
