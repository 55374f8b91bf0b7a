// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/ref"
	"github.com/mycelya/mycelya/worker/session"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// Arguments with which this test program is another program.
const (
	sessionArgument  = "a-session-process"
	hardenedArgument = "a-hardened-process"

	hardenedHelperArgument = "a-hardened-helper"
	secureArgument         = "for-clients-over-tcp"
	printingArgument       = "with-a-library-that-prints"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 {
		switch os.Args[1] {
		case sessionArgument:
			sessionProcess()
			return
		case hardenedArgument:
			hardenedProcess(supervisor.LockDown)
			return
		case hardenedHelperArgument:
			hardenedProcess(supervisor.LockDownHelper)
			return
		case helperArgument:
			helperProcess()
			return
		}
	}
	code := m.Run()
	removeWorker()
	os.Exit(code)
}

// A call with this parameter crashes its process in step 7.
const deadly = 666

type crashing struct {
	executor.Backend
	progress *crash.Progress
}

type crashingExecutor struct {
	executor.Executor
	progress *crash.Progress
}

func (b crashing) New(device string) (executor.Executor, error) {
	if slices.Contains(os.Args, printingArgument) {
		fmt.Println("a library prints")
	}
	x, err := b.Backend.New(device)
	return crashingExecutor{x, b.progress}, err
}

func (x crashingExecutor) Run(
	p executor.Prepared, params, inputs, outputs, frees []uint64, call uint64,
) (int, []executor.StepError) {
	if params[0] == deadly {
		x.progress.Note(call, 7)
		fmt.Fprintln(os.Stderr, "free(): invalid pointer")
		_ = syscall.Kill(os.Getpid(), syscall.SIGABRT)
		select {}
	}
	return x.Executor.Run(p, params, inputs, outputs, frees, call)
}

// sessionProcess is what mycelya-worker --session does, with the reference backend.
func sessionProcess() {
	crash.DieBySignal()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	channel, err := supervisor.OpenChannel(slices.Contains(os.Args, secureArgument), log)
	if err != nil {
		panic(err)
	}
	backend := crashing{ref.Backend{Progress: channel.Progress}, channel.Progress}
	s := session.Server{
		Load: func() (executor.Backend, error) { return backend, nil }, Ready: supervisor.LockDown, Log: log,
		Journal: channel.Journal, Progress: channel.Progress, Enter: channel.Enter, Stop: channel.Stop(),
		Keeper: channel.Keeper(), Passer: channel.Passer(), Helper: channel.Helper,
	}
	if err := s.ServeOne(channel.Accept); err != nil && !errors.Is(err, io.EOF) {
		panic(err)
	}
}

// supervise runs a supervisor until the test ends. change changes it before.
func supervise(t testing.TB, change ...func(*supervisor.Supervisor)) (*serving, *supervisor.Supervisor) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mw")
	require.NoError(t, err)
	s := &serving{addr: filepath.Join(dir, "s"), log: &logBuffer{}}
	l, err := net.Listen("unix", s.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	supervisor := &supervisor.Supervisor{
		Command: func() *exec.Cmd { return exec.Command(os.Args[0], sessionArgument) },
		Log:     slog.New(slog.NewTextHandler(s.log, nil)), Output: s.log,
	}
	for _, f := range change {
		f(supervisor)
	}
	serveUntilTheEnd(t, supervisor, l)
	return s, supervisor
}

// serveUntilTheEnd runs a supervisor until the test ends.
func serveUntilTheEnd(t testing.TB, supervisor *supervisor.Supervisor, l net.Listener) {
	ended := make(chan error, 1)
	go func() { ended <- supervisor.Serve(l) }()
	t.Cleanup(func() {
		supervisor.Close()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Error("the supervisor does not end")
		}
	})
}

// session connects and returns the number of the session's process.
func (s *serving) session(t testing.TB) (*client, int) {
	t.Helper()
	c := s.dial(t)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.Empty(t, h.Error)
	return c, int(h.Pid)
}

// end asks how a process has ended, until it has.
func (s *serving) end(t testing.TB, pid int) *proto.EndedReply {
	t.Helper()
	return ended(t, func() *proto.EndedReply { return s.asked(t, pid) })
}

// asked asks once how a process has ended.
func (s *serving) asked(t testing.TB, pid int) *proto.EndedReply {
	t.Helper()
	c := s.dial(t)
	var r proto.EndedReply
	c.expect(transport.EndedReply, c.send(transport.Ended, &proto.Ended{Pid: uint64(pid)}, nil), &r)
	require.NoError(t, c.c.Close())
	return &r
}

// ended asks until the answer is that a process has ended. The worker waits for the end for a limited time only.
func ended(t testing.TB, ask func() *proto.EndedReply) *proto.EndedReply {
	t.Helper()
	for until := time.Now().Add(patience); ; {
		r := ask()
		if r.Ended {
			return r
		}
		require.True(t, time.Now().Before(until), "the worker never says that the process has ended")
	}
}

func isRunning(pid int) bool { return syscall.Kill(pid, 0) == nil }

func TestACrashEndsOneSession(t *testing.T) {
	s, _ := supervise(t)
	first, a := s.session(t)
	second, b := s.session(t)
	require.NotEqual(t, a, b)
	require.NotContains(t, []int{a, b}, os.Getpid())
	first.upload(1, f32(1, 2))
	second.upload(1, f32(3, 4))
	first.sync()
	require.NoError(t, syscall.Kill(a, syscall.SIGSEGV))
	_, err := first.c.Next()
	require.Error(t, err)
	got, st := second.read(1, 8)
	require.Nil(t, st)
	require.Equal(t, f32(3, 4), got)

	end := s.end(t, a)
	require.True(t, end.Ended)
	require.Equal(t, uint64(a), end.Pid)
	require.Equal(t, "segmentation fault", end.Signal)
	require.Equal(t, int32(-1), end.Code)
	require.Zero(t, end.Call)
	require.Empty(t, end.Log, "this program's own log and Go's registers are of no use to a user")
	third, c := s.session(t)
	require.NotEqual(t, b, c)
	third.upload(1, f32(5))
	third.sync()
}

func TestACrashNamesCallAndStep(t *testing.T) {
	s, _ := supervise(t)
	c, pid := s.session(t)
	c.upload(1, f32(1, -2))
	c.send(transport.Program, sent(1, unary("aten::relu")), nil)
	require.Zero(t, c.call(callOf(1, 2, 1, 2)).Failed)
	seq := c.send(transport.Call, callOf(1, deadly, 1, 3), nil)
	_, err := c.c.Next()
	require.Error(t, err)
	end := s.end(t, pid)
	require.Equal(t, "aborted", end.Signal)
	require.Equal(t, seq, end.Call)
	require.Equal(t, uint64(7+1), end.Step)
	require.Equal(t, "free(): invalid pointer", end.Log)
}

func TestEndsThatAreNotThere(t *testing.T) {
	s, _ := supervise(t)
	c, pid := s.session(t)
	require.False(t, s.asked(t, 1).Ended, "no session of this worker")
	require.False(t, s.asked(t, pid).Ended, "it still runs")
	require.NoError(t, c.c.Close())
	end := s.end(t, pid)
	require.True(t, end.Ended)
	require.Zero(t, end.Code)
	require.Empty(t, end.Signal)
}

func TestNoProcessIsLeft(t *testing.T) {
	s, supervisor := supervise(t)
	_, a := s.session(t)
	c, b := s.session(t)
	require.NoError(t, c.c.Close())
	require.Eventually(t, func() bool { return !isRunning(b) }, time.Minute, time.Millisecond)
	require.True(t, isRunning(a))
	supervisor.Close()
	require.False(t, isRunning(a))
}

func TestASilentConnectionHasNoProcess(t *testing.T) {
	s, _ := supervise(t)
	s.session(t) // takes the process that was started ahead
	for range 20 {
		s.dial(t)
	}
	half := s.dial(t)
	_, err := half.c.Net().Write([]byte("MYC"))
	require.NoError(t, err)
	require.Len(t, children(t), 1)
	s.session(t)
	require.Len(t, children(t), 2)
}

// children are the processes of sessions that this process has started.
func children(t testing.TB) (out []string) {
	t.Helper()
	tasks, err := filepath.Glob("/proc/self/task/*/children")
	require.NoError(t, err)
	for _, name := range tasks {
		b, err := os.ReadFile(name)
		if err != nil {
			continue // the thread has ended
		}
		for _, pid := range strings.Fields(string(b)) {
			line, _ := os.ReadFile("/proc/" + pid + "/cmdline")
			if bytes.Contains(line, []byte(sessionArgument)) {
				out = append(out, pid)
			}
		}
	}
	if goruntime.GOOS != "linux" {
		t.Skip("this system does not list the children of a process")
	}
	return out
}

func TestAForeignStreamGetsAReason(t *testing.T) {
	s, _ := supervise(t)
	c := s.dial(t)
	_, err := c.c.Net().Write(bytes.Repeat([]byte("GET / HTTP/1.1\r\n"), 4))
	require.NoError(t, err)
	require.Contains(t, c.fault(), "not a frame")
}
