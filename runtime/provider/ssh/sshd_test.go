// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"fmt"
	"io"
	"net"
	"os"
	osexec "os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"
)

const patience = 60 * time.Second

// host is a real ssh server on the loopback interface, for this user only. What the provider keeps there lies in dir.
type host struct {
	dir    string // short, since sockets lie in it
	port   int
	config string // of the client
}

// newHost starts a server. more are lines of its configuration.
func newHost(t *testing.T, more ...string) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "mssh")
	require.NoError(t, err)
	h := &host{dir: dir, config: filepath.Join(dir, "config")}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for _, name := range []string{"home", "state", "cache", "tmp", "mine", "ours"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	t.Setenv("XDG_STATE_HOME", filepath.Join(dir, "ours")) // the client's
	t.Setenv("TMPDIR", filepath.Join(dir, "mine"))
	for _, key := range []string{"host", "other", "id", "stranger"} {
		h.run(t, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key))
	}
	public, err := os.ReadFile(filepath.Join(dir, "id.pub"))
	require.NoError(t, err)
	h.write(t, "authorized", string(public))
	// A home of its own: no file of this user's shell is read.
	environment := fmt.Sprintf("SetEnv HOME=%[1]s/home XDG_STATE_HOME=%[1]s/state XDG_CACHE_HOME=%[1]s/cache "+
		"TMPDIR=%[1]s/tmp PATH=%[2]s:/usr/bin:/bin", dir, filepath.Dir(interpreter(t)))
	lines := append([]string{
		"ListenAddress 127.0.0.1", "HostKey " + filepath.Join(dir, "host"), "PidFile none",
		"AuthorizedKeysFile " + filepath.Join(dir, "authorized"), "StrictModes no", "UsePAM no",
		"PasswordAuthentication no", "KbdInteractiveAuthentication no", "PermitRootLogin prohibit-password",
		"MaxStartups 100", environment,
	}, more...)
	h.write(t, "sshd_config", strings.Join(lines, "\n")+"\n")
	h.listen(t)
	h.knows(t, "host")
	h.configure(t, "id")
	return h
}

// interpreter is the path of python3, which may be behind a script.
func interpreter(t *testing.T) string {
	t.Helper()
	out, err := osexec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	require.NoError(t, err, "these tests need python3")
	return strings.TrimSpace(string(out))
}

func (h *host) run(t *testing.T, argv ...string) {
	t.Helper()
	out, err := osexec.Command(argv[0], argv[1:]...).CombinedOutput()
	require.NoError(t, err, "%v: %s", argv, out)
}

func (h *host) write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(h.dir, name)
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path)) // ssh may read it now
	return path
}

// program writes a shell script.
func (h *host) program(t *testing.T, name, text string) string {
	t.Helper()
	path := h.write(t, name, "#!/bin/sh\n"+text+"\n")
	require.NoError(t, os.Chmod(path, 0o700))
	return path
}

// listen starts sshd on a free port. Another process may take the port in between, so it tries more than once.
func (h *host) listen(t *testing.T) {
	t.Helper()
	sshd, err := osexec.LookPath("sshd")
	if err != nil {
		sshd = "/usr/sbin/sshd"
	}
	if _, err := os.Stat(sshd); err != nil {
		t.Fatalf("These tests need sshd: apt-get install openssh-server (%v).", err)
	}
	if os.Getuid() == 0 { // sshd wants this folder of root's, which the system's service makes
		require.NoError(t, os.MkdirAll("/run/sshd", 0o755))
	}
	var log strings.Builder
	for range 5 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		h.port = l.Addr().(*net.TCPAddr).Port
		require.NoError(t, l.Close())
		log.Reset()
		cmd := osexec.Command(sshd, "-D", "-e", "-f", filepath.Join(h.dir, "sshd_config"), "-p", strconv.Itoa(h.port))
		cmd.Stderr = &log
		require.NoError(t, cmd.Start())
		ended := make(chan struct{})
		go func() { _ = cmd.Wait(); close(ended) }()
		t.Cleanup(func() { _ = cmd.Process.Kill(); <-ended })
		if h.answers(ended) {
			return
		}
	}
	t.Fatalf("sshd does not start: %s", log.String())
}

// answers waits until the server listens, or has ended.
func (h *host) answers(ended <-chan struct{}) bool {
	for until := time.Now().Add(patience); time.Now().Before(until); time.Sleep(10 * time.Millisecond) {
		select {
		case <-ended:
			return false
		default:
		}
		c, err := net.Dial("tcp", h.address())
		if err != nil {
			continue
		}
		greeting := make([]byte, 4)
		_ = c.SetReadDeadline(time.Now().Add(patience))
		_, err = io.ReadFull(c, greeting)
		_ = c.Close()
		if err == nil && string(greeting) == "SSH-" { // another program may have the port
			return true
		}
	}
	return false
}

func (h *host) address() string { return fmt.Sprintf("127.0.0.1:%d", h.port) }

// knows makes the client know the server by the public key with this name.
func (h *host) knows(t *testing.T, key string) {
	t.Helper()
	public, err := os.ReadFile(filepath.Join(h.dir, key+".pub"))
	require.NoError(t, err)
	h.write(t, "known", fmt.Sprintf("[127.0.0.1]:%d %s", h.port, public))
}

// configure writes the client's configuration. more are lines that come first, and so count.
func (h *host) configure(t *testing.T, identity string, more ...string) {
	t.Helper()
	me, err := user.Current()
	require.NoError(t, err)
	lines := append(more, "Host loop far", "HostName 127.0.0.1", fmt.Sprintf("Port %d", h.port), "User "+me.Username,
		"IdentityFile "+filepath.Join(h.dir, identity), "IdentitiesOnly yes", "IdentityAgent none",
		"UserKnownHostsFile "+filepath.Join(h.dir, "known"), "GlobalKnownHostsFile none", "StrictHostKeyChecking yes")
	h.write(t, "config", strings.Join(lines, "\n")+"\n")
}

// ssh is the client's command.
func (h *host) ssh(more ...string) string {
	return shellquote.Join(append([]string{"ssh", "-F", h.config}, more...)...)
}

// options are those of a machine on the host.
func (h *host) options(more ...string) map[string]string {
	out := map[string]string{"host": "loop", "ssh": h.ssh()}
	for i := 0; i+1 < len(more); i += 2 {
		out[more[i]] = more[i+1]
	}
	return out
}

// processes lists those that the server has started and those that the client has: all have a folder of ours in their
// environment or in their arguments.
func (h *host) processes() (out []string) {
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		arguments, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		environment, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		line := strings.ReplaceAll(string(arguments), "\x00", " ")
		theirs := strings.Contains(string(environment), "XDG_CACHE_HOME="+h.dir)
		if theirs || strings.Contains(line, h.config) {
			out = append(out, fmt.Sprintf("%d %.200s", pid, line))
		}
	}
	return out
}

// left lists processes and files of workers that have ended.
func (h *host) left() []string { return h.leftIn("mine", "tmp", "state/mycelya/hosted/*") }

// leftIn is left for some folders. The system may take a moment for the last process.
func (h *host) leftIn(folders ...string) (out []string) {
	for until := time.Now().Add(2 * patience); ; time.Sleep(20 * time.Millisecond) {
		out = h.processes()
		for _, folder := range folders {
			found, _ := filepath.Glob(filepath.Join(h.dir, folder, "*"))
			out = append(out, found...)
		}
		if len(out) == 0 || time.Now().After(until) {
			return out
		}
	}
}

// kill ends a process, as a crash does.
func kill(id string) {
	pid, err := strconv.Atoi(id[strings.LastIndexByte(id, '/')+1:])
	if err == nil {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}
