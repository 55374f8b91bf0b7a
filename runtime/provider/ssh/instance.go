// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

const (
	// Between attempts to reach the host again: the first pause, and the last.
	firstPause = time.Second
	lastPause  = 30 * time.Second
	// How often a stop looks whether the connection was lost or the worker has ended.
	lostPause = 20 * time.Millisecond
	// How long a stop may take beside the worker's grace: a login, if the connection was lost, and what the agent waits
	// after a kill.
	stopWait = 20 * time.Second
	// How long streams may take to end after their worker: its last bytes are on the way.
	streamWait = 2 * time.Second
)

// instance is a worker on a host.
type instance struct {
	of          options
	id          string // the machine's folder on the host
	kept        string // the name of what the session's workers keep; "": it ends with the machine
	facts       facts
	credentials *transport.Credentials
	dir         string        // of the control socket
	wake        chan struct{} // asks for an attempt to reach the host
	process.Life
	released    chan struct{} // closed by the first Release
	releaseOnce sync.Once
	left        bool   // the session has kept something on the host; set before the end
	note        string // see Note

	mu      sync.Mutex    // guards what follows
	front   *front        // nil: the connection is lost
	up      chan struct{} // closed while there is a front
	streams map[*stream]struct{}
}

func newInstance(o options, dir string, f *front, w facts, c *transport.Credentials) *instance {
	in := &instance{of: o, facts: w, credentials: c, dir: dir, wake: make(chan struct{}, 1), Life: process.NewLife(),
		released: make(chan struct{}), up: make(chan struct{}), front: f,
		streams: map[*stream]struct{}{}}
	close(in.up)
	return in
}

// Handle implements provider.Instance.
func (in *instance) Handle() provider.Handle { return in.of.handle(in.facts) }

func (o options) handle(f facts) provider.Handle {
	return provider.Handle{Provider: "ssh", ID: fmt.Sprintf("%s/%d", o.host, f.PID), Session: f.Session}
}

// Credentials implements provider.Instance.
func (in *instance) Credentials() *transport.Credentials { return in.credentials }

// FDs implements provider.Instance.
func (in *instance) FDs() []int {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.front == nil {
		return nil
	}
	return process.FDs(in.front.In, in.front.Out, in.front.Err)
}

// follow learns how the worker ends. When the connection is lost, follow connects again.
func (in *instance) follow(f *front) {
	for {
		a, ok := <-f.answers
		if !ok {
			in.set(nil)
			f.close()
			var err error
			if f, a, err = in.again(); err != nil {
				in.finish(provider.Exit{Reason: provider.Unknown, Code: -1, Detail: err.Error()})
				return
			}
			in.set(f)
			select {
			case <-in.Asked(): // while the host could not be reached
				f.say(command{Do: "stop"})
			default:
			}
		}
		if a.Exit != nil {
			f.say(command{Do: "seen"})
			in.left = a.Left
			in.finish(exitOf(a.Exit))
			return
		}
	}
}

// set notes the connection; nil: it is lost.
func (in *instance) set(f *front) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.front = f; f != nil {
		close(in.up)
	} else {
		in.up = make(chan struct{})
	}
}

var errReleased = errors.New("the machine was released")

// again connects again, for as long as a session waits for its connection. It returns the agent's first answer too.
func (in *instance) again() (*front, *answer, error) {
	began := time.Now()
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		select {
		case <-in.released:
			return nil, nil, errReleased
		default:
		}
		f, err := in.of.open(in.dir, connectWait, &request{Do: "watch", ID: in.id})
		if err == nil {
			var a *answer
			if a, err = f.next(context.Background()); err == nil {
				return f, a, nil
			}
			f.close()
		}
		if errors.Is(err, errGone) || time.Since(began) > link.Default.Grace {
			return nil, nil, err
		}
		time.Sleep(firstPause)
		select {
		case <-time.After(pause - firstPause):
		case <-in.wake:
		case <-in.released:
		}
	}
}

// exitOf is how a worker has ended, in the provider's words.
func exitOf(e *exited) provider.Exit {
	out := provider.Exit{Reason: provider.Crashed, Code: e.Code, Detail: e.Log}
	switch {
	case e.Signal != 0:
		out.Signal = syscall.Signal(e.Signal).String()
	case e.Code < 0:
		out.Reason = provider.Unknown
	default:
		out.Reason = provider.ReasonOf(e.Code)
	}
	return out
}

// finish notes how the worker has ended. Nothing of it is left on this host then.
func (in *instance) finish(e provider.Exit) {
	in.mu.Lock()
	f, streams := in.front, in.streams
	in.streams = nil
	in.mu.Unlock()
	late := time.After(streamWait)
	for s := range streams {
		s.end(late)
	}
	if f != nil {
		f.close()
	}
	_ = os.RemoveAll(in.dir)
	in.End(e)
}

// Dial implements provider.Instance.
func (in *instance) Dial(ctx context.Context) (net.Conn, error) {
	if err := in.ready(ctx); err != nil {
		return nil, err
	}
	s, err := in.of.dial(ctx, in.dir, in.facts)
	if err != nil {
		return nil, err
	}
	in.mu.Lock()
	ended := in.streams == nil
	if !ended {
		in.streams[s] = struct{}{}
	}
	in.mu.Unlock()
	if ended {
		_ = s.Close()
		return nil, in.over()
	}
	go func() {
		<-s.ended
		in.mu.Lock()
		defer in.mu.Unlock()
		delete(in.streams, s)
	}()
	return s, nil
}

// ready waits until there is a connection to the host.
func (in *instance) ready(ctx context.Context) error {
	for {
		in.mu.Lock()
		f, up := in.front, in.up
		in.mu.Unlock()
		select {
		case <-in.Ended():
			return in.over()
		default:
		}
		if f != nil {
			return nil
		}
		select {
		case in.wake <- struct{}{}:
		default:
		}
		select {
		case <-up:
		case <-in.Ended():
		case <-ctx.Done():
			return provider.Errorf(provider.ErrUnavailable, "The connection to %s is lost.", in.of.host)
		}
	}
}

// over is the error of a worker that has ended.
func (in *instance) over() error {
	select {
	case <-in.Asked():
		return provider.Errorf(provider.ErrUnavailable, "The worker has been stopped.")
	default:
	}
	return provider.Errorf(provider.ErrUnavailable, "The worker on %s %v.\n%s", in.of.host, in.Exit(), in.Exit().Detail)
}

// Stop implements provider.Instance.
func (in *instance) Stop(ctx context.Context, grace time.Duration) error {
	in.Ask()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), grace+stopWait)
	defer cancel()
	var told *front
	for {
		if err := in.ready(ctx); err != nil {
			select {
			case <-in.Ended():
				return nil
			default:
				return provider.Errorf(provider.ErrTimeout, "The worker on %s, process %d, could not be stopped: the host "+
					"cannot be reached. The worker ends by itself when it had no client for %v.", in.of.host, in.facts.PID,
					in.facts.idle())
			}
		}
		in.mu.Lock()
		f := in.front
		in.mu.Unlock()
		if f == nil {
			continue
		}
		if f != told {
			f.say(command{Do: "stop", Grace: grace.Seconds()})
			told = f
		}
		select {
		case <-in.Ended():
			return nil
		case <-ctx.Done():
			return provider.Errorf(provider.ErrTimeout, "The worker on %s, process %d, does not end.", in.of.host, in.facts.PID)
		case <-f.ended:
			time.Sleep(lostPause) // until follow knows it too
		}
	}
}

// Note implements provider.Noter.
func (in *instance) Note() string { return in.note }

// Logs implements provider.Logger. While the worker runs, its host is asked over the connection that there is.
func (in *instance) Logs(ctx context.Context) (string, error) {
	err := in.ready(ctx)
	if err == nil {
		var a *answer
		f, began := in.of.begin(in.of.ssh(in.dir, false, quickWait, agentCommand), &request{Do: "log", ID: in.id})
		if a, err = f.only(ctx, began); err == nil {
			return a.Log, nil
		}
		if !errors.Is(err, errGone) {
			return "", err
		}
	}
	exit, unknown := in.Wait(ctx)
	if unknown != nil {
		return "", err
	}
	return exit.Detail, nil
}

// Remove ends what the worker's sessions have kept on the host. The worker has ended.
func (in *instance) Remove() {
	ctx, cancel := context.WithTimeout(context.Background(), stopWait)
	defer cancel()
	if in.facts.Detached {
		_, _ = in.of.ask(ctx, &request{Do: "remove", ID: in.id})
	} else if in.left {
		_, _ = in.of.ask(ctx, &request{Do: "remove", Kept: in.kept})
	}
}

// Release lets go of a worker that outlives this process, and returns when nothing of it is left on this host.
func (in *instance) Release() {
	in.releaseOnce.Do(func() { close(in.released) })
	in.mu.Lock()
	f := in.front
	in.mu.Unlock()
	if f != nil {
		f.close()
	}
	<-in.Ended()
}
