// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package exec runs a command whose stdin and stdout are the stream of a worker: mycelya-worker --stdio behind docker,
// srun, kubectl or any other program that passes both on. The package never runs a shell, and never knows what the
// command does. The command ends with this process, because its stdin ends then.
package exec

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/kballard/go-shellquote"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

const (
	// How long a command may take until its worker says the first word: a scheduler's queue, the pull of an image.
	handshakeWait = time.Hour
	// Between SIGTERM and SIGKILL, beside the grace. Programs like docker pass SIGTERM on.
	termWait = 2 * time.Second
	// How long the pipes are read after the command has ended: a process that it has started may hold them open.
	drainWait = 200 * time.Millisecond
	// The first line is no longer than this.
	maxLine = 4 << 10
)

// Provider runs commands.
type Provider struct{ provider.StartOnly }

// New returns the provider. The command brings its own worker program.
func New(provider.Paths) provider.Provider { return Provider{} }

// words returns the words of the command of a spec.
func words(s provider.Spec) ([]string, error) {
	for name, value := range s.Options {
		if name != "command" {
			return nil, provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not an option of the exec machine.", name, value)
		}
	}
	text := s.Options["command"]
	out, err := shellquote.Split(text)
	switch {
	case s.Device != "" || s.Threads != 0:
		return nil, provider.Errorf(provider.ErrInvalidSpec, "The command of an exec machine chooses its device (%q) and "+
			"threads (%d). Give the command the flags --device and --threads of mycelya-worker.", s.Device, s.Threads)
	case err != nil:
		return nil, provider.Errorf(provider.ErrInvalidSpec, "command=%q cannot be split into words: %v.", text, err)
	case len(out) == 0:
		return nil, provider.Errorf(provider.ErrInvalidSpec, "The exec machine needs a command: RemoteMachine(\"exec\", "+
			"command=\"docker run -i image mycelya-worker --stdio\").")
	}
	return out, nil
}

// Start implements provider.Provider.
func (Provider) Start(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	argv, err := words(s)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	in, err := start(s, argv)
	if err != nil {
		return nil, err
	}
	if err := in.handshake(ctx); err != nil {
		_ = in.Stop(context.WithoutCancel(ctx), 0)
		return nil, err
	}
	go in.clocks()
	return in, nil
}

// instance is a command that runs.
type instance struct {
	spec   provider.Spec
	argv   []string
	cmd    *osexec.Cmd
	stream *stream
	errs   *os.File
	log    process.Log
	used   chan struct{} // holds one element until the stream is given away
	process.Life

	mu     sync.Mutex
	reason provider.Reason // of the clock that has run out
}

// start runs the command with three pipes.
func start(s provider.Spec, argv []string) (*instance, error) {
	in := &instance{spec: s, argv: argv, cmd: osexec.Command(argv[0], argv[1:]...), used: make(chan struct{}, 1),
		Life: process.NewLife()}
	in.used <- struct{}{}
	pipes, started, err := process.Connect(in.cmd, "the command")
	if err != nil {
		return nil, err
	}
	in.stream, in.errs = newStream(pipes.Out, pipes.In), pipes.Err
	// In its own session the command gets no Ctrl-C and no hangup of the client's terminal.
	in.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	err = in.cmd.Start()
	started()
	if err != nil {
		_ = in.stream.Close()
		_ = in.errs.Close()
		kind := provider.ErrUnavailable
		if errors.Is(err, osexec.ErrNotFound) || errors.Is(err, os.ErrNotExist) {
			kind = provider.ErrNotFound
		}
		return nil, provider.Errorf(kind, "The command %q does not start: %v. %s", argv[0], process.Reason(err),
			process.Advice(err, "No shell runs it: give the program's name or path first, then its arguments."))
	}
	go in.watch()
	return in, nil
}

// watch reads the command's log until its end, and records how it has ended.
func (in *instance) watch() {
	read := make(chan struct{})
	go func() {
		defer close(read)
		r := bufio.NewReader(in.errs)
		_, _ = r.WriteTo(&in.log)
	}()
	err := in.cmd.Wait()
	timer := time.AfterFunc(drainWait, func() { _ = in.errs.Close() })
	<-read
	timer.Stop()
	_ = in.errs.Close()
	e := process.ExitOf(in.cmd.ProcessState, err, &in.log)
	in.mu.Lock()
	if in.reason != provider.Unknown {
		e.Reason = in.reason
	}
	in.mu.Unlock()
	in.End(e)
}

// name is the command in a sentence.
func (in *instance) name() string { return shellquote.Join(in.argv...) }

// handshake waits for the worker's line and checks it.
func (in *instance) handshake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeWait)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = in.stream.SetReadDeadline(time.Now()) })
	line, err := in.stream.line(maxLine)
	if !stop() {
		return ctx.Err()
	}
	if err != nil && line == "" { // the command has closed stdout, so it has ended or is about to
		select {
		case <-in.Ended():
			return provider.Errorf(provider.ErrUnavailable, "The command %q %v before its worker could be used. %s", in.name(),
				in.Exit(), in.log.Tail())
		case <-time.After(termWait):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	h, err := transport.ParseHandshake(line)
	switch {
	case err != nil:
		return provider.Errorf(provider.ErrVersion, "The command %q must run \"mycelya-worker --stdio\", and nothing else "+
			"may write to its stdout: it began with %q. %s", in.name(), line, in.log.Tail())
	case h.Version != transport.Version || h.Build != transport.Build:
		return provider.Errorf(provider.ErrVersion, "The worker of the command %q is build %s (wire version %d), this "+
			"package is build %s (wire version %d). Install the same version at both ends.", in.name(), h.Build, h.Version,
			transport.Build, transport.Version)
	case h.Network != "stdio":
		return provider.Errorf(provider.ErrVersion, "The worker of the command %q listens on %q. Give mycelya-worker the "+
			"flag --stdio.", in.name(), h.Addr)
	}
	return nil
}

// clocks ends the command by its lease, or when its stream was closed for too long. The command may run anywhere, so
// its worker's own clocks are not known here.
func (in *instance) clocks() {
	var lease, idle <-chan time.Time
	if in.spec.Lease > 0 {
		lease = time.After(in.spec.Lease)
	}
	if in.spec.Idle > 0 {
		idle = time.After(in.spec.Idle)
	}
	reason := provider.Unknown
	for reason == provider.Unknown {
		select {
		case <-in.Ended():
			return
		case <-lease:
			reason = provider.LeaseOver
		case <-idle:
			if idle = nil; in.stream.alone() {
				reason = provider.IdleTooLong
			}
		case <-in.stream.gone: // by Close; the command ends, since its stdin does
			return
		}
	}
	in.mu.Lock()
	in.reason = reason
	in.mu.Unlock()
	_ = in.Stop(context.Background(), 0)
}

// Handle implements provider.Instance.
func (in *instance) Handle() provider.Handle {
	return provider.Handle{Provider: "exec", ID: strconv.Itoa(in.cmd.Process.Pid), Session: in.spec.Session}
}

// Credentials implements provider.Instance. The command's stdin and stdout belong to this process.
func (in *instance) Credentials() *transport.Credentials { return nil }

// FDs implements provider.Instance.
func (in *instance) FDs() []int {
	return process.FDs(in.stream.in, in.stream.out, in.errs)
}

// OneStream implements provider.OneStream: the worker's stdin and stdout.
func (in *instance) OneStream() bool { return true }

// Dial implements provider.Instance.
func (in *instance) Dial(context.Context) (net.Conn, error) {
	select {
	case <-in.Ended():
		return nil, provider.Errorf(provider.ErrUnavailable, "The command %q %v. %s", in.name(), in.Exit(), in.log.Tail())
	case <-in.Asked():
		return nil, provider.Errorf(provider.ErrUnavailable, "The command %q has been stopped.", in.name())
	default:
	}
	select {
	case <-in.used:
		in.stream.use()
		return in.stream, nil
	default:
		return nil, provider.Errorf(provider.ErrUnavailable,
			"A command has one stream, its stdin and stdout, and this one is used already. Restart the machine for another.")
	}
}

// Stop closes the stream, at which a worker ends. Then it sends SIGTERM, and then SIGKILL to all processes of the
// command that are on this host and in its session.
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	if in.Ask() {
		_ = in.stream.Close()
	}
	return in.EndProcess(ctx, in.cmd.Process, fmt.Sprintf("The command %q", in.name()), grace, termWait)
}

// Logs implements provider.Logger.
func (in *instance) Logs(context.Context) (string, error) { return in.log.String(), nil }
