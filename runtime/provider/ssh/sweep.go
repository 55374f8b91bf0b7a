// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/kballard/go-shellquote"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// The hosts that this user has used lie in a file of the user's state folder, one JSON object a line, the last one used
// last: sweeping needs to know where to look.
type known struct {
	Host   string   `json:"host"`
	SSH    []string `json:"ssh"`
	Python string   `json:"python"`
}

const (
	maxKnown = 64
	// How long a host may take for its list, with the login.
	listWait = 15 * time.Second
)

// hostsFile is the path of that file.
func hostsFile() (string, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", provider.Errorf(provider.ErrUnavailable, "There is no folder for the list of hosts: %v. Set "+
				"XDG_STATE_HOME.", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return filepath.Join(base, "mycelya", "ssh", "hosts"), nil
}

// readHosts reads the file. Lines that do not decode are left out.
func readHosts(path string) (out []known, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range strings.Lines(string(text)) {
		var k known
		if json.Unmarshal([]byte(line), &k) == nil && k.Host != "" && len(k.SSH) > 0 {
			out = append(out, k)
		}
	}
	return out, err
}

// remember adds a host to the file.
func remember(o options) error {
	path, err := hostsFile()
	if err != nil {
		return err
	}
	if err := rememberIn(path, known{o.host, o.command, o.python}); err != nil {
		return provider.Errorf(provider.ErrUnavailable, "The list of hosts %q cannot be written: %v. A machine that is not "+
			"in it would not be found again. Change its mode, or set XDG_STATE_HOME.", path, process.Reason(err))
	}
	return nil
}

func rememberIn(path string, k known) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer lock.Close() // unlocks
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	all, err := readHosts(path)
	if err != nil {
		return err
	}
	mine, err := json.Marshal(k)
	if err != nil {
		return err
	}
	var lines []string
	for _, other := range all {
		text, err := json.Marshal(other)
		if err == nil && string(text) != string(mine) {
			lines = append(lines, string(text))
		}
	}
	lines = append(lines, string(mine))
	lines = lines[max(0, len(lines)-maxKnown):]
	if err := os.WriteFile(path+".new", []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

// swept is a host that is being swept.
type swept struct {
	of       options
	dir      string
	front    *front
	machines []machine
	err      error
}

// Sweep implements provider.Provider: it asks each host that this user has used.
func (Provider) Sweep(ctx context.Context, end func(provider.Found) bool) ([]provider.Found, error) {
	path, err := hostsFile()
	if err != nil {
		return nil, err
	}
	hosts, err := readHosts(path)
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The list of hosts %q cannot be read: %v.", path,
			process.Reason(err))
	}
	all := make([]*swept, len(hosts))
	var lists sync.WaitGroup
	for i, k := range hosts {
		all[i] = &swept{of: options{host: k.Host, command: k.SSH, python: k.Python}}
		lists.Go(func() { all[i].list(ctx) })
	}
	lists.Wait()
	var out []provider.Found
	var errs []error
	seen := map[provider.Handle]bool{} // two ways may lead to one host
	for _, s := range all {
		if s.err == nil {
			out, s.err = s.sweep(ctx, end, seen, out)
		}
		if s.err != nil {
			errs = append(errs, fmt.Errorf("%w\nIf the host is no more, remove its line from %s", s.err, path))
		}
		s.close()
	}
	return out, errors.Join(errs...)
}

// list asks a host for its machines.
func (s *swept) list(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, listWait)
	defer cancel()
	if s.dir, s.err = controlDir(); s.err != nil {
		return
	}
	if s.front, s.err = s.of.open(s.dir, quickWait, &request{Do: "sweep"}); s.err != nil {
		return
	}
	a, err := s.front.next(ctx)
	if s.err = err; err == nil {
		s.machines = a.Machines
	}
}

// sweep ends the machines of a host that end chooses, and adds all machines to out.
func (s *swept) sweep(ctx context.Context, end func(provider.Found) bool, seen map[provider.Handle]bool,
	out []provider.Found) ([]provider.Found, error) {
	for _, m := range s.machines {
		f := provider.Found{Handle: s.of.handle(m.facts), Since: seconds(m.Began), Idle: m.idle(), Used: m.Used,
			Detached: m.Detached, Options: map[string]string{"host": s.of.host, "ssh": shellquote.Join(s.of.command...),
				"python": s.of.python}}
		if seen[f.Handle] {
			continue
		}
		seen[f.Handle] = true
		if m.Lease > 0 {
			f.Until = f.Since.Add(m.lease())
		}
		if end(f) {
			s.front.say(command{Do: "end", ID: m.ID})
			if _, err := s.front.next(ctx); err != nil {
				return out, err
			}
			f.Ended = true
		}
		out = append(out, f)
	}
	return out, nil
}

func (s *swept) close() {
	if s.front != nil {
		s.front.close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}

// seconds is a time that Python has told.
func seconds(at float64) time.Time { return time.UnixMicro(int64(at * 1e6)) }
