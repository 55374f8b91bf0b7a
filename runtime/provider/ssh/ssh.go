// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package ssh runs workers on hosts that the user can log in to with ssh. It starts the system's ssh, so the user's
// configuration, agent, jump hosts and known hosts hold. A small Python program, agent.py, does the host's part. The
// package never asks for a password, never accepts a host's key, and never puts a value into a remote command line.
package ssh

import (
	"cmp"
	"context"
	"regexp"
	"strings"

	"github.com/kballard/go-shellquote"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// The values of options, as regular expressions. No value can be taken for an option of ssh or of a program.
const (
	HostPattern    = `(ssh://)?[A-Za-z0-9_.:][A-Za-z0-9_.@:%+-]*`
	CommandPattern = `[^-].*`
	FolderPattern  = `[/~].*`
)

// Provider starts workers with these parts of the package.
type Provider struct {
	Paths   provider.Paths
	Backend string // "torch", the default, or "ref", which needs no PyTorch
}

// New returns the provider of workers that run this package's worker program.
func New(p provider.Paths) provider.Provider { return Provider{Paths: p} }

// options are how a host is reached, and what is used there.
type options struct {
	host    string
	command []string // of ssh
	python  string   // the interpreter on the host
	folder  string   // for programs on the host; "": that of caches
	state   string   // for what sessions keep; "": the machine's
	weights string   // for what is fetched from a hub; "": that of the host's caches
}

// defaultPython is the interpreter on a host. If it has no torch, the agent looks where environments usually lie.
const defaultPython = "python3"

// optionsOf checks the options of a machine.
func optionsOf(of map[string]string) (options, error) {
	o := options{python: defaultPython}
	command := "ssh"
	for name, to := range map[string]struct {
		value   *string
		pattern string
	}{
		"host": {&o.host, HostPattern}, "ssh": {&command, CommandPattern}, "python": {&o.python, CommandPattern},
		"folder": {&o.folder, FolderPattern}, "state": {&o.state, FolderPattern},
		"weights": {&o.weights, FolderPattern},
	} {
		value := of[name]
		if value == "" {
			continue
		}
		if !regexp.MustCompile("^(?:" + to.pattern + ")$").MatchString(value) {
			return o, provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not possible on the ssh machine.", name, value)
		}
		*to.value = value
	}
	for name, value := range of {
		switch name {
		case "host", "ssh", "python", "folder", "state", "weights":
		default:
			return o, provider.Errorf(provider.ErrInvalidSpec, "%s=%q is not an option of the ssh machine.", name, value)
		}
	}
	if o.host == "" {
		return o, provider.Errorf(provider.ErrInvalidSpec, "The ssh machine needs a host: RemoteMachine(\"ssh\", "+
			"host=\"user@name\"), or MYCELYA_MACHINE=ssh:user@name.")
	}
	var err error
	if o.command, err = shellquote.Split(command); err != nil {
		return o, provider.Errorf(provider.ErrInvalidSpec, "ssh=%q cannot be split into words: %v.", command, err)
	}
	return o, nil
}

// check checks a worker's spec, and returns its options.
func check(s provider.Spec) (options, error) {
	switch {
	case s.Threads < 0:
		return options{}, provider.Errorf(provider.ErrInvalidSpec, "A worker cannot have %d threads.", s.Threads)
	case !process.ValidDevice(s.Device):
		return options{}, provider.Errorf(provider.ErrInvalidSpec,
			"The device %q does not exist; a worker has \"cpu\" or \"cuda:<number>\".", s.Device)
	case s.Detached && (s.Session == "" || len(machineID(s.Session)) > 200):
		return options{}, provider.Errorf(provider.ErrInvalidSpec,
			"%q cannot name a machine that outlives its process: a name has 1 to about 100 characters.", s.Session)
	}
	return optionsOf(s.Options)
}

// Start implements provider.Provider.
func (p Provider) Start(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	o, err := check(s)
	if err != nil {
		return nil, err
	}
	r, err := p.startRequest(o, s)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := remember(o); err != nil {
		return nil, err
	}
	return o.start(ctx, s, r)
}

// Attach implements provider.Provider.
func (p Provider) Attach(ctx context.Context, s provider.Spec) (provider.Instance, error) {
	s.Detached = true
	o, err := check(s)
	if err != nil {
		return nil, err
	}
	if s.Again {
		return p.replace(ctx, o, s)
	}
	if err := remember(o); err != nil {
		return nil, err
	}
	return o.attach(ctx, s)
}

// Keeps implements provider.Keeper: what a worker keeps stays on its host until the machine ends.
func (Provider) Keeps(provider.Spec) error { return nil }

// Check implements provider.Checker.
func (p Provider) Check(ctx context.Context, s provider.Spec) error {
	o, err := check(s)
	if err != nil {
		return err
	}
	r, err := p.startRequest(o, s)
	if err != nil {
		return err
	}
	r.Do = "check"
	_, err = o.ask(ctx, r)
	return err
}

// replace starts a worker in place of one that has ended, with the same clocks.
func (p Provider) replace(ctx context.Context, o options, s provider.Spec) (provider.Instance, error) {
	last, err := o.ask(ctx, &request{Do: "replaced", ID: machineID(s.Session)})
	if err != nil {
		return nil, err
	}
	s.Idle, s.Lease = last.idle(), last.lease()
	return p.Start(ctx, s)
}

// machineID is the name of the folder of a machine that outlives its clients.
func machineID(session string) string {
	return "name-" + strings.ReplaceAll(escape(session), ".", "%2E")
}

// backend is the executor of the worker.
func (p Provider) backend() string { return cmp.Or(p.Backend, "torch") }
