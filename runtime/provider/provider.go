// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package provider is the interface of a source of workers: start a worker, open byte streams to it, learn how it
// ended, and stop it. It never handles tensors, programs or messages: a provider that did would be a second client.
package provider

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
)

// Spec describes a worker in terms that every provider understands.
type Spec struct {
	Session string // a part of names; "" lets the provider choose
	Device  string // "cpu", "cuda:0", or "" for CUDA if the host has it, else the CPU
	Threads int    // of a worker on the CPU; 0 is PyTorch's default
	// Kept is the folder for what a worker keeps, if it runs on this host.
	Kept string
	// Again says that the worker replaces a lost one of the same machine.
	Again bool
	// Options are the provider's own, by the names in its row of the table.
	Options map[string]string
}

// Paths has the paths of the package's parts on this host.
type Paths struct {
	Worker   string // the mycelya-worker program
	Exec     string // libmycelya_exec
	TorchLib string // the folder of libtorch_cpu
}

// Handle names an instance. It holds no secret.
type Handle struct {
	Provider string // "local"
	ID       string // the provider's name for the instance: a process number, a sandbox
	Session  string
}

func (h Handle) String() string { return h.Provider + ":" + h.ID }

// Provider starts workers.
type Provider interface {
	// Start returns when the worker can be dialled. If ctx ends first, Start leaves no worker running.
	Start(ctx context.Context, s Spec) (Instance, error)
}

// Instance is one running worker. All methods may be called concurrently.
type Instance interface {
	Handle() Handle
	// Dial opens another byte stream to the worker.
	Dial(ctx context.Context) (net.Conn, error)
	// Credentials are those with which the client speaks TLS on the streams of Dial; nil: only this user can reach the
	// worker, and the streams carry no TLS.
	Credentials() *transport.Credentials
	// Wait returns how the worker ended, or ctx's error.
	Wait(ctx context.Context) (Exit, error)
	// Stop asks the worker to end, and kills it after grace. It returns when the worker has ended. Idempotent.
	Stop(ctx context.Context, grace time.Duration) error
	// FDs returns the descriptors of this process that a forked child must close, without those of Dial.
	FDs() []int
}

// Connect opens a connection to a worker for the session with this name, or for a question about it (transport.EndOf).
// It speaks TLS if the worker has credentials.
func Connect(ctx context.Context, in Instance, name string) (net.Conn, error) {
	c, err := in.Dial(ctx)
	if err != nil || in.Credentials() == nil {
		return c, err
	}
	sendLate(c)
	secure := in.Credentials().ClientSide(c, name)
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, Errorf(ErrAuth, "The TLS handshake with the worker failed: %v.", err)
	}
	return secure, nil
}

// Open opens the stream of a session with a worker. With credentials it is a link, which outlives its connections and
// tells notice what becomes of them.
func Open(ctx context.Context, in Instance, name string, notice func(link.Notice)) (net.Conn, error) {
	if in.Credentials() == nil {
		return in.Dial(ctx)
	}
	dial := func(ctx context.Context) (net.Conn, error) { return Connect(ctx, in, name) }
	return link.Dial(ctx, link.Default, dial, notice)
}

// Reason is why a worker ended.
type Reason uint8

const (
	Unknown Reason = iota
	Done           // it was stopped
	Crashed        // a signal, or an exit code that is not 0
)

func (r Reason) String() string {
	switch r {
	case Done:
		return "done"
	case Crashed:
		return "crashed"
	}
	return "unknown"
}

// Exit is how a worker ended.
type Exit struct {
	Reason Reason
	Code   int    // exit code, -1 if a signal ended it
	Signal string // "killed", "segmentation fault", …; "" if none
	Detail string // the end of its log
}

// String is a clause for a sentence about the worker: "was ended by signal killed".
func (e Exit) String() string {
	switch {
	case e.Signal != "":
		return "was ended by signal " + e.Signal
	case e.Reason == Unknown:
		return "ended in an unknown way"
	}
	return fmt.Sprintf("ended with code %d", e.Code)
}

// Error is a failure of Start, Dial or Stop. Kind is one of the sentinels below. Text says in whole sentences what
// failed, where, and what the user can do.
type Error struct {
	Kind error
	Text string
	Err  error // the cause, if another package returned it
}

func (e *Error) Error() string { return e.Text }

func (e *Error) Unwrap() []error {
	if e.Err == nil {
		return []error{e.Kind}
	}
	return []error{e.Kind, e.Err}
}

// Errorf makes an Error. An error among args becomes its cause.
func Errorf(kind error, format string, args ...any) error {
	e := &Error{Kind: kind, Text: fmt.Sprintf(format, args...)}
	for _, a := range args {
		if err, ok := a.(error); ok {
			e.Err = err
		}
	}
	return e
}

// Kinds of errors. Only after ErrCapacity and ErrUnavailable can a second attempt succeed.
var (
	ErrInvalidSpec = errors.New("provider: such a worker cannot exist")
	ErrNotFound    = errors.New("provider: not found")
	ErrVersion     = errors.New("provider: the worker is of another version")
	ErrTimeout     = errors.New("provider: too slow")
	ErrUnavailable = errors.New("provider: the worker is not available")
	ErrCapacity    = errors.New("provider: no capacity")
	ErrAuth        = errors.New("provider: not allowed")
)
