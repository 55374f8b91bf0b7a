// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/local"
	"github.com/mycelya/mycelya/trace"
)

// built is the folder of the worker program, "" if no test has needed it.
var built string

var buildWorker = sync.OnceValue(func() (err error) {
	if built, err = os.MkdirTemp("", "mrt"); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-o", built, "github.com/mycelya/mycelya/worker/cmd/mycelya-worker")
	if out, err := build.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// startReal opens device 0 on a real worker with the reference backend, and runs a program there. It returns the number
// of the session's process, and how the worker is named.
func startReal(t *testing.T, p func(path string) provider.Provider) (r *Local, pid int, worker string) {
	t.Helper()
	require.NoError(t, buildWorker())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	r = NewLocal(reluFrontend{}, func(Paths) (provider.Provider, error) {
		return p(filepath.Join(built, "mycelya-worker")), nil
	})
	require.NoError(t, r.Open(0, Paths{}, nil))
	t.Cleanup(func() { r.Close(0) })
	require.NoError(t, upload0(r, 1, make([]byte, 16)))
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	require.NoError(t, synced(t, r))
	s, err := r.session(0)
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	return r, int(s.hello.Pid), s.instance.Handle().String()
}

func localRef(path string) provider.Provider {
	return local.Provider{Paths: local.Spec{Worker: path, Backend: "ref"}}
}

// synced waits for all that was sent.
func synced(t *testing.T, r *Local) error {
	t.Helper()
	ticket, err := r.Sync(0, trace.Place{})
	if err != nil && err != ErrPending {
		return err
	}
	return wait(t, r, ticket)
}

const restartText = " All tensors on it are gone. Call torch.mycelya.restart(0) to use the device again."

// crashText matches the text of an error about a session's process that a signal has ended.
func crashText(pid int, worker, signal string) string {
	return regexp.QuoteMeta(fmt.Sprintf("mycelya:0 is lost: the process of its session (%d, of worker %s) was ended by "+
		"signal %s, ", pid, worker, signal)) + `(?:after the steps of|in) call \d+.*\. ` +
		`Its last programs and calls are in (/\S+)\.` + regexp.QuoteMeta(restartText)
}

func TestACrashNamesItsFolder(t *testing.T) {
	r, pid, worker := startReal(t, localRef)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
	var err error
	for err == nil { // the process may answer before the signal reaches it
		err = synced(t, r)
	}
	require.Regexp(t, "^"+crashText(pid, worker, "segmentation fault")+"$", err.Error())
	dir := regexp.MustCompile(crashText(pid, worker, "segmentation fault")).FindStringSubmatch(err.Error())[1]
	text, err := os.ReadFile(filepath.Join(dir, "crash.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"signal": "segmentation fault"`)
}

// TestACrashOnAnotherHost: the folder is there, not here.
func TestACrashOnAnotherHost(t *testing.T) {
	r, w := start(t)
	w.hello.Host = "another"
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.greet()
	w.next(transport.Sync, new(proto.Sync))
	w.send(transport.EndedReply, 0, &proto.EndedReply{Ended: true, Pid: 7, Code: 3, Dump: "/there", Log: "a line"}, nil)
	require.EqualError(t, wait(t, r, ticket), "mycelya:0 is lost: the process of its session (7, of worker fake:1) ended "+
		"with code 3, before its first call. Its last programs and calls are on the worker's host, in /there."+
		restartText+"\nThe end of its log:\n  a line")
}

// TestACrashBeforeHello: the worker's only frame is about the end.
func TestACrashBeforeHello(t *testing.T) {
	r, w := start(t)
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.next(transport.Hello, new(proto.Hello))
	w.send(transport.EndedReply, 0, &proto.EndedReply{Ended: true, Pid: 7, Code: -1, Signal: "killed"}, nil)
	require.EqualError(t, wait(t, r, ticket), "mycelya:0 could not be started: the process of its session (7, of worker "+
		"fake:1) was ended by signal killed, before its first call.")
}

func TestAStoppedWorkerSaysSo(t *testing.T) {
	r, _, worker := startReal(t, localRef)
	s, err := r.session(0)
	require.NoError(t, err)
	pid, err := strconv.Atoi(s.instance.Handle().ID)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	for err = nil; err == nil; err = synced(t, r) { // as a program that does not stop
	}
	require.EqualError(t, err, fmt.Sprintf("mycelya:0 is lost: its worker (%s) ended the session. It said: The worker is "+
		"being stopped.%s", worker, restartText))
}

// stdioWorker is a worker whose only stream is its stdin and stdout.
type stdioWorker struct {
	provider.StartOnly
	path          string
	cmd           *exec.Cmd
	stdin, stdout *os.File
	ended         chan struct{}
	dialled       bool
}

func (w *stdioWorker) Start(context.Context, provider.Spec) (provider.Instance, error) {
	w.cmd, w.ended = exec.Command(w.path, "--stdio", "--backend", "ref"), make(chan struct{})
	w.cmd.Stderr = new(bytes.Buffer)
	in, stdin, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	stdout, out, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	w.cmd.Stdin, w.cmd.Stdout, w.stdin, w.stdout = in, out, stdin, stdout
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { _ = w.cmd.Wait(); close(w.ended) }()
	_, _ = in.Close(), out.Close()
	for char := []byte{0}; char[0] != '\n'; { // the handshake
		if _, err := stdout.Read(char); err != nil {
			return nil, err
		}
	}
	return w, nil
}

func (w *stdioWorker) Dial(context.Context) (net.Conn, error) {
	if w.dialled {
		return nil, errors.New("it has one stream")
	}
	w.dialled = true
	return &pipeConn{in: w.stdout, out: w.stdin}, nil
}

func (w *stdioWorker) Wait(ctx context.Context) (provider.Exit, error) {
	select {
	case <-w.ended:
		return provider.Exit{Reason: provider.Crashed, Code: w.cmd.ProcessState.ExitCode()}, nil
	case <-ctx.Done():
		return provider.Exit{}, ctx.Err()
	}
}

func (w *stdioWorker) Stop(context.Context, time.Duration) error {
	_ = w.cmd.Process.Kill()
	<-w.ended
	return nil
}

func (w *stdioWorker) Credentials() *transport.Credentials { return nil }
func (w *stdioWorker) Handle() provider.Handle             { return provider.Handle{Provider: "stdio", ID: "1"} }
func (w *stdioWorker) FDs() []int                          { return nil }

// pipeConn is a stream of two pipes.
type pipeConn struct {
	net.Conn // nil
	in, out  *os.File
}

func (p *pipeConn) Read(b []byte) (int, error)  { return p.in.Read(b) }
func (p *pipeConn) Write(b []byte) (int, error) { return p.out.Write(b) }
func (p *pipeConn) Close() error                { return errors.Join(p.in.Close(), p.out.Close()) }
func (p *pipeConn) SetDeadline(t time.Time) error {
	return errors.Join(p.in.SetDeadline(t), p.out.SetDeadline(t))
}

// TestACrashOverStdio: no question can be asked, and the text is the same. The client sends all the time. A process
// that is killed while it writes a long answer has left a part of a frame, perhaps, and nothing may come behind it:
// then the client knows only how the worker has ended.
func TestACrashOverStdio(t *testing.T) {
	for told, cut := 0, 0; told < 5; {
		r, pid, worker := startReal(t, func(path string) provider.Provider { return &stdioWorker{path: path} })
		go func() { _ = syscall.Kill(pid, syscall.SIGSEGV) }()
		var err error
		for i := uint64(0); err == nil; i++ {
			if i%16 == 15 {
				err = synced(t, r)
				continue
			}
			if err = r.Flush(0, relu(1, 10+i), func() {}); err == ErrPending {
				err = nil
			}
		}
		if strings.HasPrefix(err.Error(), fmt.Sprintf("mycelya:0 is lost: its worker (%s) ended with code 1.", worker)) {
			cut++
			require.Less(t, cut, 50, "%v", err)
			continue
		}
		told++
		require.Regexp(t, "^"+crashText(pid, worker, "segmentation fault")+"$", err.Error())
	}
}
