// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package provider is the interface of a source of workers: start a worker, open byte streams to it, learn how it
// ended, stop it, and find those that nobody stopped. It never handles tensors, programs or messages: a provider that
// did would be a second client.
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
	Session string // the machine's name, a part of names; "" lets the provider choose
	Device  string // "cpu", "cuda:0", or "" for CUDA if the host has it, else the CPU
	Threads int    // of a worker on the CPU; 0 is PyTorch's default
	// GPU is a type in the provider's words, as "A100-80GB"; "" is the provider's default. GPUs is how many, at least 1
	// if GPU is given.
	GPU  string
	GPUs int
	// Lease is how long the worker lives at most, Idle how long it lives without a client. A worker that costs money has
	// both. 0 is no limit, for workers that end with their client.
	Lease, Idle time.Duration
	// Packages are Python packages that the worker's host needs, in pip's words.
	Packages []string
	// Detached says that the worker outlives this process, so that Attach of another process can find it by Session.
	Detached bool
	// Kept is the folder for what a worker keeps, if it runs on this host. On another one, its last part is a name for
	// that, which a worker with Again has in common with the lost one.
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
	// Attach returns the worker that another process has started with Detached and this Session. With Again, it starts
	// one in its place. ErrNotFound: none runs.
	Attach(ctx context.Context, s Spec) (Instance, error)
	// Sweep finds the user's instances, whichever process has started them, and ends those that end chooses. It returns
	// all that it has found; after an error, those that it has found before.
	Sweep(ctx context.Context, end func(Found) bool) ([]Found, error)
}

// Here is a Provider whose workers run on this host, so that they can keep what they keep in Spec.Kept.
type Here interface {
	// WorkersAreHere does nothing.
	WorkersAreHere()
}

// Checker is a Provider that can tell before a start whether a start can succeed: credentials, quota, reachability.
type Checker interface {
	// Check returns within a few seconds. Its error is what Start would return.
	Check(ctx context.Context, s Spec) error
}

// Keeper is a Provider that can start a worker with Spec.Again in place of one that was stopped, with all that the
// stopped one has kept. Only its machines can pause.
type Keeper interface {
	// Keeps returns nil if a worker of s is such a one, else why not, as an Error.
	Keeps(s Spec) error
}

// Pricer is a Provider that knows what its instances cost.
type Pricer interface {
	// Price returns the price of an instance. False: it is not known.
	Price(gpu string, gpus int) (Price, bool)
}

// Price is what an instance costs.
type Price struct {
	PerHour  float64 `json:"price_per_hour"`
	Currency string  `json:"currency"` // "USD"
	Date     string  `json:"priced"`   // of the price list, "2026-05-07"; "": the price does not change
}

// StartOnly is for embedding: a Provider whose workers end with this process, so that there is nothing to find.
type StartOnly struct{}

// Attach implements Provider.
func (StartOnly) Attach(context.Context, Spec) (Instance, error) {
	return nil, Errorf(ErrNotFound, "The workers of this provider end with the process that has started them.")
}

// Sweep implements Provider.
func (StartOnly) Sweep(context.Context, func(Found) bool) ([]Found, error) { return nil, nil }

// Found is an instance that Sweep has found.
type Found struct {
	Handle
	GPU   string
	GPUs  int
	Since time.Time // when it was started; zero: not known
	Until time.Time // when its lease ends; zero: never, or not known
	Idle  time.Duration
	// Used says that a client uses the instance, or that its starting process still runs. Such an instance is no leak.
	Used  bool
	Ended bool // by this Sweep
	// Detached says that Attach finds the instance by its Session, with Options. Others can be reached by the process that
	// has started them only, which has the credentials.
	Detached bool
	Options  map[string]string
}

// Instance is one running worker. All methods may be called concurrently.
type Instance interface {
	Handle() Handle
	// Dial opens another byte stream to the worker. It need not wait until the worker has it: a failure may be the error
	// of the first read, as an Error.
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

// Logger is an Instance whose worker's log can be read.
type Logger interface {
	// Logs returns the log, or its end if it is long, also after the worker's end.
	Logs(ctx context.Context) (string, error)
}

// Noter is an Instance whose provider has chosen something that its user should know.
type Noter interface {
	// Note says it in whole sentences; "": there is nothing to say.
	Note() string
}

// Installer is an Instance on whose host Python packages can be installed while the worker runs.
type Installer interface {
	// Install installs packages, in pip's words, and returns what that has printed.
	Install(ctx context.Context, packages []string) (string, error)
}

// OneStream is an Instance that may have one stream in all. Such a machine has one device.
type OneStream interface {
	OneStream() bool
}

// Chooser is an Instance with several ways to its worker. Some networks let one of them open and carry nothing.
type Chooser interface {
	// Through opens a stream as Dial does, and passes it to use, which owns it and returns an error if nothing comes.
	// Then Through tries another way.
	Through(ctx context.Context, use func(context.Context, net.Conn) (net.Conn, error)) (net.Conn, error)
}

// Connect opens a connection to a worker for the session with this name, or for a question about it (transport.EndOf).
// It speaks TLS if the worker has credentials.
func Connect(ctx context.Context, in Instance, name string) (net.Conn, error) {
	credentials := in.Credentials()
	if credentials == nil {
		return in.Dial(ctx)
	}
	secure := func(ctx context.Context, c net.Conn) (net.Conn, error) {
		sendLate(c)
		out := credentials.ClientSide(c, name)
		if err := out.HandshakeContext(ctx); err != nil {
			_ = c.Close()
			if known := new(Error); errors.As(err, &known) { // the stream itself says why
				return nil, err
			}
			return nil, Errorf(ErrAuth, "The TLS handshake with the worker failed: %v.", err)
		}
		return out, nil
	}
	if ways, ok := in.(Chooser); ok {
		return ways.Through(ctx, secure)
	}
	c, err := in.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return secure(ctx, c)
}

// Open opens the stream of a session with a worker, and sends its first bytes, at most link.MaxFirst. With credentials
// it is a link, which outlives its connections and tells notice what becomes of them.
func Open(ctx context.Context, in Instance, name string, first []byte, notice func(link.Notice)) (net.Conn, error) {
	if in.Credentials() == nil {
		c, err := in.Dial(ctx)
		if err != nil || len(first) == 0 {
			return c, err
		}
		if _, err := c.Write(first); err != nil {
			_ = c.Close()
			return nil, err
		}
		return c, nil
	}
	dial := func(ctx context.Context) (net.Conn, error) { return Connect(ctx, in, name) }
	return link.Dial(ctx, link.Default, dial, first, notice)
}

// Reason is why a worker ended.
type Reason uint8

const (
	Unknown     Reason = iota
	Done               // it was stopped
	Crashed            // a signal, or an exit code that is not 0
	LeaseOver          // its lease has passed
	IdleTooLong        // it had no client for the time of Idle
	Preempted          // the provider has taken its host
	OutOfMemory        // its host, or the limit of its container
)

var reasons = [...]string{"unknown", "done", "crashed", "lease over", "idle too long", "preempted", "out of memory"}

func (r Reason) String() string { return reasons[r] }

// ReasonOf is the reason of a worker that has ended by itself with this code.
func ReasonOf(code int) Reason {
	switch code {
	case 0:
		return Done
	case transport.ExitLease:
		return LeaseOver
	case transport.ExitAlone:
		return IdleTooLong
	}
	return Crashed
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
	case e.Reason == LeaseOver:
		return "has ended because its lease has passed"
	case e.Reason == IdleTooLong:
		return "has ended because it had no client for too long"
	case e.Reason == Preempted:
		return "has ended because the provider has taken its host for others"
	case e.Reason == OutOfMemory:
		return "was ended because its host ran out of memory"
	case e.Signal != "":
		return "was ended by signal " + e.Signal
	case e.Reason == Unknown:
		return "ended in an unknown way"
	}
	return fmt.Sprintf("ended with code %d", e.Code)
}

// Error is a failure of a method. Kind is one of the sentinels below. Text says in whole sentences what
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
	ErrQuota       = errors.New("provider: the account's limit is reached")
	ErrAuth        = errors.New("provider: not allowed")
)
