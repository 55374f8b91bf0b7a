// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package process

import (
	"context"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/runtime/provider"
)

// killWait is how long the system may take to end a process after SIGKILL.
const killWait = 30 * time.Second

// Life is what is known of a worker's end, for embedding in an Instance. NewLife makes it.
type Life struct {
	once        sync.Once
	asked, done chan struct{}
	exit        provider.Exit
}

// NewLife returns the Life of a worker that runs.
func NewLife() Life { return Life{asked: make(chan struct{}), done: make(chan struct{})} }

// Ask notes that a Stop has asked the worker to end. It returns true for the first one.
func (l *Life) Ask() (first bool) {
	l.once.Do(func() { close(l.asked); first = true })
	return first
}

// Asked is closed by the first Ask.
func (l *Life) Asked() <-chan struct{} { return l.asked }

// End notes how the worker has ended. It must be called once. A worker that was asked to end is done, unless one of its
// clocks was faster.
func (l *Life) End(e provider.Exit) {
	select {
	case <-l.asked:
		if e.Reason != provider.LeaseOver && e.Reason != provider.IdleTooLong {
			e.Reason = provider.Done
		}
	default:
	}
	l.exit = e
	close(l.done)
}

// Ended is closed by End.
func (l *Life) Ended() <-chan struct{} { return l.done }

// Exit is how the worker has ended. It must be called after Ended was closed.
func (l *Life) Exit() provider.Exit { return l.exit }

// Wait implements provider.Instance. An end that is known counts more than ctx.
func (l *Life) Wait(ctx context.Context) (provider.Exit, error) {
	select {
	case <-l.done:
		return l.exit, nil
	default:
	}
	select {
	case <-l.done:
		return l.exit, nil
	case <-ctx.Done():
		return provider.Exit{}, ctx.Err()
	}
}

// EndsWithin waits at most d, or until ctx ends, and reports whether the worker has ended.
func (l *Life) EndsWithin(ctx context.Context, d time.Duration) bool {
	within, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	_, err := l.Wait(within)
	return err == nil
}

// EndProcess returns when a process of this host that was asked to end has ended. The process leads its own session. It
// gets SIGTERM after grace, and its session SIGKILL so much later. what begins a sentence about it.
func (l *Life) EndProcess(ctx context.Context, p *os.Process, what string, grace, later time.Duration) error {
	if l.EndsWithin(ctx, grace) {
		return nil
	}
	_ = p.Signal(syscall.SIGTERM)
	if l.EndsWithin(ctx, later) {
		return nil
	}
	_ = syscall.Kill(-p.Pid, syscall.SIGKILL)
	if l.EndsWithin(context.WithoutCancel(ctx), killWait) {
		return nil
	}
	return provider.Errorf(provider.ErrTimeout, "%s, process %d, does not end: it is blocked in the operating system.",
		what, p.Pid)
}

// ExitOf is how a process has ended, for which Wait has returned err.
func ExitOf(st *os.ProcessState, err error, log *Log) provider.Exit {
	if st == nil {
		return provider.Exit{Reason: provider.Unknown, Code: -1, Detail: err.Error()}
	}
	e := provider.Exit{Reason: provider.Crashed, Code: st.ExitCode(), Detail: log.String()}
	if ws, ok := st.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		e.Signal = ws.Signal().String()
	} else {
		e.Reason = provider.ReasonOf(e.Code)
	}
	return e
}
