// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package exec

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/providertest"
)

const patience = time.Minute

var workerPath string // the real worker, built by TestMain

func TestMain(m *testing.M) { providertest.Main(m, &workerPath) }

func spec(command ...string) provider.Spec {
	return provider.Spec{Session: "test", Options: map[string]string{"command": shellquote.Join(command...)}}
}

// worker is a command that is the worker itself.
func worker() provider.Spec { return spec(workerPath, "--stdio", "--backend", "ref") }

func run(s provider.Spec) (provider.Instance, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return New(provider.Paths{}).Start(ctx, s)
}

// container runs a command with processes, users and mounts of its own, as container runtimes do.
var container = []string{"unshare", "--user", "--map-root-user", "--mount", "--pid", "--mount-proc", "--fork",
	"--kill-child"}

func TestConformance(t *testing.T) {
	for name, command := range map[string][]string{
		"the worker":       {workerPath, "--stdio", "--backend", "ref"},
		"a command before": {"env", "-i", "PATH=" + os.Getenv("PATH"), workerPath, "--stdio", "--backend", "ref"},
		"a shell":          {"sh", "-c", `cd / && exec "$0" "$@"`, workerPath, "--stdio", "--backend", "ref"},
		"a container":      append(slices.Clone(container), workerPath, "--stdio", "--backend", "ref"),
	} {
		t.Run(name, func(t *testing.T) {
			if out, err := exec.Command(container[0], append(container[1:], "true")...).CombinedOutput(); err != nil &&
				name == "a container" {
				t.Skipf("This host lets its users make no namespaces: %s", out)
			}
			providertest.Suite{
				Options:   spec(command...).Options,
				OneStream: true,
				Make:      func(*testing.T) provider.Provider { return New(provider.Paths{}) },
				Kill: func(h provider.Handle) {
					pid, _ := strconv.Atoi(h.ID)
					_ = syscall.Kill(pid, syscall.SIGKILL)
				},
				Left: left,
			}.Run(t)
		})
	}
}

// left lists processes of workers.
func left(t *testing.T) []string { return providertest.Processes(t, workerPath) }

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "command.sh")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

func TestCommandsThatCantBeUsed(t *testing.T) {
	line := func(version int, network, build string) string {
		return fmt.Sprintf(`echo "MYCELYA|%d|%s|-|$$|%s"; exec sleep 60`, version, network, build)
	}
	device, threads := worker(), worker()
	device.Device, threads.Threads = "cpu", 2
	for _, c := range []struct {
		name  string
		spec  provider.Spec
		kind  error
		wants []string
	}{
		{"none", spec(), provider.ErrInvalidSpec, []string{"needs a command", "--stdio"}},
		{"open quote", provider.Spec{Options: map[string]string{"command": "docker 'run"}}, provider.ErrInvalidSpec,
			[]string{"cannot be split into words"}},
		{"another option", provider.Spec{Options: map[string]string{"image": "x"}}, provider.ErrInvalidSpec,
			[]string{`image="x" is not an option of the exec machine`}},
		{"a device", device, provider.ErrInvalidSpec, []string{`chooses its device ("cpu")`, "--device"}},
		{"threads", threads, provider.ErrInvalidSpec, []string{"--threads"}},
		{"no program", spec("/no/such/program"), provider.ErrNotFound, []string{"does not start", "No shell runs it"}},
		{"not in PATH", spec("no-such-program-anywhere"), provider.ErrNotFound, []string{"does not start"}},
		{"no shell", spec("true;", "echo"), provider.ErrNotFound, []string{"No shell runs it"}},
		{"ends at once", spec(script(t, "echo no image >&2; exit 125")), provider.ErrUnavailable,
			[]string{"ended with code 125 before its worker could be used", "no image"}},
		{"talks first", spec(script(t, "echo welcome; exec sleep 60")), provider.ErrVersion,
			[]string{`it began with "welcome\n"`, "nothing else may write to its stdout"}},
		{"another build", spec(script(t, line(transport.Version, "stdio", "0.0.7"))), provider.ErrVersion,
			[]string{"is build 0.0.7", "this package is build " + transport.Build}},
		{"another wire", spec(script(t, line(9, "stdio", transport.Build))), provider.ErrVersion,
			[]string{"(wire version 9)"}},
		{"a socket", spec(script(t, line(transport.Version, "unix", transport.Build))), provider.ErrVersion,
			[]string{"--stdio"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := run(c.spec)
			require.ErrorIs(t, err, c.kind)
			for _, w := range c.wants {
				require.ErrorContains(t, err, w)
			}
		})
	}
}

// TestCodesOfAWorker: a worker's clock ends it with a code that passes through commands.
func TestCodesOfAWorker(t *testing.T) {
	s := spec("sh", "-c", `"$0" --stdio --backend ref --lease 3s; exit $?`, workerPath)
	in, err := run(s)
	require.NoError(t, err)
	_, err = in.Dial(context.Background())
	require.NoError(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	e, err := in.Wait(ctx)
	require.NoError(t, err)
	require.Equal(t, provider.LeaseOver, e.Reason)
	require.Contains(t, e.Detail, "its lease has passed", "stderr is the log")
	log, err := in.(provider.Logger).Logs(t.Context())
	require.NoError(t, err)
	require.Equal(t, e.Detail, log)
	providertest.Gone(t, func() []string { return left(t) })
}

// TestACommandThatDoesNotEnd: Stop kills what ignores the end of stdin and SIGTERM, with the processes that it has
// started.
func TestACommandThatDoesNotEnd(t *testing.T) {
	deaf := fmt.Sprintf(`trap "" TERM
echo "MYCELYA|%d|stdio|-|$$|%s"
sh -c 'trap "" TERM; exec sleep 3600' </dev/null &
while :; do sleep 0.05 </dev/null; done`, transport.Version, transport.Build)
	in, err := run(spec(script(t, deaf)))
	require.NoError(t, err)
	require.NoError(t, in.Stop(context.Background(), 50*time.Millisecond))
	e, err := in.Wait(context.Background())
	require.NoError(t, err)
	require.Equal(t, provider.Done, e.Reason)
	require.Equal(t, "killed", e.Signal)
	pid, err := strconv.Atoi(in.Handle().ID)
	require.NoError(t, err)
	require.Eventually(t, func() bool { return syscall.Kill(-pid, 0) == syscall.ESRCH }, patience, 10*time.Millisecond,
		"the processes of its session end")
}

// TestWordsAreThoseOfAShell: quotes and backslashes, but no variables and no commands.
func TestWordsAreThoseOfAShell(t *testing.T) {
	s := provider.Spec{Options: map[string]string{"command": `ssh 'a b' "c $HOME" d\ e $(x)`}}
	got, err := words(s)
	require.NoError(t, err)
	require.Equal(t, []string{"ssh", "a b", "c $HOME", "d e", "$(x)"}, got)
}

func TestFDs(t *testing.T) {
	in, err := run(worker())
	require.NoError(t, err)
	require.Len(t, in.FDs(), 3)
	require.NoError(t, in.Stop(context.Background(), time.Second))
	require.Empty(t, in.FDs(), "the numbers may be those of other files by now")
}
