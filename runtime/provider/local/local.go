// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package local runs a worker as a child process on this host, with a unix socket in a private folder, or on a TCP port
// of the loopback interface with TLS. The worker ends when the write end of its stdin is closed, so it ends however
// this process ends. The package never runs a worker as another user and never passes it the whole environment.
package local

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// Spec is a worker on this host.
type Spec struct {
	provider.Spec
	Worker   string // the mycelya-worker program
	Exec     string // libmycelya_exec; "" with Backend "ref"
	TorchLib string // the folder of libtorch_cpu; "" with Backend "ref"
	Backend  string // "torch", the default, or "ref", which needs no PyTorch
	LogLevel string // of the worker's log: "debug", "info", "warn" (default), "error"

	tcp      bool     // over TCP with TLS, not over a unix socket
	attach   bool     // use the worker of a detached machine
	detached string   // seconds without a client after which a worker that outlives this process ends; "": none
	log      *os.File // for the log of such a worker
}

const (
	// A worker prints its handshake before it loads PyTorch, within milliseconds; a cold disk may take seconds.
	handshakeWait = 30 * time.Second
	// Between SIGTERM and SIGKILL. A worker in a long kernel reacts neither to the end of stdin nor to SIGTERM.
	termWait = 500 * time.Millisecond
	// How long the pipes are read after the worker has ended: a process that it started may hold them open.
	drainWait = 200 * time.Millisecond
	// How long the credentials of a worker on TCP are valid. It lives no longer than the client.
	lease = 365 * 24 * time.Hour

	reinstall = "Reinstall the package: pip install --force-reinstall --no-deps mycelya-torch."
)

// Provider starts workers with the paths of its Spec.
type Provider struct{ Paths Spec }

// New returns the provider of workers that run this package's worker program.
func New(p provider.Paths) provider.Provider {
	return Provider{Paths: Spec{Worker: p.Worker, Exec: p.Exec, TorchLib: p.TorchLib}}
}

// Start implements provider.Provider.
func (p Provider) Start(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	spec := p.Paths
	spec.Spec = s
	return Start(ctx, spec)
}

// Start starts a worker and returns when it listens. If ctx ends first, nothing is left running.
func Start(ctx context.Context, s Spec) (provider.Instance, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	switch {
	case s.attach && s.Again:
		return replaceDetached(ctx, s)
	case s.attach:
		return attach(s.Session)
	case s.detached != "":
		return startDetached(ctx, s)
	}
	dir := ""
	if !s.tcp {
		var err error
		if dir, err = privateDir(); err != nil {
			return nil, err
		}
	}
	in, err := spawn(s, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if err = in.passSecret(); err == nil {
		err = in.handshake(ctx)
	}
	if err != nil {
		_ = in.Stop(context.WithoutCancel(ctx), 0)
		return nil, err
	}
	return in, nil
}

// check finds errors that would appear later with a worse message.
func (s *Spec) check() error {
	if s.Backend == "" {
		s.Backend = "torch"
	}
	if s.Backend != "torch" && s.Backend != "ref" {
		return provider.Errorf(
			provider.ErrInvalidSpec,
			"The backend %q does not exist; there are \"torch\" and \"ref\".",
			s.Backend,
		)
	}
	if s.Threads < 0 {
		return provider.Errorf(provider.ErrInvalidSpec, "A worker cannot have %d threads.", s.Threads)
	}
	if !validDevice(s.Device) {
		return provider.Errorf(provider.ErrInvalidSpec,
			"The device %q does not exist; a worker on this host has \"cpu\" or \"cuda:<number>\".", s.Device)
	}
	if err := s.takeOptions(); err != nil {
		return err
	}
	info, err := os.Stat(s.Worker)
	switch {
	case err != nil:
		return missing("worker program", s.Worker, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return provider.Errorf(provider.ErrInvalidSpec, "The worker program %q is not executable. %s", s.Worker, reinstall)
	}
	if s.Backend == "torch" {
		if _, err := os.Stat(s.Exec); err != nil {
			return missing("executor library", s.Exec, err)
		}
		if _, err := os.Stat(s.TorchLib); err != nil {
			return provider.Errorf(provider.ErrNotFound,
				"PyTorch's library folder %q cannot be read: %v. Is torch installed in this environment?", s.TorchLib, reason(err))
		}
	}
	return nil
}

// takeOptions takes the provider's own options.
func (s *Spec) takeOptions() error {
	for name, value := range s.Options {
		switch name {
		case "state": // the session has made it Spec.Kept
			continue
		case "attach":
			s.attach = value != ""
			continue
		case "detached":
			if _, err := strconv.ParseUint(value, 10, 32); err != nil {
				return provider.Errorf(provider.ErrInvalidSpec, "detached=%q is no number of seconds.", value)
			}
			s.detached = value
			continue
		}
		if name != "transport" || value != "" && value != "unix" && value != "tcp" {
			return provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not an option of the local machine.", name, value)
		}
		s.tcp = value == "tcp"
	}
	return nil
}

func validDevice(d string) bool {
	if n, ok := strings.CutPrefix(d, "cuda:"); ok {
		i, err := strconv.Atoi(n)
		return err == nil && i >= 0 && strconv.Itoa(i) == n
	}
	return d == "" || d == "cpu"
}

func missing(what, path string, err error) error {
	if path == "" {
		return provider.Errorf(provider.ErrNotFound, "The path of the %s is not known. %s", what, reinstall)
	}
	return provider.Errorf(provider.ErrNotFound, "The %s %q cannot be used: %v. %s", what, path, reason(err), reinstall)
}

// advice says what to do about an error that has to do with a limit, and otherwise what other says.
func advice(err error, other string) string {
	switch {
	case errors.Is(err, syscall.EMFILE):
		return "This process has as many files open as it may. Close some, or raise the limit: ulimit -n 65536, " +
			"or resource.setrlimit(resource.RLIMIT_NOFILE, …) in Python."
	case errors.Is(err, syscall.ENFILE):
		return "The host has as many files open as it may. End other programs, or raise fs.file-max."
	case errors.Is(err, syscall.EAGAIN):
		return "The user has as many processes as allowed. End some, or raise the limit: ulimit -u."
	case errors.Is(err, syscall.ENOMEM):
		return "The host has too little memory for another process. End other programs."
	}
	return other
}

// reason is an error of the file system without the path, which the sentence has already.
func reason(err error) error {
	var p *fs.PathError
	if errors.As(err, &p) {
		return p.Err
	}
	return err
}

// Sockets have names of at most 107 bytes on Linux and 103 on macOS.
const maxSocketPath = 103

// privateDir makes a folder that only this user can enter, with a path that is short enough for a socket.
func privateDir() (string, error) {
	var errs []error
	for _, base := range []string{os.TempDir(), "/tmp"} {
		if abs, err := filepath.Abs(base); err == nil {
			base = abs
		}
		dir, err := os.MkdirTemp(base, transport.FolderPrefix) // mode 0700
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if len(socketIn(dir)) <= maxSocketPath && !strings.ContainsAny(dir, "|\n") {
			return dir, nil
		}
		_ = os.Remove(dir)
		errs = append(errs, fmt.Errorf("%s is too long a path for a socket", base))
	}
	return "", provider.Errorf(
		provider.ErrUnavailable,
		"No folder for the worker's socket could be made: %v. Set TMPDIR to a short path that can be written.",
		errors.Join(errs...),
	)
}

func socketIn(dir string) string { return filepath.Join(dir, "s") }

// instance is a running worker process.
type instance struct {
	spec   Spec
	dir    string
	cmd    *exec.Cmd
	stdin  *os.File // write end; its close ends the worker
	stdout *os.File
	stderr *os.File
	line   chan string // the first line of stdout
	log    ring

	credentials *transport.Credentials // of the client, if the worker listens on TCP
	secret      []byte                 // the worker's credentials, until it has them
	addr        string                 // where the worker listens on TCP

	stopOnce sync.Once
	asked    chan struct{} // closed by the first Stop
	done     chan struct{} // closed when exit is set
	exit     provider.Exit
}

// spawn runs the worker with three pipes.
func spawn(s Spec, dir string) (*instance, error) {
	args := []string{"--socket", socketIn(dir)}
	if s.tcp {
		args = []string{"--listen", "127.0.0.1:0", "--credentials", "-"}
	}
	if s.detached != "" {
		args = append(args, "--single", "--alone", s.detached+"s")
	} else {
		args = append(args, "--stdin-eof")
	}
	args = append(args, "--backend", s.Backend, "--threads", strconv.Itoa(s.Threads))
	options := [][2]string{
		{"--state", s.Kept}, {"--device", s.Device}, {"--exec", s.Exec}, {"--torch-lib", s.TorchLib}, {"--log", s.LogLevel},
	}
	for _, a := range options {
		if a[1] != "" {
			args = append(args, a[0], a[1])
		}
	}
	in := &instance{spec: s, dir: dir, line: make(chan string, 1), asked: make(chan struct{}), done: make(chan struct{})}
	if err := in.mint(); err != nil {
		return nil, err
	}
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			_ = f.Close()
		}
	}()
	var pipes [3][2]*os.File
	for i := range pipes {
		r, w, err := os.Pipe()
		if err != nil {
			in.closePipes()
			return nil, provider.Errorf(provider.ErrUnavailable, "The worker's pipes cannot be made: %v. %s", reason(err),
				advice(err, ""))
		}
		pipes[i] = [2]*os.File{r, w}
		if i == 0 {
			in.stdin, theirs = w, append(theirs, r)
		} else {
			theirs = append(theirs, w)
		}
		switch i {
		case 1:
			in.stdout = r
		case 2:
			in.stderr = r
		}
	}
	in.cmd = &exec.Cmd{
		Path: s.Worker, Args: append([]string{s.Worker}, args...), Env: environment(os.Environ()), Dir: "/",
		Stdin: pipes[0][0], Stdout: pipes[1][1], Stderr: pipes[2][1],
		// In its own session the worker gets no Ctrl-C and no hangup of the client's terminal.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	if s.log != nil {
		in.cmd.Stderr = s.log
	}
	if abs, err := filepath.Abs(s.Worker); err == nil {
		in.cmd.Path = abs
	}
	if err := in.cmd.Start(); err != nil {
		in.closePipes()
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker program %q does not start: %v. %s",
			s.Worker, reason(err), advice(err, reinstall))
	}
	go in.watch()
	return in, nil
}

// mint makes the credentials of a worker on TCP and of its client.
func (in *instance) mint() error {
	if !in.spec.tcp {
		return nil
	}
	client, worker, err := transport.Mint(lease)
	if err == nil {
		in.credentials = client
		in.secret, err = worker.Encode()
	}
	if err != nil {
		return provider.Errorf(provider.ErrUnavailable, "The credentials of the worker cannot be made: %v.", err)
	}
	return nil
}

// passSecret writes the worker's credentials to its stdin. They fit into a pipe's buffer.
func (in *instance) passSecret() error {
	if in.secret == nil {
		return nil
	}
	_, err := in.stdin.Write(in.secret)
	in.secret = nil
	if err != nil && !errors.Is(err, syscall.EPIPE) { // the worker has ended: handshake says how
		return provider.Errorf(provider.ErrUnavailable, "The worker's credentials cannot be passed on: %v.", reason(err))
	}
	return nil
}

// descriptor returns f's number. File.Fd would make f blocking.
func descriptor(f *os.File) int {
	fd := -1
	if c, err := f.SyscallConn(); err == nil {
		_ = c.Control(func(n uintptr) { fd = int(n) })
	}
	return fd
}

func (in *instance) closePipes() {
	for _, f := range []*os.File{in.stdin, in.stdout, in.stderr} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// watch reads the worker's output until its end, and records how the worker ended.
func (in *instance) watch() {
	var readers sync.WaitGroup
	readers.Go(func() {
		r := bufio.NewReader(in.stdout)
		line, err := r.ReadString('\n')
		in.line <- line
		if err == nil {
			_, _ = io.Copy(&in.log, r) // output of libraries
		}
	})
	readers.Go(func() { _, _ = io.Copy(&in.log, in.stderr) })
	err := in.cmd.Wait()
	timer := time.AfterFunc(drainWait, func() { _ = in.stdout.Close(); _ = in.stderr.Close() })
	readers.Wait()
	timer.Stop()
	in.closePipes()
	_ = os.RemoveAll(in.dir)

	e := provider.Exit{Reason: provider.Crashed, Code: -1, Detail: in.log.String()}
	if st := in.cmd.ProcessState; st != nil {
		e.Code = st.ExitCode()
		if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
			e.Signal = ws.Signal().String()
		}
	} else if err != nil {
		e.Reason, e.Detail = provider.Unknown, err.Error()
	}
	select {
	case <-in.asked:
		e.Reason = provider.Done
	default:
		if e.Code == 0 {
			e.Reason = provider.Done
		}
	}
	in.exit = e
	close(in.done)
}

// handshake waits for the worker's line and checks it.
func (in *instance) handshake(ctx context.Context) error {
	timer := time.NewTimer(handshakeWait)
	defer timer.Stop()
	var line string
	select {
	case line = <-in.line:
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return provider.Errorf(provider.ErrTimeout, "The worker %q printed no handshake for %v. %s",
			in.spec.Worker, handshakeWait, in.logTail())
	}
	if line == "" { // the worker closed stdout, so it has ended or is about to
		select {
		case <-in.done:
			return provider.Errorf(provider.ErrUnavailable, "The worker %q %v before it could be used. %s",
				in.spec.Worker, in.exit, in.logTail())
		case <-time.After(termWait):
		}
	}
	h, err := transport.ParseHandshake(line)
	if err != nil {
		return provider.Errorf(provider.ErrVersion, "The program %q is not a mycelya worker: it began with %q. %s %s",
			in.spec.Worker, line, reinstall, in.logTail())
	}
	if h.Version != transport.Version || h.Build != transport.Build {
		return provider.Errorf(provider.ErrVersion,
			"The worker program %q is build %s (wire version %d), this package is build %s (wire version %d). %s",
			in.spec.Worker, h.Build, h.Version, transport.Build, transport.Version, reinstall)
	}
	network, addr := "unix", socketIn(in.dir)
	if in.spec.tcp {
		network, addr = "tcp", h.Addr
	}
	if h.Network != network || h.Addr != addr || h.PID != in.cmd.Process.Pid {
		return provider.Errorf(provider.ErrVersion, "The worker %q listens on %q as process %d, which is not what it was "+
			"told.", in.spec.Worker, h.Addr, h.PID)
	}
	in.addr = addr
	return nil
}

func (in *instance) logTail() string {
	s := strings.TrimSpace(in.log.String())
	if s == "" {
		return "It wrote nothing to its log."
	}
	return "The end of its log:\n" + s
}

func (in *instance) Handle() provider.Handle {
	return provider.Handle{Provider: "local", ID: strconv.Itoa(in.cmd.Process.Pid), Session: in.spec.Session}
}

// FDs implements provider.Instance. A file that is closed has no descriptor any more: its number may be another's.
func (in *instance) FDs() (out []int) {
	for _, f := range []*os.File{in.stdin, in.stdout, in.stderr} {
		if fd := descriptor(f); fd >= 0 {
			out = append(out, fd)
		}
	}
	return out
}

func (in *instance) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-in.done:
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker %v. %s", in.exit, in.logTail())
	case <-in.asked:
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker has been stopped.")
	default:
	}
	return dial(ctx, in.network(), in.addr)
}

// network is that of the worker's address.
func (in *instance) network() string {
	if in.spec.tcp {
		return "tcp"
	}
	return "unix"
}

// dial opens a stream to a worker on this host.
func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker's socket: %v. %s", err, advice(err, ""))
	}
	if network == "tcp" {
		return c, nil
	}
	if err := transport.CheckPeer(c); err != nil {
		_ = c.Close()
		return nil, provider.Errorf(provider.ErrAuth, "%v", err)
	}
	return c, nil
}

// Credentials implements provider.Instance.
func (in *instance) Credentials() *transport.Credentials { return in.credentials }

func (in *instance) Wait(ctx context.Context) (provider.Exit, error) {
	select {
	case <-in.done:
		return in.exit, nil
	default:
	}
	select {
	case <-in.done:
		return in.exit, nil
	case <-ctx.Done():
		return provider.Exit{}, ctx.Err()
	}
}

// Stop closes stdin, at which an idle worker ends at once. Then it sends SIGTERM, and then SIGKILL.
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	in.stopOnce.Do(func() {
		close(in.asked)
		_ = in.stdin.Close()
	})
	if in.gone(ctx, grace) {
		return nil
	}
	_ = in.cmd.Process.Signal(syscall.SIGTERM)
	if in.gone(ctx, termWait) {
		return nil
	}
	_ = in.cmd.Process.Kill()
	if !in.gone(context.WithoutCancel(ctx), 5*time.Second) {
		return provider.Errorf(
			provider.ErrTimeout,
			"The worker, process %d, does not end: it is blocked in the operating system.",
			in.cmd.Process.Pid,
		)
	}
	return nil
}

// gone waits at most d, or until ctx ends, and reports whether the worker has ended.
func (in *instance) gone(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-in.done:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	select {
	case <-in.done:
		return true
	default:
		return false
	}
}
