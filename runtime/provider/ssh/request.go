// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	goruntime "runtime"
	"strconv"
	"strings"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// request is what the agent is asked to do. agent.py explains the fields by their use.
type request struct {
	Do          string   `json:"do"`
	ID          string   `json:"id"` // the machine's folder
	Folder      string   `json:"folder"`
	State       string   `json:"state"`
	Weights     string   `json:"weights"`
	Kept        string   `json:"kept"`  // a name for what the workers of a session keep
	Packs       []pack   `json:"packs"` // the host takes one
	Backend     string   `json:"backend"`
	Torch       string   `json:"torch"`  // this environment's version
	Search      bool     `json:"search"` // the host's torch may be in another environment than the interpreter's
	System      string   `json:"system"`
	Machine     string   `json:"machine"`
	Environment []string `json:"environment"`
	Arguments   []string `json:"arguments"`
	Worker      string   `json:"worker"` // the worker's credentials
	Client      string   `json:"client"` // those of its clients, if it outlives this process
	Detached    bool     `json:"detached"`
	Facts       facts    `json:"machine_facts"`
}

// facts are what the host knows of a machine.
type facts struct {
	Session  string  `json:"session"`
	Build    string  `json:"build"`
	Detached bool    `json:"detached"`
	Idle     float64 `json:"idle"`  // seconds
	Lease    float64 `json:"lease"` // seconds; 0: none
	Kept     string  `json:"kept"`
	PID      int     `json:"pid,omitempty"`
	Socket   string  `json:"socket,omitempty"`
	Program  string  `json:"program,omitempty"`
	Began    float64 `json:"began,omitempty"` // seconds since 1970, by the host's clock
}

func (f facts) idle() time.Duration  { return time.Duration(f.Idle * float64(time.Second)) }
func (f facts) lease() time.Duration { return time.Duration(f.Lease * float64(time.Second)) }

// answer is one line of the agent. An answer has one of the groups of fields.
type answer struct {
	facts
	Line   string `json:"line"`   // of the worker that has started
	Torch  string `json:"torch"`  // the version that the worker uses
	Found  string `json:"found"`  // the environment where it was found; "": the interpreter's own
	Client string `json:"client"` // credentials

	Need []string `json:"need"` // hashes of files

	Exit *exited `json:"exit"`
	Left bool    `json:"left"` // the worker's sessions have kept something

	Machines []machine `json:"machines"`

	Log string `json:"log"`

	Error   string   `json:"error"` // see refusal
	Path    string   `json:"path"`
	Text    string   `json:"text"`
	Python  string   `json:"python"`
	Version string   `json:"version"`
	System  string   `json:"system"`
	Machine string   `json:"machine"`
	Names   []string `json:"names"`
}

// exited is how a worker has ended.
type exited struct {
	Code   int    `json:"code"`
	Signal int    `json:"signal"`
	Log    string `json:"log"`
}

// machine is a machine of a host.
type machine struct {
	facts
	ID   string `json:"id"`
	Used bool   `json:"used"`
}

// file is a part of this package that the host needs: its name there, its size, and its SHA-256.
type file struct {
	name string
	size int64
	hash string
	path string
}

// pack is what a host with a certain torch needs. The first file is the worker program, the second its executor.
type pack struct {
	Torch string `json:"torch"` // the minor version for which the libraries are made, as "2.15"; "": for none
	Files []file `json:"files"`
	Hash  string `json:"hash"` // of all files
}

// MarshalJSON implements json.Marshaler.
func (f file) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, "[%q,%d,%q]", f.name, f.size, f.hash), nil
}

// escape makes a name of a file.
func escape(name string) string { return url.PathEscape(name) }

// startRequest is the request for a worker, without credentials.
func (p Provider) startRequest(o options, s provider.Spec) (*request, error) {
	r := &request{Do: "start", ID: "once-" + strings.ToLower(rand.Text()), Folder: o.folder, State: o.state,
		Weights: o.weights, Backend: p.backend(), System: systemName(), Machine: machineName(), Environment: process.Passed(),
		Detached: s.Detached, Search: o.python == defaultPython,
		Facts: facts{Session: s.Session, Build: transport.Build, Detached: s.Detached, Idle: s.Idle.Seconds(),
			Lease: s.Lease.Seconds()},
	}
	r.Arguments = []string{"--backend", r.Backend, "--threads", strconv.Itoa(s.Threads), "--alone", s.Idle.String(),
		"--lease", s.Lease.String()}
	if s.Idle > 0 { // a client that does not come back has gone
		r.Arguments = append(r.Arguments, "--grace", min(s.Idle, link.Default.Grace).String())
	}
	if s.Device != "" {
		r.Arguments = append(r.Arguments, "--device", s.Device)
	}
	if s.Detached {
		r.ID = machineID(s.Session)
		r.Arguments = append(r.Arguments, "--single")
	} else if s.Kept != "" && o.state == "" {
		r.Kept = escape(filepath.Base(s.Kept))
		r.Facts.Kept = r.Kept
	}
	var err error
	if r.Packs, err = p.packs(); err == nil && r.Backend == "torch" {
		r.Torch, err = torchVersion(p.Paths.TorchLib)
	}
	return r, err
}

// packs are the parts of the package that a host may need: the worker program, with the libraries of each minor version
// of torch that the package serves.
func (p Provider) packs() ([]pack, error) {
	worker, err := fileOf("worker program", p.Paths.Worker)
	if err != nil {
		return nil, err
	}
	if p.backend() == "ref" {
		return []pack{newPack("", worker)}, nil
	}
	if _, err := os.Stat(p.Paths.Exec); err != nil {
		return nil, process.Missing("executor library", p.Paths.Exec, err)
	}
	ours, name := filepath.Split(p.Paths.Exec)
	folders, err := filepath.Glob(filepath.Join(filepath.Dir(filepath.Clean(ours)), torchFolder+"*"))
	if err != nil {
		return nil, process.Missing("executor library", p.Paths.Exec, err)
	}
	var out []pack
	for _, folder := range folders {
		executor, err := fileOf("executor library", filepath.Join(folder, name))
		if err != nil {
			return nil, err
		}
		files := []file{worker, executor}
		cuda, err := fileOf("executor library for CUDA", strings.TrimSuffix(executor.path, ".so")+"_cuda.so")
		if err == nil { // only a package for a CUDA torch has it
			files = append(files, cuda)
		}
		out = append(out, newPack(strings.TrimPrefix(filepath.Base(folder), torchFolder), files...))
	}
	return out, nil
}

// torchFolder begins the names of the folders of libraries (mycelya_torch/_libraries.py).
const torchFolder = "torch"

func newPack(torch string, files ...file) pack {
	h := sha256.New()
	for _, f := range files {
		fmt.Fprintln(h, f.name, f.hash)
	}
	return pack{torch, files, hex.EncodeToString(h.Sum(nil))[:32]}
}

func fileOf(what, path string) (file, error) {
	f, err := os.Open(path)
	if err != nil {
		return file{}, process.Missing(what, path, err)
	}
	defer f.Close()
	h := sha256.New()
	size, err := io.Copy(h, f)
	if err != nil {
		return file{}, process.Missing(what, path, err)
	}
	return file{filepath.Base(path), size, hex.EncodeToString(h.Sum(nil)), path}, nil
}

// torchVersion reads the version of this environment's torch beside its folder of libraries.
func torchVersion(lib string) (string, error) {
	path := filepath.Join(filepath.Dir(lib), "version.py")
	text, err := os.ReadFile(path)
	if err != nil {
		return "", provider.Errorf(provider.ErrNotFound,
			"PyTorch's version %q cannot be read: %v. Is torch installed in this environment?", path, process.Reason(err))
	}
	found := regexp.MustCompile(`__version__ = ['"]([^'"]+)['"]`).FindSubmatch(text)
	if found == nil {
		return "", provider.Errorf(provider.ErrNotFound, "%q has no version of PyTorch. Reinstall torch.", path)
	}
	return string(found[1]), nil
}

// systemName and machineName are what uname says on hosts that can run this package's worker.
func systemName() string {
	if goruntime.GOOS == "darwin" {
		return "Darwin"
	}
	return "Linux"
}

func machineName() string {
	switch {
	case goruntime.GOARCH == "amd64":
		return "x86_64"
	case goruntime.GOARCH == "arm64" && goruntime.GOOS == "linux":
		return "aarch64"
	}
	return goruntime.GOARCH
}

// lifetime is how long the credentials of a worker are valid.
func lifetime(lease time.Duration) time.Duration {
	if lease > 0 {
		return lease
	}
	return 365 * 24 * time.Hour
}

// credentials makes those of the worker and of its clients.
func (r *request) credentials(s provider.Spec) (*transport.Credentials, error) {
	client, worker, err := transport.Mint(lifetime(s.Lease))
	var texts [2][]byte
	for i, c := range []*transport.Credentials{worker, client} {
		if err == nil {
			texts[i], err = c.Encode()
		}
	}
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The credentials of the worker cannot be made: %v.", err)
	}
	r.Worker = string(texts[0])
	if s.Detached {
		r.Client = string(texts[1])
	}
	return client, nil
}

// send sends the contents of the files with these hashes.
func (r *request) send(to io.Writer, hashes []string) error {
	files := map[string]file{}
	for _, p := range r.Packs {
		for _, f := range p.Files {
			files[f.hash] = f
		}
	}
	for _, hash := range hashes {
		f, ok := files[hash]
		if !ok {
			return fmt.Errorf("the host asks for a file with the hash %q", hash)
		}
		in, err := os.Open(f.path)
		if err != nil {
			return err
		}
		n, err := io.Copy(to, io.LimitReader(in, f.size))
		_ = in.Close()
		if err == nil && n != f.size {
			err = errors.New("a part of the package has changed while it was sent")
		}
		if err != nil {
			return err
		}
	}
	return nil
}
