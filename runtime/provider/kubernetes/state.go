// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// state is the user's folder, in which only this user can read:
//
//	<state folder of the user>/mycelya/kubernetes/
//	    user         a random name, by which the user's pods are found: who has the folder is the user
//	    <pod>.lock   held by each process that uses the pod
//	    <pod>.json   of a machine that outlives its process: what it was started with, and the client's credentials
type state struct{ folder, user string }

const (
	userFile   = "user"
	lockSuffix = ".lock"
	fileSuffix = ".json"
)

// record is what is kept of a machine that outlives its process.
type record struct {
	Host, Namespace string
	UID             string        // of the pod
	Spec            provider.Spec // with which another worker replaces a lost one
	Credentials     string        // the client's
	Until           time.Time     // when its lease ends at the latest
}

// openState opens the folder, and makes it if there is none.
func openState() (*state, error) {
	base := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(base) {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, badState(err)
		}
		base = filepath.Join(home, ".local", "state")
	}
	s := &state{folder: filepath.Join(base, "mycelya", "kubernetes")}
	if err := os.MkdirAll(s.folder, 0o700); err != nil {
		return nil, badState(err)
	}
	var err error
	if s.user, err = s.name(); err != nil {
		return nil, badState(err)
	}
	return s, nil
}

func badState(err error) error {
	return provider.Errorf(provider.ErrUnavailable, "The folder for machines cannot be used: %v. Set XDG_STATE_HOME to a "+
		"folder that can be written.", err)
}

// name is the user's random name. The first process makes it.
func (s *state) name() (string, error) {
	path := filepath.Join(s.folder, userFile)
	text, err := os.ReadFile(path)
	if !errors.Is(err, fs.ErrNotExist) {
		return strings.TrimSpace(string(text)), err
	}
	own := path + "." + rand.Text()
	if err := os.WriteFile(own, []byte(strings.ToLower(rand.Text())+"\n"), 0o600); err != nil {
		return "", err
	}
	defer os.Remove(own)
	if err := os.Link(own, path); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	text, err = os.ReadFile(path)
	return strings.TrimSpace(string(text)), err
}

func (s *state) path(pod, suffix string) string { return filepath.Join(s.folder, pod+suffix) }

// use says, until the file is closed or this process ends, that this process uses a pod.
func (s *state) use(pod string) (*os.File, error) {
	for {
		f, err := os.OpenFile(s.path(pod, lockSuffix), os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, badState(err)
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_SH); err != nil {
			_ = f.Close()
			return nil, badState(err)
		}
		if s.is(f) {
			return f, nil
		}
		_ = f.Close() // removed meanwhile
	}
}

// is says whether a lock file is still the one with its name.
func (s *state) is(f *os.File) bool {
	mine, err1 := f.Stat()
	now, err2 := os.Stat(f.Name())
	return err1 == nil && err2 == nil && os.SameFile(mine, now)
}

// used says whether a process uses a pod. remove removes the lock file of a pod that none uses.
func (s *state) used(pod string, remove bool) bool {
	f, err := os.OpenFile(s.path(pod, lockSuffix), os.O_RDWR, 0)
	if err != nil {
		return false
	}
	defer f.Close()
	if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) != nil {
		return true
	}
	if remove && s.is(f) {
		_ = os.Remove(f.Name())
	}
	return false
}

// write keeps a machine.
func (s *state) write(pod string, r *record) error {
	text, err := json.Marshal(r)
	if err != nil {
		return badState(err)
	}
	path := s.path(pod, fileSuffix)
	part := path + "." + rand.Text()
	if err = os.WriteFile(part, text, 0o600); err == nil {
		err = os.Rename(part, path)
	}
	if err != nil {
		_ = os.Remove(part)
		return badState(err)
	}
	return nil
}

// read returns what is kept of a machine; nil: nothing is.
func (s *state) read(pod string) (*record, error) {
	text, err := os.ReadFile(s.path(pod, fileSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := new(record)
	if err == nil {
		err = json.Unmarshal(text, r)
	}
	if err != nil {
		return nil, badState(err)
	}
	return r, nil
}

// credentials are those of a machine's client.
func (r *record) credentials() (*transport.Credentials, error) {
	return transport.ParseCredentials([]byte(r.Credentials))
}

// forget removes what is kept of a machine whose pod with this UID has ended. Another pod may have its name by now.
func (s *state) forget(pod, uid string) {
	if r, err := s.read(pod); err == nil && r != nil && r.UID == uid {
		_ = os.Remove(s.path(pod, fileSuffix))
	}
	s.used(pod, true)
}

// tidy removes files of pods that do not exist any more: those of this namespace, and those whose lease has passed.
func (s *state) tidy(host, namespace string, exists map[string]bool) {
	entries, err := os.ReadDir(s.folder)
	if err != nil {
		return
	}
	for _, e := range entries {
		pod, isFile := strings.CutSuffix(e.Name(), fileSuffix)
		if of, _, isPart := strings.Cut(e.Name(), fileSuffix+"."); isPart && !s.used(of, false) {
			_ = os.Remove(filepath.Join(s.folder, e.Name())) // of a process that was killed
		}
		if !isFile || exists[pod] {
			continue
		}
		r, err := s.read(pod)
		if err != nil || r == nil {
			continue
		}
		here := r.Host == host && r.Namespace == namespace
		if (here || time.Now().After(r.Until)) && !s.used(pod, false) {
			s.forget(pod, r.UID)
		}
	}
	for _, e := range entries {
		if pod, isLock := strings.CutSuffix(e.Name(), lockSuffix); isLock && !exists[pod] {
			s.used(pod, true)
		}
	}
}
