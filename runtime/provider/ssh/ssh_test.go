// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
	"github.com/mycelya/mycelya/runtime/provider/providertest"
)

var workerPath string // the real worker, built by TestMain

func TestMain(m *testing.M) {
	if os.Getenv(clientEnv) != "" { // this program is also the client that some tests kill
		client()
		return
	}
	providertest.Main(m, &workerPath)
}

// ref is the provider of workers that need no PyTorch.
func ref() Provider { return Provider{Paths: provider.Paths{Worker: workerPath}, Backend: "ref"} }

func spec(options map[string]string) provider.Spec {
	return provider.Spec{Session: "test", Device: "cpu", Lease: time.Hour, Idle: time.Hour, Options: options}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// started starts a worker.
func started(t *testing.T, s provider.Spec) *instance {
	t.Helper()
	in, err := ref().Start(deadline(t), s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	return in.(*instance)
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name string
		more []string
	}{
		{"plain", nil},
		// What shells print before a command is no part of the stream.
		{"a shell that talks", []string{`ForceCommand echo welcome; echo hello >&2; exec sh -c "$SSH_ORIGINAL_COMMAND"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := newHost(t, c.more...)
			providertest.Suite{
				Options:  h.options(),
				Detaches: true,
				Make:     func(*testing.T) provider.Provider { return ref() },
				Kill:     func(h provider.Handle) { kill(h.ID) },
				Left:     func(*testing.T) []string { return h.left() },
			}.Run(t)
			require.Empty(t, h.processes()) // what machines have kept stays
		})
	}
}

// hello exchanges Hellos on a new link, which stays open.
func hello(t *testing.T, in provider.Instance) (net.Conn, *transport.Conn) {
	t.Helper()
	nc, err := provider.Open(deadline(t), in, transport.NewSessionName(), nil, func(link.Notice) {})
	require.NoError(t, err)
	c := transport.New(nc)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	ours := &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion}
	require.NoError(t, c.Send(transport.Hello, 1, ours, nil))
	_, err = c.Next()
	require.NoError(t, err)
	var theirs proto.Hello
	require.NoError(t, c.Meta(&theirs))
	require.Empty(t, theirs.Error)
	return nc, c
}

// names asks for the names of kept state, which the worker answers by a frame.
func names(t *testing.T, c *transport.Conn) {
	t.Helper()
	require.NoError(t, c.Send(transport.Names, 2, &proto.Names{}, nil))
	for {
		h, err := c.Next()
		require.NoError(t, err)
		if h.Type == transport.StateReply {
			return
		}
	}
}

// TestALostConnection: a session goes on when the ssh process of its stream is killed, and when that of all is.
func TestALostConnection(t *testing.T) {
	h := newHost(t)
	in := started(t, spec(h.options()))
	_, c := hello(t, in)
	in.mu.Lock()
	require.Len(t, in.streams, 1)
	for s := range in.streams {
		require.NoError(t, s.cmd.Process.Kill())
	}
	f := in.front
	in.mu.Unlock()
	names(t, c)
	require.NoError(t, f.cmd.Process.Kill())
	<-f.ended
	names(t, c)
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := in.Wait(short)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the worker runs")
	require.NoError(t, in.Stop(deadline(t), time.Second))
	e, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Equal(t, provider.Done, e.Reason)
	require.Empty(t, h.left())
}

// TestAStopWhileTheConnectionIsLost: the host is told as soon as it can be reached.
func TestAStopWhileTheConnectionIsLost(t *testing.T) {
	h := newHost(t)
	in := started(t, spec(h.options()))
	hello(t, in)                                            // from here on the host keeps the worker
	h.configure(t, "id", "Host loop", "ProxyCommand false") // no way to the host
	in.mu.Lock()
	f := in.front
	in.mu.Unlock()
	require.NoError(t, f.cmd.Process.Kill())
	<-f.ended
	stopped := make(chan error, 1)
	go func() { stopped <- in.Stop(context.Background(), time.Second) }()
	<-in.Asked()
	require.NotEmpty(t, h.processes(), "the worker runs")
	h.configure(t, "id")
	require.NoError(t, <-stopped)
	e, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Equal(t, provider.Done, e.Reason)
	require.Empty(t, h.left())
}

// TestTheEndIsLearntLater: a worker that ends while there is no connection.
func TestTheEndIsLearntLater(t *testing.T) {
	h := newHost(t)
	in := started(t, spec(h.options()))
	hello(t, in)                                            // from here on the host keeps the worker
	h.configure(t, "id", "Host loop", "ProxyCommand false") // no way to the host
	in.mu.Lock()
	f := in.front
	in.mu.Unlock()
	require.NoError(t, f.cmd.Process.Kill())
	<-f.ended
	kill(in.Handle().ID)
	h.configure(t, "id")
	e, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Equal(t, provider.Crashed, e.Reason, e.Detail)
	require.Equal(t, "killed", e.Signal)
	require.Empty(t, h.left())
}

// TestLogs: another client reads the log of a machine, whose end is that of the file from the start of a line on. The
// question shares the connection that there is.
func TestLogs(t *testing.T) {
	h := newHost(t)
	s := spec(h.options())
	s.Detached, s.Session = true, "logged"
	started(t, s)
	count := filepath.Join(h.dir, "count")
	wrapper := h.program(t, "counting", `echo x >>"`+count+`"; exec ssh -v -F "`+h.config+`" "$@" 2>>"`+count+`"`)
	in, err := ref().Attach(deadline(t), provider.Spec{Session: "logged", Options: h.options("ssh", wrapper)})
	require.NoError(t, err)
	folders, err := filepath.Glob(filepath.Join(h.dir, "state", "mycelya", "hosted", "*", "name-logged"))
	require.NoError(t, err)
	require.Len(t, folders, 1)
	text := strings.Repeat("0123456789\n", 20_000) + "the \xff end\n"
	require.NoError(t, os.WriteFile(filepath.Join(folders[0], "log"), []byte(text), 0o600))
	log, err := in.(provider.Logger).Logs(deadline(t))
	require.NoError(t, err)
	require.True(t, strings.HasPrefix(log, "0123456789\n") && strings.HasSuffix(log, "\nthe \ufffd end\n"))
	require.Greater(t, len(log), process.LogBytes-20)
	said, err := os.ReadFile(count)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(said), "x\n"), "one ssh process for the machine, one for its log")
	require.Equal(t, 1, strings.Count(string(said), "Authenticated to "), "one login")
	in.(*instance).Release()
	released, err := in.(provider.Logger).Logs(deadline(t))
	require.NoError(t, err, "it says why nothing is known")
	require.Contains(t, released, "released")
	_, err = options{host: "loop", command: []string{"ssh", "-F", h.config}, python: "python3"}.
		ask(deadline(t), &request{Do: "log", ID: "name-nobody"})
	require.ErrorIs(t, err, errGone)
}

// TestRoundTrips: a start is one login and one command, also if it copies the worker.
func TestRoundTrips(t *testing.T) {
	h := newHost(t)
	count := filepath.Join(h.dir, "count")
	wrapper := h.program(t, "counting", `echo x >>"`+count+`"; exec ssh -F "`+h.config+`" "$@"`)
	for range 2 {
		require.NoError(t, os.RemoveAll(count))
		in := started(t, spec(h.options("ssh", wrapper)))
		text, err := os.ReadFile(count)
		require.NoError(t, err)
		require.Equal(t, "x\n", string(text))
		require.NoError(t, in.Stop(deadline(t), time.Second))
	}
	found, err := filepath.Glob(filepath.Join(h.dir, "cache", "mycelya", "bin", "*", "*"))
	require.NoError(t, err)
	require.Len(t, found, 1, "the program is kept for the next start")
	// A damaged program is sent again.
	require.NoError(t, os.WriteFile(found[0], []byte("damaged"), 0o700))
	in := started(t, spec(h.options()))
	hello(t, in)
}

// TestNothingIsForOthers: modes of folders, and no secret in arguments and environments.
func TestNothingIsForOthers(t *testing.T) {
	h := newHost(t)
	s := spec(h.options())
	s.Detached, s.Session = true, "private"
	in := started(t, s)
	hello(t, in)
	for _, folder := range []string{in.dir, filepath.Join(h.dir, "state"), filepath.Join(h.dir, "cache"),
		filepath.Join(h.dir, "tmp"), filepath.Join(h.dir, "ours")} {
		require.NoError(t, filepath.Walk(folder, func(path string, info os.FileInfo, err error) error {
			if errors.Is(err, os.ErrNotExist) {
				return nil // a file that had been written for a moment
			}
			require.NoError(t, err)
			if info.Mode()&os.ModeSocket == 0 {
				require.Zero(t, info.Mode().Perm()&0o077, path)
			}
			return nil
		}))
	}
	running := h.processes()
	require.NotEmpty(t, running)
	for _, line := range running {
		pid, _, _ := strings.Cut(line, " ")
		for _, name := range []string{"cmdline", "environ"} {
			text, _ := os.ReadFile(filepath.Join("/proc", pid, name))
			require.NotContains(t, string(text), "PRIVATE KEY")
			require.NotContains(t, string(text), "CERTIFICATE")
		}
	}
	require.NoError(t, in.Stop(deadline(t), time.Second))
	in.Remove()
	require.Empty(t, h.left())
}

// TestRemoteCommandsSuitEveryShell: the login shell may be sh, csh or fish. Nothing in the commands means something to
// one of them, and no value is part of a command.
func TestRemoteCommandsSuitEveryShell(t *testing.T) {
	for _, c := range []string{agentCommand, relayCommand} {
		text, ok := strings.CutPrefix(c, "exec sh -c '")
		require.True(t, ok)
		text, ok = strings.CutSuffix(text, "'")
		require.True(t, ok)
		require.NotContains(t, text, "'")
		require.NotContains(t, text, `\`)
		require.NotContains(t, text, "!")
		require.NotContains(t, text, "\n")
		require.Less(t, len(text), 512, "csh bounds a word")
	}
}

// TestValuesAreNotCommands: a value that a shell would run, or ssh would take for an option, is refused or is only a
// name.
func TestValuesAreNotCommands(t *testing.T) {
	h := newHost(t)
	made := filepath.Join(h.dir, "made")
	for _, host := range []string{"", "-oProxyCommand=touch " + made, "a b", "a;touch " + made, "$(touch " + made + ")",
		"`touch " + made + "`", "a\nb", "user@-oProxyCommand=x y"} {
		_, err := ref().Start(deadline(t), spec(h.options("host", host)))
		require.ErrorIs(t, err, provider.ErrInvalidSpec, host)
	}
	for name, value := range map[string]string{
		"python": "$(touch " + made + ")/`touch " + made + "`; touch '" + made + "' && \"",
		"folder": h.dir + "/$(touch x)'\"",
	} {
		in, err := ref().Start(deadline(t), spec(h.options(name, value)))
		if name == "python" {
			require.ErrorIs(t, err, provider.ErrNotFound)
			continue
		}
		require.NoError(t, err)
		require.DirExists(t, filepath.Join(value, "bin"))
		require.NoError(t, in.Stop(deadline(t), 0))
	}
	require.NoFileExists(t, made)
	for name, value := range map[string]string{"python": "-c", "ssh": "-F", "folder": "relative", "state": "-x",
		"weights": "here", "port": "22"} {
		_, err := ref().Start(deadline(t), spec(h.options(name, value)))
		require.ErrorIs(t, err, provider.ErrInvalidSpec, name)
	}
	_, err := ref().Start(deadline(t), spec(h.options("ssh", "ssh 'x")))
	require.ErrorContains(t, err, "cannot be split into words")
}

// TestTheListOfHosts: sweeping asks every host, and an error names the one that does not answer.
func TestTheListOfHosts(t *testing.T) {
	h := newHost(t)
	s := spec(h.options())
	s.Detached, s.Session = true, "listed"
	in := started(t, s)
	require.NoError(t, remember(options{host: "nowhere", command: []string{"ssh", "-F", h.config, "-p", "1"},
		python: "python3"}))
	h.configure(t, "id", "Host nowhere", "HostName 127.0.0.1")
	found, err := ref().Sweep(deadline(t), func(provider.Found) bool { return false })
	require.ErrorIs(t, err, provider.ErrUnavailable)
	require.ErrorContains(t, err, "The host nowhere refuses the connection")
	require.ErrorContains(t, err, "remove its line from "+filepath.Join(h.dir, "ours", "mycelya", "ssh", "hosts"))
	require.Len(t, found, 1)
	require.Equal(t, in.Handle(), found[0].Handle)
	require.True(t, found[0].Used, "its client runs")
	in.Release()
	path, err := hostsFile()
	require.NoError(t, err)
	for i := range 2 * maxKnown {
		require.NoError(t, rememberIn(path, known{fmt.Sprint("host", i), []string{"ssh"}, "python3"}))
	}
	require.NoError(t, remember(options{host: "loop", command: []string{"ssh", "-F", h.config}, python: "python3"}))
	all, err := readHosts(path)
	require.NoError(t, err)
	require.Len(t, all, maxKnown)
	require.Equal(t, "loop", all[maxKnown-1].Host)
	require.NoError(t, os.WriteFile(path, []byte("{}\nnonsense\n"), 0o600))
	require.NoError(t, remember(options{host: "loop", command: []string{"ssh", "-F", h.config}, python: "python3"}))
	found, err = ref().Sweep(deadline(t), func(provider.Found) bool { return true })
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.False(t, found[0].Used, "nobody uses it any more")
	require.True(t, found[0].Ended)
	require.Empty(t, h.left())
}

func TestCheck(t *testing.T) {
	h := newHost(t)
	require.NoError(t, ref().Check(deadline(t), spec(h.options())))
	require.ErrorIs(t, ref().Check(deadline(t), spec(h.options("python", "/no/python"))), provider.ErrNotFound)
	require.Empty(t, h.left(), "a check starts nothing")
	var _ provider.Checker = ref()
}

// TestTheConfigOfSSH: keys of an agent and hosts behind others work as ssh's config says.
func TestTheConfigOfSSH(t *testing.T) {
	for name, configure := range map[string]func(t *testing.T, h *host) map[string]string{
		"an agent": func(t *testing.T, h *host) map[string]string {
			socket := filepath.Join(h.dir, "agent")
			agent := osexec.Command("ssh-agent", "-D", "-a", socket)
			require.NoError(t, agent.Start())
			t.Cleanup(func() { _ = agent.Process.Kill(); _ = agent.Wait() })
			require.Eventually(t, func() bool { _, err := os.Stat(socket); return err == nil }, patience, time.Millisecond)
			t.Setenv("SSH_AUTH_SOCK", socket)
			h.run(t, "ssh-add", "-q", filepath.Join(h.dir, "id"))
			h.configure(t, "nothing", "Host loop", "IdentityAgent "+socket, "IdentitiesOnly no")
			return h.options()
		},
		"a host behind another": func(t *testing.T, h *host) map[string]string {
			h.configure(t, "id", "Host far", "ProxyJump loop")
			return h.options("host", "far")
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t)
			in := started(t, spec(configure(t, h)))
			c, err := provider.Connect(deadline(t), in, transport.NewSessionName())
			require.NoError(t, err)
			require.NoError(t, c.Close())
			require.NoError(t, in.Stop(deadline(t), 0))
		})
	}
}
