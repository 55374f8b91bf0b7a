// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// start starts a worker. The host keeps it only from the commit on, so that nothing is left of a start that ends
// before, however it ends.
func (o options) start(ctx context.Context, s provider.Spec, r *request) (provider.Instance, error) {
	credentials, err := r.credentials(s)
	if err != nil {
		return nil, err
	}
	dir, err := controlDir()
	if err != nil {
		return nil, err
	}
	f, err := o.open(dir, connectWait, r)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	a, err := f.started(ctx, r)
	if err == nil {
		err = o.checkWorker(a)
	}
	if err != nil {
		f.close()
		_ = os.RemoveAll(dir)
		return nil, err
	}
	f.say(command{Do: "commit"})
	in := newInstance(o, dir, f, a.facts, credentials)
	in.id, in.kept = r.ID, r.Kept
	if a.Found != "" {
		in.note = fmt.Sprintf("The interpreter %s on %s has no torch, so the worker uses torch %s in %s. Another one can be "+
			"named: RemoteMachine(\"ssh\", python=\"/path/to/python\").", o.python, o.host, a.Torch, a.Found)
	}
	go in.follow(f)
	return in, nil
}

// started waits for the worker, and sends what the host needs for it.
func (f *front) started(ctx context.Context, r *request) (*answer, error) {
	a, err := f.next(ctx)
	if err != nil || len(a.Need) == 0 {
		return a, err
	}
	stop := context.AfterFunc(ctx, func() { f.closed.Do(func() { _ = f.In.Close() }) })
	f.mu.Lock()
	err = r.send(f.In, a.Need)
	f.mu.Unlock()
	if !stop() {
		return nil, ctx.Err()
	}
	// An error of the pipe means that ssh or the agent has ended, which says why.
	var path *os.PathError
	if err != nil && !(errors.As(err, &path) && path.Path == f.In.Name()) {
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker cannot be copied to %s: %v.", f.of.host, err)
	}
	return f.next(ctx)
}

// checkWorker compares the worker's first line with what was asked for.
func (o options) checkWorker(a *answer) error {
	h, err := transport.ParseHandshake(a.Line)
	switch {
	case err != nil:
		return provider.Errorf(provider.ErrVersion, "The worker on %s began with %q, which is not a worker's handshake. %s",
			o.host, a.Line, process.Reinstall)
	case h.Version != transport.Version || h.Build != transport.Build:
		return provider.Errorf(provider.ErrVersion,
			"The worker program on %s is build %s (wire version %d), this package is build %s (wire version %d). %s", o.host,
			h.Build, h.Version, transport.Build, transport.Version, process.Reinstall)
	case h.Network != "unix" || h.Addr != a.Socket || h.PID != a.PID:
		return provider.Errorf(provider.ErrVersion, "The worker on %s listens on %q as process %d, which is not what it was "+
			"told.", o.host, h.Addr, h.PID)
	}
	return nil
}

// attach returns the worker of a machine that outlives its clients.
func (o options) attach(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	dir, err := controlDir()
	if err != nil {
		return nil, err
	}
	r := &request{Do: "attach", ID: machineID(s.Session), Facts: facts{Session: s.Session}}
	f, err := o.open(dir, connectWait, r)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	a, err := f.next(ctx)
	var credentials *transport.Credentials
	if err == nil {
		credentials, err = o.attached(a)
	}
	if err != nil {
		f.close()
		_ = os.RemoveAll(dir)
		return nil, err
	}
	in := newInstance(o, dir, f, a.facts, credentials)
	in.id = r.ID
	go in.follow(f)
	return in, nil
}

// attached checks the answer to attach, and returns the credentials of the machine's clients.
func (o options) attached(a *answer) (*transport.Credentials, error) {
	if a.Build != transport.Build {
		return nil, provider.Errorf(provider.ErrVersion, "The machine %q on %s runs build %s, this package is build %s. "+
			"Stop the machine with the package that has started it, or use that package.", a.Session, o.host, a.Build,
			transport.Build)
	}
	out, err := transport.ParseCredentials([]byte(a.Client))
	if err != nil {
		return nil, provider.Errorf(provider.ErrAuth, "The credentials of the machine %q on %s cannot be read: %v.",
			a.Session, o.host, err)
	}
	return out, nil
}
