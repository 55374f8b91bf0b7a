// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package process

import (
	"bufio"
	"context"
	"io"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const patience = 30 * time.Second

// child is a shell that has said hello.
type child struct {
	Life
	cmd *exec.Cmd
}

func newChild(t *testing.T, script string) *child {
	t.Helper()
	c := &child{Life: NewLife(), cmd: exec.Command("sh", "-c", script)}
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	pipes, started, err := Connect(c.cmd, "the shell")
	require.NoError(t, err)
	t.Cleanup(pipes.Close)
	require.Len(t, FDs(pipes.In, pipes.Out, pipes.Err), 3)
	err = c.cmd.Start()
	started()
	require.NoError(t, err)
	line, err := bufio.NewReader(pipes.Out).ReadString('\n')
	require.NoError(t, err)
	require.Equal(t, "hello\n", line)
	go func() {
		var log Log
		_, _ = io.Copy(&log, pipes.Err) // returns once the shell and its children have ended
		err := c.cmd.Wait()
		c.End(ExitOf(c.cmd.ProcessState, err, &log))
	}()
	t.Cleanup(func() { _ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL); <-c.Ended() })
	return c
}

func TestLife(t *testing.T) {
	const soon = 200 * time.Millisecond // for what must not end by then
	for _, test := range []struct {
		name, script string
		ask          bool
		grace, later time.Duration // until SIGTERM, and until SIGKILL
		want         provider.Exit
	}{
		{"ends by itself", "echo hello; echo bye >&2; exit 3", false, 0, 0,
			provider.Exit{Reason: provider.Crashed, Code: 3, Detail: "bye\n"}},
		{"ends by its clock", "echo hello; exit 10", true, patience, patience,
			provider.Exit{Reason: provider.LeaseOver, Code: transport.ExitLease}},
		{"ends at SIGTERM", "trap 'exit 0' TERM; echo hello; while :; do sleep 0.05; done", true, soon, patience,
			provider.Exit{Reason: provider.Done}},
		{"ignores SIGTERM", "trap '' TERM; echo hello; while :; do sleep 0.05; done", true, soon, soon,
			provider.Exit{Reason: provider.Done, Code: -1, Signal: "killed"}},
		{"has a child that holds stderr", "trap '' TERM; echo hello; sleep 1000", true, soon, soon,
			provider.Exit{Reason: provider.Done, Code: -1, Signal: "killed"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := newChild(t, test.script)
			if test.ask {
				require.True(t, c.Ask())
				require.False(t, c.Ask())
				<-c.Asked()
				require.NoError(t, c.EndProcess(t.Context(), c.cmd.Process, "The shell", test.grace, test.later))
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			got, err := c.Wait(ctx)
			require.NoError(t, err)
			require.Equal(t, test.want, got)
			over, end := context.WithCancel(t.Context())
			end()
			got, err = c.Wait(over)
			require.NoError(t, err, "a known end counts more than the context")
			require.Equal(t, c.Exit(), got)
		})
	}
}

// TestPipesThatCannotBeMade: nothing is left open.
func TestPipesThatCannotBeMade(t *testing.T) {
	var before syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &before))
	dup, err := syscall.Dup(0)
	require.NoError(t, err)
	require.NoError(t, syscall.Close(dup))
	less := before
	less.Cur = uint64(dup) + 4 // two pipes
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &less))
	_, _, err = Connect(exec.Command("true"), "the command")
	next, dupErr := syscall.Dup(0)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &before))
	require.NoError(t, dupErr)
	require.NoError(t, syscall.Close(next))
	require.ErrorIs(t, err, provider.ErrUnavailable)
	require.ErrorContains(t, err, "The pipes of the command cannot be made")
	require.ErrorContains(t, err, "ulimit -n")
	require.Equal(t, dup, next)
}
