// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package modal runs workers in GPU sandboxes of Modal (https://modal.com), with Modal's own client library. The
// client's tensors travel through a tunnel of the sandbox, within TLS of our own; the library carries no tensor. The
// package never leaves a sandbox that it has created and cannot use, and never puts a secret into arguments or logs.
package modal

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// Provider starts workers in sandboxes.
type Provider struct {
	Paths   provider.Paths // the files on this host that a sandbox gets
	Backend string         // "torch", the default, or "ref", which needs no PyTorch

	// unnamed is the folder on a volume for a machine without a name. Each session has a Provider of its own, so the
	// sandboxes that replace one another have the same folder.
	unnamed string
	wayWait time.Duration // of tunnels, in tests; 0: the default
}

// New returns the provider of workers that run this package's worker program.
func New(p provider.Paths) provider.Provider {
	return Provider{Paths: p, unnamed: "unnamed-" + strings.ToLower(rand.Text())}
}

// appName is the app of all sandboxes, in which their names are unique.
const appName = "mycelya"

// Check implements provider.Checker.
func (p Provider) Check(ctx context.Context, s provider.Spec) error {
	if _, err := p.plan(s); err != nil {
		return err
	}
	c, err := connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Apps.FromName(ctx, appName, &sdk.AppFromNameParams{CreateIfMissing: true})
	return explain(ctx, "find its app", err)
}

// Start implements provider.Provider.
func (p Provider) Start(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	w, err := p.plan(s)
	if err != nil {
		return nil, err
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	c.wayWait = cmp.Or(p.wayWait, wayWait)
	return owner(c)(start(ctx, c, w))
}

// owner returns a function that closes a client with the instance that it has given, or at once if it has given none.
func owner(c *client) func(*instance, error) (provider.Instance, error) {
	return func(in *instance, err error) (provider.Instance, error) {
		if err != nil {
			c.Close()
			return nil, err
		}
		context.AfterFunc(in.life, c.Close)
		return in, nil
	}
}

// start makes what a sandbox needs, and tries one GPU type after the other.
func start(ctx context.Context, c *client, w *plan) (*instance, error) {
	l := starter{client: c, plan: w}
	if err := l.prepare(ctx); err != nil {
		return nil, err
	}
	for i, gpu := range w.gpus {
		in, err := l.try(ctx, gpu)
		scarce := errors.Is(err, provider.ErrCapacity) || errors.Is(err, errNotStarted)
		if err == nil || !scarce || i == len(w.gpus)-1 {
			return in, err
		}
	}
	panic("BUG: a plan has no GPU types")
}

// Keeps implements provider.Keeper: only a volume outlives a sandbox.
func (p Provider) Keeps(s provider.Spec) error {
	if s.Options["volume"] == "" {
		return provider.Errorf(provider.ErrInvalidSpec, "What its worker keeps ends with the sandbox. Give volume=, the "+
			"name of a Modal volume, to the machine.")
	}
	return nil
}

// Attach implements provider.Provider.
func (p Provider) Attach(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	m, err := openMachine(s.Session)
	if err != nil {
		return nil, err
	}
	if s.Again {
		again, err := m.spec()
		if err != nil {
			return nil, err
		}
		again.Again = true
		return p.Start(ctx, again)
	}
	if err := knownOptions(s.Options); err != nil {
		return nil, err
	}
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	return owner(c)(attach(ctx, c, m, s.Options["tunnel"]))
}

// attach finds the sandbox of a machine. tunnel: "tcp", "tls", or "" for the first that works.
func attach(ctx context.Context, c *client, m machine, tunnel string) (*instance, error) {
	sb, err := c.Sandboxes.FromName(ctx, appName, c.nameOf(m.name), nil)
	if errors.As(err, new(sdk.NotFoundError)) {
		return nil, provider.Errorf(provider.ErrNotFound, "No machine with the name %q runs on Modal. %s", m.name,
			c.others(ctx))
	}
	if err != nil {
		return nil, explain(ctx, "find the machine", err)
	}
	tags, err := sb.GetTags(ctx)
	if err != nil {
		return nil, explain(ctx, "read the machine's tags", err)
	}
	if build := tags[tagBuild]; build != transport.Build {
		return nil, provider.Errorf(provider.ErrVersion, "The machine %q runs build %s, this package is build %s. Stop the "+
			"machine with the package that has started it, or use that package.", m.name, build, transport.Build)
	}
	credentials, err := m.credentials()
	if err != nil {
		return nil, err
	}
	in := newInstance(c, sb.SandboxID, m.name, credentials)
	in.machine = &m
	in.follow()
	if err := in.findTunnels(ctx, sb, tunnel); err != nil {
		in.release()
		return nil, err
	}
	return in, nil
}

// others lists the machines that run, in a sentence.
func (c *client) others(ctx context.Context) string {
	all, err := c.list(ctx)
	if err != nil {
		return "Its other machines cannot be listed."
	}
	text := ""
	for _, f := range all {
		if f.Detached {
			text += fmt.Sprintf(", %q", f.Session)
		}
	}
	if text == "" {
		return "None runs; RemoteMachine(\"modal\", …, name=…, detached=True) starts one."
	}
	return "There are " + text[2:] + "."
}

// Sweep implements provider.Provider. It finds sandboxes that were created with the same token.
func (p Provider) Sweep(ctx context.Context, end func(provider.Found) bool) ([]provider.Found, error) {
	c, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	all, err := c.list(ctx)
	var out []provider.Found
	for _, f := range all {
		if end(f) {
			if err := c.terminate(ctx, f.ID, true); err != nil {
				return out, err
			}
			f.Ended = true
			if m, err := openMachine(f.Session); err == nil && f.Detached {
				m.remove(f.ID)
			}
		}
		out = append(out, f)
	}
	return out, err
}

// terminateWait bounds the end of a sandbox: Modal sends SIGKILL.
const terminateWait = time.Minute

// terminate ends a sandbox, whether or not ctx has ended. wait: it returns when the sandbox has ended.
func (c *client) terminate(ctx context.Context, id string, wait bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), terminateWait)
	defer cancel()
	sb, err := c.Sandboxes.FromID(ctx, id)
	if err == nil {
		_, err = sb.Terminate(ctx, &sdk.SandboxTerminateParams{Wait: wait})
	}
	if err == nil || errors.As(err, new(sdk.NotFoundError)) {
		return nil
	}
	return provider.Errorf(provider.ErrUnavailable, "The sandbox %s could not be ended: %v. It ends by its idle time and "+
		"by its lease; https://modal.com/apps has a button to stop it now.", id, err)
}
