// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// failing is one way in which a start fails.
type failing struct {
	name  string
	make  func(t *testing.T, h *host) map[string]string // prepares, and returns the options
	kind  error
	wants []string
}

// waysOfSSH are the failures of ssh itself.
var waysOfSSH = []failing{
	{"an unknown host key", func(t *testing.T, h *host) map[string]string {
		h.write(t, "known", "")
		return h.options()
	}, provider.ErrAuth, []string{"ssh does not know the key of loop yet", `"ssh loop true"`}},
	{"another host key", func(t *testing.T, h *host) map[string]string {
		h.knows(t, "other")
		return h.options()
	}, provider.ErrAuth, []string{"has another key than the one in your known_hosts", "ssh-keygen -R"}},
	{"a stranger", func(t *testing.T, h *host) map[string]string {
		h.configure(t, "stranger")
		return h.options()
	}, provider.ErrAuth, []string{"does not let you in", "ssh-add", "Permission denied"}},
	{"no key", func(t *testing.T, h *host) map[string]string {
		h.configure(t, "nothing")
		return h.options()
	}, provider.ErrAuth, []string{"does not let you in", "ssh-add", "Permission denied"}},
	{"another user", func(t *testing.T, h *host) map[string]string {
		return h.options("host", "nobody-such@loop")
	}, provider.ErrAuth, []string{"The host nobody-such@loop does not let you in", "user@name"}},
	{"no such name", func(t *testing.T, h *host) map[string]string {
		h.configure(t, "id", "Host loop", "HostName no-such-host.invalid")
		return h.options()
	}, provider.ErrNotFound, []string{"The name of the host loop cannot be resolved"}},
	{"no server", func(t *testing.T, h *host) map[string]string {
		return h.options("ssh", h.ssh("-p", "1"))
	}, provider.ErrUnavailable, []string{"The host loop refuses the connection"}},
	{"a server that says nothing", func(t *testing.T, h *host) map[string]string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		t.Cleanup(func() { _ = l.Close() })
		port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
		return h.options("ssh", h.ssh("-p", port, "-o", "ConnectTimeout=1"))
	}, provider.ErrTimeout, []string{"The host loop does not answer"}},
	{"a server that hangs up", func(t *testing.T, h *host) map[string]string {
		h.configure(t, "id", "Host loop", "ProxyCommand false")
		return h.options()
	}, provider.ErrUnavailable, []string{"The connection to loop has ended", `"ssh loop true"`}},
	{"no ssh", func(t *testing.T, h *host) map[string]string {
		return h.options("ssh", "/no/such/ssh")
	}, provider.ErrNotFound, []string{`"/no/such/ssh" is not installed here`, "openssh-client"}},
	{"options that ssh does not know", func(t *testing.T, h *host) map[string]string {
		return h.options("ssh", h.ssh("-o", "Nonsense=yes"))
	}, provider.ErrInvalidSpec, []string{"ssh does not understand its options"}},
}

// waysOfHosts are the failures of the host. A sitecustomize module, which Python imports first, stands for a host that
// differs from this one.
var waysOfHosts = []failing{
	{"no python", func(t *testing.T, h *host) map[string]string {
		return h.options("python", "/no/such/python")
	}, provider.ErrNotFound, []string{`no program "/no/such/python" on loop`, "python="}},
	{"no program", func(t *testing.T, h *host) map[string]string {
		return h.options("python", h.write(t, "plain", "x"))
	}, provider.ErrNotFound, []string{"cannot be run", "python="}},
	{"another program", func(t *testing.T, h *host) map[string]string {
		return h.options("python", "true")
	}, provider.ErrUnavailable, []string{"has ended with code 0 before it has answered"}},
	{"an old python", func(t *testing.T, h *host) map[string]string {
		return h.options("python", h.python(t, "import sys", "sys.stdin = None"))
	}, provider.ErrUnavailable, []string{"needs Python 3.9 or newer"}},
	{"another processor", func(t *testing.T, h *host) map[string]string {
		return h.options("python", h.python(t, "import platform", "platform.machine = lambda: 'riscv64'"))
	}, provider.ErrInvalidSpec, []string{"The host loop is Linux on riscv64", machineName()}},
	{"a full disk", func(t *testing.T, h *host) map[string]string {
		return h.options("python", h.python(t, "import tempfile", "def mkstemp(**_):", "    raise OSError(28, 'no', '/x')",
			"tempfile.mkstemp = mkstemp"))
	}, provider.ErrUnavailable, []string{"There is no room on loop (/x: No space left on device)", "folder="}},
	{"a small disk", func(t *testing.T, h *host) map[string]string {
		folder := filepath.Join(h.dir, "small")
		require.NoError(t, os.Mkdir(folder, 0o700))
		if err := exec.Command("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder).Run(); err != nil {
			t.Skipf("this user cannot mount a disk of 1 MiB: %v", err)
		}
		t.Cleanup(func() { require.NoError(t, exec.Command("umount", folder).Run()) })
		return h.options("folder", folder)
	}, provider.ErrUnavailable, []string{"There is no room on loop (/", "No space left on device)", "folder="}},
	{"a damaged worker", func(t *testing.T, h *host) map[string]string {
		return h.options("python", h.python(t, "import sys, types", "class Damaging:", "    real = sys.stdin.buffer",
			"    def __getattr__(self, name): return getattr(self.real, name)", "    def read(self, n=-1):",
			"        b = self.real.read(n)", "        return b if len(b) < 1 << 20 else bytes([b[0] ^ 1]) + b[1:]",
			"sys.stdin = types.SimpleNamespace(buffer=Damaging())"))
	}, provider.ErrUnavailable, []string{"has come to loop with other bytes. Try again."}},
	{"no programs there", func(t *testing.T, h *host) map[string]string {
		return h.options("python", h.python(t, "import os, types", "real = os.statvfs",
			"os.statvfs = lambda p: types.SimpleNamespace(f_flag=os.ST_NOEXEC)"))
	}, provider.ErrInvalidSpec, []string{"noexec", "folder="}},
	{"no folder", func(t *testing.T, h *host) map[string]string {
		return h.options("folder", h.write(t, "file", "x")+"/below")
	}, provider.ErrInvalidSpec, []string{"A folder on loop cannot be used", "Not a directory"}},
}

// python writes a program that is Python after these lines.
func (h *host) python(t *testing.T, lines ...string) string {
	t.Helper()
	folder := filepath.Join(h.dir, "site")
	require.NoError(t, os.MkdirAll(folder, 0o700))
	text := ""
	for _, line := range lines {
		text += line + "\n"
	}
	h.write(t, "site/sitecustomize.py", text)
	return h.program(t, "python", `PYTHONPATH="`+folder+`" exec python3 "$@"`)
}

func TestFailuresOfSSH(t *testing.T) { fail(t, ref(), waysOfSSH) }

func TestFailuresOfHosts(t *testing.T) { fail(t, ref(), waysOfHosts) }

// TestFailuresOfTorch: the package has libraries for some versions of torch, so the host must have one of these.
func TestFailuresOfTorch(t *testing.T) {
	ours := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(ours, "lib"), 0o700))
	version := filepath.Join(ours, "version.py")
	require.NoError(t, os.WriteFile(version, []byte("__version__ = '2.15.0+cpu'\n"), 0o600))
	p := Provider{Paths: libraries(t, "2.9", "2.15")}
	p.Paths.TorchLib = filepath.Join(ours, "lib")
	fail(t, p, []failing{
		{"no torch", func(t *testing.T, h *host) map[string]string {
			return h.options("python", h.program(t, "bare", `exec python3 -S "$@"`))
		}, provider.ErrNotFound, []string{"has no torch", "python="}},
		{"another torch", func(t *testing.T, h *host) map[string]string {
			folder := filepath.Join(h.dir, "packages", "torch")
			require.NoError(t, os.MkdirAll(folder, 0o700))
			h.write(t, "packages/torch/__init__.py", "raise AssertionError('imported')\n")
			h.write(t, "packages/torch/version.py", "__version__ = '1.13.1+cu117'\n")
			python := h.program(t, "old", `PYTHONPATH="`+filepath.Dir(folder)+`" exec python3 "$@"`)
			return h.options("python", python)
		}, provider.ErrVersion, []string{"has torch 1.13.1+cu117", "for torch 2.9, 2.15.", "pip install torch==2.15.0."}},
	})
	require.NoError(t, os.WriteFile(version, []byte("nothing\n"), 0o600))
	_, err := p.Start(deadline(t), spec(map[string]string{"host": "x"}))
	require.ErrorContains(t, err, "has no version of PyTorch")
	p.Paths.Worker = "/no/such/worker"
	_, err = p.Start(deadline(t), spec(map[string]string{"host": "x"}))
	require.ErrorIs(t, err, provider.ErrNotFound)
}

// libraries are paths of a package with libraries for these versions of torch. Nothing can load the libraries.
func libraries(t *testing.T, versions ...string) provider.Paths {
	t.Helper()
	lib := t.TempDir()
	p := provider.Paths{Worker: workerPath}
	for _, v := range versions {
		p.Exec = filepath.Join(lib, "torch"+v, "libmycelya_exec.so")
		require.NoError(t, os.Mkdir(filepath.Dir(p.Exec), 0o700))
		require.NoError(t, os.WriteFile(p.Exec, []byte("for torch "+v), 0o600))
	}
	return p
}

// TestLibrariesOfAHost: a host gets the worker, and the libraries for its torch: the newest that are not newer.
func TestLibrariesOfAHost(t *testing.T) {
	ours := t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(ours, "lib"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(ours, "version.py"), []byte("__version__ = '2.15.0'\n"), 0o600))
	p := Provider{Paths: libraries(t, "2.9", "2.11", "2.15")}
	p.Paths.TorchLib = filepath.Join(ours, "lib")
	for version, want := range map[string]string{"2.9.1": "2.9", "2.10.0+cpu": "2.9", "2.11.0": "2.11", "2.14.1": "2.11",
		"2.15.0+cu132": "2.15", "2.16.0.dev20260101": "2.15"} {
		t.Run(version, func(t *testing.T) {
			h := newHost(t)
			require.NoError(t, os.MkdirAll(filepath.Join(h.dir, "packages", "torch"), 0o700))
			h.write(t, "packages/torch/__init__.py", "raise AssertionError('imported')\n")
			h.write(t, "packages/torch/version.py", "__version__ = '"+version+"'\n")
			python := h.program(t, "python", `PYTHONPATH="`+filepath.Join(h.dir, "packages")+`" exec python3 "$@"`)
			folder := filepath.Join(h.dir, "cache")
			in, err := p.Start(deadline(t), spec(h.options("python", python, "folder", folder)))
			require.NoError(t, err) // a worker loads its libraries when a client comes
			require.NoError(t, in.Stop(deadline(t), 0))
			sent, err := filepath.Glob(filepath.Join(folder, "bin", "*", "libmycelya_exec.so"))
			require.NoError(t, err)
			require.Len(t, sent, 1)
			text, err := os.ReadFile(sent[0])
			require.NoError(t, err)
			require.Equal(t, "for torch "+want, string(text))
		})
	}
}

// TestAShellThatPrintsTooMuch: the error says what to change on the host.
func TestAShellThatPrintsTooMuch(t *testing.T) {
	h := newHost(t, `ForceCommand seq 20000; exec sh -c "$SSH_ORIGINAL_COMMAND"`)
	in := started(t, spec(h.options()))
	_, err := provider.Connect(deadline(t), in, transport.NewSessionName())
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	require.ErrorContains(t, err, "loop prints more than 64 KiB before each command")
	require.ErrorContains(t, err, "~/.bashrc")
	require.NoError(t, in.Stop(deadline(t), 0))
	require.Empty(t, h.left())
}

// TestTorchOfAnEnvironment: if the host's python3 has no torch, that of an environment is used, and a note says so.
func TestTorchOfAnEnvironment(t *testing.T) {
	ours, bin := t.TempDir(), t.TempDir()
	require.NoError(t, os.MkdirAll(filepath.Join(ours, "lib"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(ours, "version.py"), []byte("__version__ = '2.15.0'\n"), 0o600))
	p := Provider{Paths: libraries(t, "2.15")}
	p.Paths.TorchLib = filepath.Join(ours, "lib")
	h := newHost(t, fmt.Sprintf(`ForceCommand PATH="%s:$PATH" sh -c "$SSH_ORIGINAL_COMMAND"`, bin))
	bare := fmt.Sprintf("#!/bin/sh\nexec %q -S \"$@\"\n", interpreter(t))
	require.NoError(t, os.WriteFile(filepath.Join(bin, "python3"), []byte(bare), 0o700))
	for place, version := range map[string]string{".venv": "1.13.1", "miniforge3/envs/one": "2.15.1+cu132"} {
		folder := filepath.Join("home", place, "lib", "python3.12", "site-packages", "torch")
		require.NoError(t, os.MkdirAll(filepath.Join(h.dir, folder), 0o700))
		h.write(t, filepath.Join(folder, "version.py"), "__version__ = '"+version+"'\n")
	}
	in, err := p.Start(deadline(t), spec(h.options()))
	require.NoError(t, err)
	require.Equal(t, "The interpreter python3 on loop has no torch, so the worker uses torch 2.15.1+cu132 in "+
		filepath.Join(h.dir, "home", "miniforge3/envs/one")+". Another one can be named: RemoteMachine(\"ssh\", "+
		"python=\"/path/to/python\").", in.(provider.Noter).Note())
	require.NoError(t, in.Stop(deadline(t), 0))
	require.Empty(t, h.left())
	_, err = p.Start(deadline(t), spec(h.options("python", filepath.Join(bin, "python3"))))
	require.ErrorContains(t, err, "has no torch", "a named interpreter is the user's choice")
}

func fail(t *testing.T, p Provider, ways []failing) {
	for _, w := range ways {
		t.Run(w.name, func(t *testing.T) {
			h := newHost(t)
			s := spec(w.make(t, h))
			_, err := p.Start(deadline(t), s)
			require.ErrorIs(t, err, w.kind)
			for _, text := range w.wants {
				require.ErrorContains(t, err, text)
			}
			if w.name != "a full disk" && w.name != "a damaged worker" { // a check copies nothing
				ours := func(err error) string { // what ssh says depends on when the other end hangs up
					text, _, _ := strings.Cut(err.Error(), "\nssh said:")
					return text
				}
				again := p.Check(deadline(t), s)
				require.ErrorIs(t, again, w.kind)
				require.Equal(t, ours(err), ours(again), "a check has the error of a start")
			}
			require.Empty(t, h.left())
		})
	}
}
