// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// A detached worker outlives the process that has started it. What another process needs to use the worker lies in a
// folder that only this user can enter:
//
//	<state folder of the user>/mycelya/machines/<name>/
//	    machine.json   where the worker listens, and its process
//	    client.json    the client's credentials, if the worker listens on TCP
//	    log            of the worker
//	    kept/          what its sessions keep
//	    lock           held while a worker is started or stopped
type detached struct {
	PID     int    // of the worker
	Started uint64 // when it started, in ticks since the boot: another process with the number has another time
	Network string
	Addr    string
	Build   string
	Idle    time.Duration // without a client, after which it ends
	Lease   time.Duration // 0: none
	Began   time.Time
}

const (
	machineFile = "machine.json"
	clientFile  = "client.json"
	pollWait    = 50 * time.Millisecond
	// A worker answers within milliseconds. One that does not answer is blocked or has just ended.
	usedWait = 5 * time.Second
)

// machineFolder is the folder of a name.
func machineFolder(name string) (string, error) {
	file := url.PathEscape(name)
	if name == "" || len(file) > 200 || strings.HasPrefix(file, ".") {
		return "", provider.Errorf(provider.ErrInvalidSpec,
			"%q cannot name a machine that outlives its process: a name has 1 to about 100 characters, and no dot first.", name)
	}
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", provider.Errorf(provider.ErrUnavailable, "There is no folder for machines: %v. Set XDG_STATE_HOME.", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "mycelya", "machines", file), nil
}

// locked runs f while no other process starts or stops the machine of a folder.
func locked(folder string, f func() error) error {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	return f()
}

// readMachine reads the file of a machine whose worker runs; nil: there is none.
func readMachine(folder string) (*detached, error) {
	m, err := lastMachine(folder)
	if err != nil || m == nil || startOf(m.PID) != m.Started {
		return nil, err
	}
	return m, nil
}

// lastMachine reads the file of a machine, whose worker may have ended; nil: there is none.
func lastMachine(folder string) (*detached, error) {
	text, err := os.ReadFile(filepath.Join(folder, machineFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	out := new(detached)
	if err == nil {
		err = json.Unmarshal(text, out)
	}
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The file of the machine in %q cannot be read: %v.", folder, err)
	}
	return out, nil
}

// startOf is when a process started, in ticks since the boot; 0: it does not run.
func startOf(pid int) uint64 {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	const state, start = 0, 19 // fields 3 and 22 of proc(5)
	if len(fields) <= start || fields[state] == "Z" {
		return 0
	}
	n, _ := strconv.ParseUint(fields[start], 10, 64)
	return n
}

// startDetached starts a worker that outlives this process.
func startDetached(ctx context.Context, s Spec) (out provider.Instance, err error) {
	folder, err := machineFolder(s.Session)
	if err != nil {
		return nil, err
	}
	err = locked(folder, func() error {
		running, err := readMachine(folder)
		switch {
		case err != nil:
			return err
		case running != nil:
			return provider.Errorf(provider.ErrInvalidSpec, "The machine %q runs already, as process %d. Use it with "+
				"RemoteMachine.attach(%q), or choose another name.", s.Session, running.PID, s.Session)
		}
		if s.Kept == "" {
			s.Kept = filepath.Join(folder, "kept")
		}
		in, err := s.spawnDetached(ctx, folder)
		if err == nil {
			out = in
		}
		return err
	})
	if err != nil {
		return nil, unavailable(err)
	}
	return out, nil
}

func unavailable(err error) error {
	var known *provider.Error
	if errors.As(err, &known) {
		return err
	}
	return provider.Errorf(provider.ErrUnavailable, "The machine's folder cannot be used: %v.", err)
}

// spawnDetached runs the worker, and writes what another process needs.
func (s *Spec) spawnDetached(ctx context.Context, folder string) (*attached, error) {
	dir, err := process.PrivateDir("", 0)
	if err != nil {
		return nil, err
	}
	log, err := os.OpenFile(filepath.Join(folder, "log"), os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	s.log = log
	in, err := spawn(*s, dir)
	if err != nil {
		_ = os.RemoveAll(dir)
		return nil, err
	}
	if err = in.passSecret(); err == nil {
		err = in.handshake(ctx)
	}
	m := detached{PID: in.cmd.Process.Pid, Started: startOf(in.cmd.Process.Pid), Network: in.network(), Addr: in.addr,
		Build: transport.Build, Idle: s.Idle, Lease: s.Lease, Began: time.Now()}
	if err == nil && in.credentials != nil {
		var text []byte
		if text, err = in.credentials.Encode(); err == nil {
			err = writeFile(filepath.Join(folder, clientFile), text)
		}
	}
	if err == nil {
		var text []byte
		if text, err = json.Marshal(m); err == nil {
			err = writeFile(filepath.Join(folder, machineFile), text)
		}
	}
	if err != nil {
		_ = in.Stop(context.WithoutCancel(ctx), 0)
		return nil, err
	}
	return &attached{detached: m, name: s.Session, folder: folder, credentials: in.credentials, child: in}, nil
}

// writeFile writes a file that only this user can read, at once and as a whole.
func writeFile(path string, text []byte) error {
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// attach returns the worker of a machine that another process has started.
func attach(name string) (provider.Instance, error) {
	folder, err := machineFolder(name)
	if err != nil {
		return nil, err
	}
	m, err := readMachine(folder)
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return nil, provider.Errorf(provider.ErrNotFound, "No machine with the name %q runs on this host. %s", name,
			others(filepath.Dir(folder)))
	case m.Build != transport.Build:
		return nil, provider.Errorf(provider.ErrVersion, "The machine %q runs build %s, this package is build %s. Stop the "+
			"machine with the package that has started it, or use that package.", name, m.Build, transport.Build)
	}
	out, err := m.attach(name, folder)
	if err != nil {
		return nil, err
	}
	return out, nil
}

// attach returns the worker of a machine.
func (m *detached) attach(name, folder string) (*attached, error) {
	out := &attached{detached: *m, name: name, folder: folder}
	if m.Network == "tcp" {
		text, err := os.ReadFile(filepath.Join(folder, clientFile))
		if err == nil {
			out.credentials, err = transport.ParseCredentials(text)
		}
		if err != nil {
			return out, provider.Errorf(provider.ErrAuth, "The credentials of the machine %q cannot be read: %v.", name, err)
		}
	}
	return out, nil
}

// replaceDetached starts a worker in place of one that was attached and has ended.
func replaceDetached(ctx context.Context, s Spec) (provider.Instance, error) {
	folder, err := machineFolder(s.Session)
	if err != nil {
		return nil, err
	}
	m, err := lastMachine(folder)
	switch {
	case err != nil:
		return nil, err
	case m == nil:
		return nil, provider.Errorf(provider.ErrNotFound, "The machine %q was stopped.", s.Session)
	}
	s.Detached, s.Idle, s.Lease, s.tcp = true, m.Idle, m.Lease, m.Network == "tcp"
	return startDetached(ctx, s)
}

// running returns the machines in a folder whose workers run.
func running(machines string) (out []*attached) {
	entries, _ := os.ReadDir(machines)
	for _, e := range entries {
		folder := filepath.Join(machines, e.Name())
		m, err := readMachine(folder)
		name, badName := url.PathUnescape(e.Name())
		if err == nil && m != nil && badName == nil {
			a, _ := m.attach(name, folder) // without credentials used() cannot ask the worker, and returns true
			out = append(out, a)
		}
	}
	return out
}

// Sweep implements provider.Provider: it finds detached workers. Others end with their client.
func (Provider) Sweep(ctx context.Context, end func(provider.Found) bool) ([]provider.Found, error) {
	folder, err := machineFolder("x")
	if err != nil {
		return nil, err
	}
	var out []provider.Found
	for _, a := range running(filepath.Dir(folder)) {
		f := provider.Found{Handle: a.Handle(), Since: a.Began, Idle: a.Idle, Used: a.used(ctx), Detached: true}
		if a.Lease > 0 {
			f.Until = a.Began.Add(a.Lease)
		}
		if end(f) {
			if err := a.Stop(ctx, termWait); err != nil {
				return out, err
			}
			a.Remove()
			f.Ended = true
		}
		out = append(out, f)
	}
	return out, nil
}

// used says whether a client uses the machine. A worker that does not tell counts as used, so that nothing ends it by
// mistake.
func (a *attached) used(ctx context.Context) bool {
	if a.Build != transport.Build {
		return true // it may know no questions
	}
	ctx, cancel := context.WithTimeout(ctx, usedWait)
	defer cancel()
	clients, err := provider.HasClients(ctx, a)
	return err != nil || clients
}

// others lists the machines that run, in a sentence.
func others(machines string) string {
	var names []string
	for _, a := range running(machines) {
		names = append(names, fmt.Sprintf("%q", a.name))
	}
	if len(names) == 0 {
		return "None runs; RemoteMachine(…, name=…, detached=True) starts one."
	}
	return "There are " + strings.Join(names, ", ") + "."
}

// attached is a worker that outlives its clients.
type attached struct {
	detached
	name        string
	folder      string
	credentials *transport.Credentials
	child       *instance // if this process has started it; nil otherwise
}

// Handle implements provider.Instance.
func (a *attached) Handle() provider.Handle {
	return provider.Handle{Provider: "local", ID: strconv.Itoa(a.PID), Session: a.name}
}

// FDs implements provider.Instance.
func (a *attached) FDs() []int {
	if a.child != nil {
		return a.child.FDs()
	}
	return nil
}

// Credentials implements provider.Instance.
func (a *attached) Credentials() *transport.Credentials { return a.credentials }

func (a *attached) runs() bool { return startOf(a.PID) == a.Started }

// Dial implements provider.Instance.
func (a *attached) Dial(ctx context.Context) (net.Conn, error) {
	if !a.runs() {
		return nil, provider.Errorf(provider.ErrUnavailable, "The worker of the machine %q has ended. %s", a.name,
			a.logTail())
	}
	return dial(ctx, a.Network, a.Addr)
}

// Wait implements provider.Instance. How a process ends is known to its parent only.
func (a *attached) Wait(ctx context.Context) (provider.Exit, error) {
	for a.runs() {
		select {
		case <-time.After(pollWait):
		case <-ctx.Done():
			return provider.Exit{}, ctx.Err()
		}
	}
	if a.child != nil {
		return a.child.Wait(ctx)
	}
	return provider.Exit{Reason: provider.Unknown, Code: -1, Detail: a.logTail()}, nil
}

// Stop implements provider.Instance. What the machine has kept stays: see Remove.
func (a *attached) Stop(ctx context.Context, grace time.Duration) error {
	return locked(a.folder, func() error {
		for _, step := range []struct {
			signal syscall.Signal
			wait   time.Duration
		}{{syscall.SIGTERM, grace + termWait}, {syscall.SIGKILL, 5 * time.Second}} {
			if !a.runs() {
				break
			}
			_ = syscall.Kill(a.PID, step.signal)
			within, cancel := context.WithTimeout(context.WithoutCancel(ctx), step.wait)
			_, _ = a.Wait(within)
			cancel()
		}
		if a.runs() {
			return provider.Errorf(provider.ErrTimeout,
				"The worker, process %d, does not end: it is blocked in the operating system.", a.PID)
		}
		return nil
	})
}

// Remove ends the machine, whose worker has ended, and what it has kept.
func (a *attached) Remove() {
	_ = locked(a.folder, func() error {
		if m, err := readMachine(a.folder); err != nil || m != nil {
			return err // another process has started a worker for the machine
		}
		for _, file := range []string{machineFile, clientFile, "log", "kept"} {
			_ = os.RemoveAll(filepath.Join(a.folder, file))
		}
		return nil
	})
}

// logTail is the end of the worker's log.
func (a *attached) logTail() string {
	text, err := a.Logs(context.Background())
	if err != nil {
		return ""
	}
	return text
}

// Logs implements provider.Logger.
func (a *attached) Logs(context.Context) (string, error) {
	f, err := os.Open(filepath.Join(a.folder, "log"))
	if err != nil {
		return "", provider.Errorf(provider.ErrNotFound, "The log of the machine %q cannot be read: %v.", a.name,
			process.Reason(err))
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 2*process.LogBytes {
		_, _ = f.Seek(-2*process.LogBytes, io.SeekEnd)
	}
	var last process.Log
	if _, err := io.Copy(&last, f); err != nil {
		return "", provider.Errorf(provider.ErrUnavailable, "The log of the machine %q cannot be read: %v.", a.name,
			process.Reason(err))
	}
	return last.String(), nil
}
