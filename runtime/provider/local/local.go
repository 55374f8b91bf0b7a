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
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/emulate"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// Spec is a worker on this host.
type Spec struct {
	provider.Spec
	Worker   string // the mycelya-worker program
	Exec     string // libmycelya_exec; "" with Backend "ref"
	TorchLib string // the folder of libtorch_cpu; "" with Backend "ref"
	Backend  string // "torch", the default, or "ref", which needs no PyTorch
	LogLevel string // of the worker's log: "debug", "info", "warn" (default), "error"

	tcp  bool          // over TCP with TLS, not over a unix socket
	rtt  time.Duration // of an emulated network before the worker
	rate int64         // its rate in bits per second; 0: no limit
	log  *os.File      // for the log of a detached worker
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
)

// Provider starts workers with the paths of its Spec.
type Provider struct{ Paths Spec }

// New returns the provider of workers that run this package's worker program.
func New(p provider.Paths) provider.Provider {
	return Provider{Paths: Spec{Worker: p.Worker, Exec: p.Exec, TorchLib: p.TorchLib}}
}

// WorkersAreHere implements provider.Here.
func (Provider) WorkersAreHere() {}

func (p Provider) with(s provider.Spec) Spec {
	spec := p.Paths
	spec.Spec = s
	return spec
}

// Start implements provider.Provider.
func (p Provider) Start(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	return Start(ctx, p.with(s))
}

// Attach implements provider.Provider.
func (p Provider) Attach(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	spec := p.with(s)
	if err := spec.check(); err != nil {
		return nil, err
	}
	if s.Again {
		return replaceDetached(ctx, spec)
	}
	return attach(s.Session)
}

// Keeps implements provider.Keeper: what a worker keeps is on this host.
func (p Provider) Keeps(provider.Spec) error { return nil }

// Price implements provider.Pricer: the user's own host costs nothing more.
func (p Provider) Price(string, int) (provider.Price, bool) {
	return provider.Price{Currency: "USD"}, true
}

// Start starts a worker and returns when it listens. If ctx ends first, nothing is left running.
func Start(ctx context.Context, s Spec) (provider.Instance, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	if s.Detached {
		return startDetached(ctx, s)
	}
	dir := ""
	if !s.tcp {
		var err error
		if dir, err = process.PrivateDir("", 0); err != nil {
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
	if !process.ValidDevice(s.Device) {
		return provider.Errorf(provider.ErrInvalidSpec,
			"The device %q does not exist; a worker on this host has \"cpu\" or \"cuda:<number>\".", s.Device)
	}
	if err := s.takeOptions(); err != nil {
		return err
	}
	info, err := os.Stat(s.Worker)
	switch {
	case err != nil:
		return process.Missing("worker program", s.Worker, err)
	case info.IsDir() || info.Mode()&0o111 == 0:
		return provider.Errorf(provider.ErrInvalidSpec, "The worker program %q is not executable. %s", s.Worker,
			process.Reinstall)
	}
	if s.Backend == "torch" {
		if _, err := os.Stat(s.Exec); err != nil {
			return process.Missing("executor library", s.Exec, err)
		}
		if _, err := os.Stat(s.TorchLib); err != nil {
			return provider.Errorf(provider.ErrNotFound,
				"PyTorch's library folder %q cannot be read: %v. Is torch installed in this environment?", s.TorchLib,
				process.Reason(err))
		}
	}
	return nil
}

// takeOptions takes the provider's own options. An emulated network is one of TCP.
func (s *Spec) takeOptions() error {
	wrong := func(name, value string, err error) error {
		return provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not possible on the local machine: %v.", name, value, err)
	}
	network := s.Options["transport"]
	for name, value := range s.Options {
		var err error
		switch {
		case value == "" || name == "state": // the session has made it Spec.Kept
		case name == "transport" && (value == "unix" || value == "tcp"):
		case name == "rtt":
			s.rtt, err = emulate.ParseRTT(value)
		case name == "rate":
			s.rate, err = emulate.ParseRate(value)
		default:
			return provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not an option of the local machine.", name, value)
		}
		if err != nil {
			return wrong(name, value, err)
		}
	}
	s.tcp = network == "tcp" || s.emulated()
	switch {
	case s.emulated() && network == "unix":
		return wrong("transport", network, errors.New("rtt= and rate= are of a network, which transport=\"tcp\" is"))
	case s.emulated() && s.Detached:
		return wrong("rtt", s.Options["rtt"], errors.New("the emulated network is in this process, which a detached machine "+
			"outlives"))
	}
	return nil
}

func (s *Spec) emulated() bool { return s.rtt > 0 || s.rate > 0 }

// instance is a running worker process.
type instance struct {
	spec  Spec
	dir   string
	cmd   *exec.Cmd
	pipes process.Pipes // the close of In ends the worker
	line  chan string   // the first line of stdout
	log   process.Log

	credentials *transport.Credentials // of the client, if the worker listens on TCP
	secret      []byte                 // the worker's credentials, until it has them
	addr        string                 // where the worker listens on TCP, or the network before it

	process.Life
}

// spawn runs the worker with three pipes.
func spawn(s Spec, dir string) (*instance, error) {
	args := []string{"--socket", process.SocketIn(dir)}
	if s.tcp {
		args = []string{"--listen", "127.0.0.1:0", "--credentials", "-"}
	}
	if s.Detached {
		args = append(args, "--single")
	} else {
		args = append(args, "--stdin-eof")
	}
	if s.Idle > 0 {
		args = append(args, "--alone", s.Idle.String())
	}
	if s.Lease > 0 {
		args = append(args, "--lease", s.Lease.String())
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
	in := &instance{spec: s, dir: dir, line: make(chan string, 1), Life: process.NewLife()}
	if err := in.mint(); err != nil {
		return nil, err
	}
	in.cmd = &exec.Cmd{
		Path: s.Worker, Args: append([]string{s.Worker}, args...), Env: environment(os.Environ()), Dir: "/",
		// In its own session the worker gets no Ctrl-C and no hangup of the client's terminal.
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	var started func()
	var err error
	if in.pipes, started, err = process.Connect(in.cmd, "the worker"); err != nil {
		return nil, err
	}
	defer started()
	if s.log != nil {
		in.cmd.Stderr = s.log
	}
	if abs, err := filepath.Abs(s.Worker); err == nil {
		in.cmd.Path = abs
	}
	if err := in.cmd.Start(); err != nil {
		in.pipes.Close()
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker program %q does not start: %v. %s",
			s.Worker, process.Reason(err), process.Advice(err, process.Reinstall))
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
	_, err := in.pipes.In.Write(in.secret)
	in.secret = nil
	if err != nil && !errors.Is(err, syscall.EPIPE) { // the worker has ended: handshake says how
		return provider.Errorf(provider.ErrUnavailable, "The worker's credentials cannot be passed on: %v.",
			process.Reason(err))
	}
	return nil
}

// watch reads the worker's output until its end, and records how the worker ended.
func (in *instance) watch() {
	var readers sync.WaitGroup
	readers.Go(func() {
		r := bufio.NewReader(in.pipes.Out)
		line, err := r.ReadString('\n')
		in.line <- line
		if err == nil {
			_, _ = io.Copy(&in.log, r) // output of libraries
		}
	})
	readers.Go(func() { _, _ = io.Copy(&in.log, in.pipes.Err) })
	err := in.cmd.Wait()
	timer := time.AfterFunc(drainWait, func() { _ = in.pipes.Out.Close(); _ = in.pipes.Err.Close() })
	readers.Wait()
	timer.Stop()
	in.pipes.Close()
	_ = os.RemoveAll(in.dir)
	in.End(process.ExitOf(in.cmd.ProcessState, err, &in.log))
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
			in.spec.Worker, handshakeWait, in.log.Tail())
	}
	if line == "" { // the worker closed stdout, so it has ended or is about to
		select {
		case <-in.Ended():
			return provider.Errorf(provider.ErrUnavailable, "The worker %q %v before it could be used. %s",
				in.spec.Worker, in.Exit(), in.log.Tail())
		case <-time.After(termWait):
		}
	}
	h, err := transport.ParseHandshake(line)
	if err != nil {
		return provider.Errorf(provider.ErrVersion, "The program %q is not a mycelya worker: it began with %q. %s %s",
			in.spec.Worker, line, process.Reinstall, in.log.Tail())
	}
	if h.Version != transport.Version || h.Build != transport.Build {
		return provider.Errorf(provider.ErrVersion,
			"The worker program %q is build %s (wire version %d), this package is build %s (wire version %d). %s",
			in.spec.Worker, h.Build, h.Version, transport.Build, transport.Version, process.Reinstall)
	}
	network, addr := "unix", process.SocketIn(in.dir)
	if in.spec.tcp {
		network, addr = "tcp", h.Addr
	}
	if h.Network != network || h.Addr != addr || h.PID != in.cmd.Process.Pid {
		return provider.Errorf(provider.ErrVersion, "The worker %q listens on %q as process %d, which is not what it was "+
			"told.", in.spec.Worker, h.Addr, h.PID)
	}
	in.addr = addr
	return in.emulate()
}

// emulate puts the emulated network before the worker, until its end.
func (in *instance) emulate() (err error) {
	if !in.spec.emulated() {
		return nil
	}
	var network io.Closer
	if in.addr, network, err = emulate.New(in.spec.rtt/2, in.spec.rate).Listen(in.addr); err != nil {
		return provider.Errorf(provider.ErrUnavailable, "The emulated network cannot listen: %v. %s", err,
			process.Advice(err, ""))
	}
	go func() {
		<-in.Ended()
		_ = network.Close()
	}()
	return nil
}

func (in *instance) Handle() provider.Handle {
	return provider.Handle{Provider: "local", ID: strconv.Itoa(in.cmd.Process.Pid), Session: in.spec.Session}
}

// FDs implements provider.Instance.
func (in *instance) FDs() []int { return process.FDs(in.pipes.In, in.pipes.Out, in.pipes.Err) }

func (in *instance) Dial(ctx context.Context) (net.Conn, error) {
	select {
	case <-in.Ended():
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker %v. %s", in.Exit(), in.log.Tail())
	case <-in.Asked():
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker has been stopped.")
	default:
	}
	if in.spec.rtt > 0 { // a handshake of TCP takes a round trip, but not on the loopback interface
		select {
		case <-time.After(in.spec.rtt):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
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
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker's socket: %v. %s", err, process.Advice(err, ""))
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

// Logs implements provider.Logger.
func (in *instance) Logs(context.Context) (string, error) { return in.log.String(), nil }

// Credentials implements provider.Instance.
func (in *instance) Credentials() *transport.Credentials { return in.credentials }

// Stop closes stdin, at which an idle worker ends at once. Then it sends SIGTERM, and then SIGKILL.
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	if in.Ask() {
		_ = in.pipes.In.Close()
	}
	return in.EndProcess(ctx, in.cmd.Process, "The worker", grace, termWait)
}

// environment is what a worker inherits. The workers of a program with several ranks, which torchrun counts in
// WORLD_SIZE, reach each other on this host, and each takes the GPU of its LOCAL_RANK.
func environment(all []string) []string {
	out := process.Environment(all)
	of := func(name string) int {
		return slices.IndexFunc(all, func(kv string) bool { return strings.HasPrefix(kv, name+"=") })
	}
	if of("WORLD_SIZE") < 0 || slices.Contains(all, "WORLD_SIZE=1") {
		return out
	}
	if i := of("LOCAL_RANK"); i >= 0 {
		out = append(out, all[i])
	}
	if of("MYCELYA_PEERS") < 0 {
		out = append(out, "MYCELYA_PEERS=127.0.0.1")
	}
	return out
}
