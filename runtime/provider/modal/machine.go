// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// machine is a sandbox that outlives the process that has started it. What another process of this host needs to use
// the worker lies in a folder that only this user can enter:
//
//	<state folder of the user>/mycelya/modal/<name>/
//	    machine.json   the sandbox, and how to start another one in its place
//	    client.json    the client's credentials
type machine struct{ name, folder string }

// kept is machine.json.
type kept struct {
	Sandbox string
	Spec    provider.Spec
}

const (
	machineFile = "machine.json"
	clientFile  = "client.json"
)

// openMachine returns the machine with a name.
func openMachine(name string) (machine, error) {
	if name == "" || len(name) > 100 {
		return machine{}, provider.Errorf(provider.ErrInvalidSpec, "%q cannot name a machine that outlives its process: a "+
			"name has 1 to 100 characters.", name)
	}
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return machine{}, provider.Errorf(provider.ErrUnavailable, "There is no folder for machines: %v. Set "+
				"XDG_STATE_HOME.", err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	return machine{name, filepath.Join(base, "mycelya", "modal", escape(name))}, nil
}

// write keeps what another process needs.
func (m *machine) write(sandbox string, s provider.Spec, credentials *transport.Credentials) error {
	s.Again = false
	about, err := json.Marshal(kept{sandbox, s})
	var secret []byte
	if err == nil {
		secret, err = credentials.Encode()
	}
	if err == nil {
		err = os.MkdirAll(m.folder, 0o700)
	}
	if err == nil {
		err = writeFile(filepath.Join(m.folder, clientFile), secret)
	}
	if err == nil {
		err = writeFile(filepath.Join(m.folder, machineFile), about)
	}
	if err != nil {
		return provider.Errorf(provider.ErrUnavailable, "The machine %q cannot be kept: %v. Without that, no other process "+
			"could use it.", m.name, err)
	}
	return nil
}

// read returns machine.json.
func (m *machine) read() (kept, error) {
	var k kept
	text, err := os.ReadFile(filepath.Join(m.folder, machineFile))
	if err == nil {
		err = json.Unmarshal(text, &k)
	}
	return k, err
}

// spec is how to start the machine again.
func (m *machine) spec() (provider.Spec, error) {
	k, err := m.read()
	if err != nil {
		return provider.Spec{}, provider.Errorf(provider.ErrNotFound, "The machine %q was stopped, or was started on "+
			"another host: %v.", m.name, err)
	}
	return k.Spec, nil
}

// credentials are the client's.
func (m *machine) credentials() (*transport.Credentials, error) {
	text, err := os.ReadFile(filepath.Join(m.folder, clientFile))
	var out *transport.Credentials
	if err == nil {
		out, err = transport.ParseCredentials(text)
	}
	if err != nil {
		return nil, provider.Errorf(provider.ErrAuth, "The credentials of the machine %q cannot be read: %v. They are on "+
			"the host that has started it, in ~/.local/state/mycelya/modal.", m.name, err)
	}
	return out, nil
}

// remove ends what is kept of the machine, if it is still that of a sandbox.
func (m *machine) remove(sandbox string) {
	if k, err := m.read(); err != nil || k.Sandbox != sandbox {
		return
	}
	for _, file := range []string{machineFile, clientFile} {
		_ = os.Remove(filepath.Join(m.folder, file))
	}
	_ = os.Remove(m.folder)
}

// writeFile writes a file that only this user can read, at once and as a whole.
func writeFile(path string, text []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".new-") // mode 0600
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
