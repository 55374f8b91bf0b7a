// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/conformance"
)

// built is the folder of the worker program, "" if no test has needed it.
var built string

// buildWorker builds the worker program once.
var buildWorker = sync.OnceValue(func() (err error) {
	if built, err = os.MkdirTemp("", "mwp"); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-o", built, "github.com/mycelya/mycelya/worker/cmd/mycelya-worker")
	if out, err := build.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
})

// removeWorker removes the worker program after all tests.
func removeWorker() {
	if built != "" {
		_ = os.RemoveAll(built)
	}
}

// executable is the path of the worker program.
func executable(t testing.TB) string {
	t.Helper()
	require.NoError(t, buildWorker())
	return filepath.Join(built, "mycelya-worker")
}

// running is a process of the worker program with the reference backend.
type running struct {
	cmd           *exec.Cmd
	stdin, stdout *os.File
	log           *logBuffer
	line          transport.Handshake
	ended         chan struct{} // closed when the process has ended
}

// runWorker starts the worker program in a process group of its own, and waits for its handshake.
func runWorker(t testing.TB, args ...string) *running {
	t.Helper()
	r := &running{log: &logBuffer{}, ended: make(chan struct{})}
	r.cmd = exec.Command(executable(t), append([]string{"--backend", "ref", "--log", "info"}, args...)...)
	r.cmd.Stderr = r.log
	r.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, stdin, err := os.Pipe()
	require.NoError(t, err)
	stdout, out, err := os.Pipe()
	require.NoError(t, err)
	r.stdin, r.stdout, r.cmd.Stdin, r.cmd.Stdout = stdin, stdout, in, out
	require.NoError(t, r.cmd.Start())
	require.NoError(t, errors.Join(in.Close(), out.Close()))
	go func() { _ = r.cmd.Wait(); close(r.ended) }()
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		<-r.ended
		_ = errors.Join(stdin.Close(), stdout.Close())
	})
	line, char := "", make([]byte, 1) // what follows the line is not read here
	for char[0] != '\n' {
		_, err := stdout.Read(char)
		require.NoError(t, err, r.log)
		line += string(char)
	}
	r.line, err = transport.ParseHandshake(line)
	require.NoError(t, err)
	return r
}

// runUnix starts a worker with a unix socket.
func runUnix(t testing.TB, args ...string) (*running, *serving) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mw")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	s := &serving{addr: filepath.Join(dir, "s")}
	r := runWorker(t, append([]string{"--socket", s.addr}, args...)...)
	s.log = r.log
	return r, s
}

// withTorch are the arguments of a worker that runs PyTorch.
func withTorch(t testing.TB) []string {
	torch := conformance.Torch(t)
	return []string{"--backend", "torch", "--exec", torch.Exec, "--torch-lib", torch.Lib, "--device", torch.Device}
}

// runRemote starts a worker with a TCP port.
func runRemote(t testing.TB, args ...string) (*running, *remote) {
	t.Helper()
	client, ours, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	secret, err := ours.Encode()
	require.NoError(t, err)
	file := filepath.Join(t.TempDir(), "credentials")
	require.NoError(t, os.WriteFile(file, secret, 0o600))
	r := runWorker(t, append([]string{"--listen", "127.0.0.1:0", "--credentials", file}, args...)...)
	return r, &remote{network: "tcp", addr: r.line.Addr, log: r.log, credentials: client}
}

// signal sends a signal to all processes of the worker.
func (r *running) signal(t testing.TB, s syscall.Signal) {
	t.Helper()
	require.NoError(t, syscall.Kill(-r.cmd.Process.Pid, s))
}

// pause stops all threads of a process until SIGCONT.
func pause(t testing.TB, pid int) {
	t.Helper()
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.Eventually(t, func() bool {
		tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
		require.NoError(t, err)
		for _, name := range tasks {
			stat, _ := os.ReadFile(name)
			if _, state, _ := strings.Cut(string(stat), ") "); !strings.HasPrefix(state, "T") {
				return false
			}
		}
		return true
	}, time.Minute, time.Millisecond)
}

// ends waits for the end of the worker, and returns its exit code.
func (r *running) ends(t testing.TB) int {
	t.Helper()
	select {
	case <-r.ended:
		return r.cmd.ProcessState.ExitCode()
	case <-time.After(patience):
		t.Fatalf("the worker has not ended; its log:\n%s", r.log)
		return 0
	}
}

// logs waits until the worker has written a text to its log.
func (r *running) logs(t testing.TB, text string) {
	t.Helper()
	has := func() bool { return strings.Contains(r.log.String(), text) }
	require.Eventually(t, has, time.Minute, time.Millisecond, text)
}

// freePort is an address of this host that nothing listens on.
func freePort(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return l.Addr().String()
}

// chain is the program y = relu(relu(…(x))) on f32 vectors; parameter 0 is their length.
func chain(steps uint32) *program.Program {
	p := unary("aten::relu")
	p.Buffers, p.Outputs, p.Records = steps+1, []uint32{steps}, make([]uint32, steps)
	p.Tensors, p.Steps = p.Tensors[:1], nil
	for i := range steps {
		p.Tensors = append(p.Tensors, program.Tensor{Buffer: i + 1, DType: 7, Sizes: p.Tensors[0].Sizes})
		p.Steps = append(p.Steps, &program.Call{
			Op: "aten::relu", Args: []program.Arg{program.Window(i)}, Results: []uint32{i + 2},
		})
	}
	return p
}
