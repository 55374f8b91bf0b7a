// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/modal/fakeplane"
)

var (
	moments = flag.Int("moments", 10, "at how many moments starts are cancelled and clients are killed")
	seed    = flag.Uint64("seed", 1, "of the moments")
)

// slowly makes requests take some time, so that many moments are within one.
func slowly(plane *fakeplane.Plane) {
	plane.Inject(func(f *fakeplane.Faults) { f.Slow = 10 * time.Millisecond })
}

// duration measures how long a start takes on this host.
func duration(t *testing.T) time.Duration {
	began := time.Now()
	in := started(t, spec("A100"))
	took := time.Since(began)
	require.NoError(t, in.Stop(within(t), 0))
	return took
}

// TestCancelledStarts: a start that is cancelled at any moment leaves no sandbox.
func TestCancelledStarts(t *testing.T) {
	plane := newPlane(t)
	slowly(plane)
	took := duration(t)
	random := rand.New(rand.NewPCG(*seed, 2))
	cancelled := 0
	for i := 0; i < *moments || cancelled == 0; i++ {
		if i >= *moments { // the first start, which was measured, took much longer than the others
			took /= 2
		}
		after := time.Duration(random.Int64N(int64(took)))
		ctx, cancel := context.WithTimeout(context.Background(), after)
		in, err := refProvider().Start(ctx, spec("A100"))
		cancel()
		if err == nil {
			require.NoError(t, in.Stop(within(t), 0))
		} else {
			cancelled++
			require.ErrorIs(t, err, context.DeadlineExceeded, "start %d, cancelled after %v of %v", i, after, took)
		}
		require.Empty(t, plane.Running(), "start %d, cancelled after %v of %v", i, after, took)
	}
}

// beClient is a process that starts a worker, uses and stops it. It prints a line after each step.
func beClient(path string) {
	fail := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	p := Provider{Paths: provider.Paths{Worker: path}, Backend: "ref"}
	ctx := context.Background()
	fmt.Println("begins")
	in, err := p.Start(ctx, spec("A100"))
	fail(err)
	fmt.Println("started")
	c, err := provider.Open(ctx, in, transport.NewSessionName(), nil, func(link.Notice) {})
	fail(err)
	fmt.Println("uses")
	time.Sleep(100 * time.Millisecond) // a session that is killed at any time within it
	fail(c.Close())
	fail(in.Stop(ctx, 0))
	fmt.Println("stopped")
}

// startClient starts a process of beClient.
func startClient(t *testing.T) (*exec.Cmd, *bufio.Scanner) {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), clientEnv+"="+workerPath)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() { _ = c.Process.Kill() })
	lines := bufio.NewScanner(out)
	require.True(t, lines.Scan())
	require.Equal(t, "begins", lines.Text())
	return c, lines
}

// TestKilledClients: whenever a client is killed, Sweep finds what it leaves, and without Sweep the plane ends it.
func TestKilledClients(t *testing.T) {
	plane := newPlane(t)
	slowly(plane)
	c, lines := startClient(t)
	began := time.Now()
	last := ""
	for lines.Scan() {
		last = lines.Text()
	}
	took := time.Since(began)
	require.NoError(t, c.Wait())
	require.Equal(t, "stopped", last)
	require.Empty(t, plane.Running())
	random := rand.New(rand.NewPCG(*seed, 4))
	left := 0
	for i := 0; i < *moments || left == 0; i++ { // a client that has left no sandbox tests nothing
		require.Less(t, i, 10**moments, "no client has left a sandbox")
		after := time.Duration(random.Int64N(int64(took)))
		c, _ := startClient(t)
		time.Sleep(after)
		require.NoError(t, c.Process.Kill())
		_ = c.Wait()
		left += endLeft(t, plane, i%2 == 0, fmt.Sprintf("client %d, killed after %v of %v", i, after, took))
	}
}

// endLeft ends the sandboxes that a killed client has left, and returns how many they were.
func endLeft(t *testing.T, plane *fakeplane.Plane, sweep bool, what string) int {
	left := plane.Running()
	if !sweep {
		plane.Hurry(time.Millisecond)
		defer plane.Hurry(time.Second)
		require.Eventually(t, func() bool { return len(plane.Running()) == 0 }, patience, 10*time.Millisecond, what)
		return len(left)
	}
	ended := 0
	for end := time.Now().Add(patience); ; { // the last request of the client may be on its way
		all, err := refProvider().Sweep(within(t), func(f provider.Found) bool { return !f.Used })
		require.NoError(t, err)
		for _, f := range all {
			require.True(t, f.Ended, what)
		}
		if ended += len(all); len(plane.Running()) == 0 {
			return ended
		}
		require.True(t, time.Now().Before(end), what)
	}
}

// TestASweepSeesAllPages: a list comes in several answers.
func TestASweepSeesAllPages(t *testing.T) {
	plane := newPlane(t)
	plane.Inject(func(f *fakeplane.Faults) { f.NeverStarts = []string{"T4"} })
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	const n = 7
	ended := make(chan error, n)
	for range n {
		go func() {
			_, err := refProvider().Start(ctx, spec("T4"))
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { return len(plane.Running()) == n }, patience, 10*time.Millisecond)
	all, err := refProvider().Sweep(within(t), func(provider.Found) bool { return false })
	require.NoError(t, err)
	require.Len(t, all, n)
	cancel()
	for range n {
		require.ErrorIs(t, <-ended, context.Canceled)
	}
	require.Empty(t, plane.Running())
}

// TestStrangersOfTheWorkspace: a sweep never touches sandboxes of other tokens.
func TestStrangersOfTheWorkspace(t *testing.T) {
	plane := newPlane(t)
	in := started(t, spec("A100"))
	plane.AddToken("ak-other", "as-other")
	t.Setenv("MODAL_TOKEN_ID", "ak-other")
	t.Setenv("MODAL_TOKEN_SECRET", "as-other")
	all, err := refProvider().Sweep(within(t), func(provider.Found) bool { return true })
	require.NoError(t, err)
	require.Empty(t, all)
	require.Equal(t, []string{in.id}, plane.Running())
}

func detached(name string) provider.Spec {
	s := spec("A100")
	s.Session, s.Detached = name, true
	return s
}

// TestAMachineOfAnotherBuild cannot be attached.
func TestAMachineOfAnotherBuild(t *testing.T) {
	newPlane(t)
	in := started(t, detached("old"))
	sb, err := in.client.Sandboxes.FromID(within(t), in.id)
	require.NoError(t, err)
	require.NoError(t, sb.SetTags(within(t), map[string]string{tagBuild: "0.0.1"}))
	_, err = refProvider().Attach(within(t), detached("old"))
	require.ErrorIs(t, err, provider.ErrVersion)
	require.ErrorContains(t, err, "runs build 0.0.1")
}

// TestFilesOfAMachine: only this user can read them, they go with the machine, and without them nobody can attach.
func TestFilesOfAMachine(t *testing.T) {
	newPlane(t)
	in := started(t, detached("a/b ä"))
	for _, name := range []string{machineFile, clientFile} {
		info, err := os.Stat(filepath.Join(in.machine.folder, name))
		require.NoError(t, err)
		require.Equal(t, os.FileMode(0o600), info.Mode())
	}
	_, err := refProvider().Attach(within(t), detached("another"))
	require.ErrorIs(t, err, provider.ErrNotFound)
	require.ErrorContains(t, err, `There are "a/b ä".`)
	second, err := refProvider().Attach(within(t), detached("a/b ä"))
	require.NoError(t, err)
	serves(t, second)
	secret := filepath.Join(in.machine.folder, clientFile)
	require.NoError(t, os.Rename(secret, secret+".away"))
	_, err = refProvider().Attach(within(t), detached("a/b ä"))
	require.ErrorIs(t, err, provider.ErrAuth)
	require.NoError(t, os.Rename(secret+".away", secret))
	require.NoError(t, in.Stop(within(t), 0))
	in.Remove()
	require.NoDirExists(t, in.machine.folder)
}

// TestAMachineIsReplaced: after the loss of its sandbox, a machine starts as it did before.
func TestAMachineIsReplaced(t *testing.T) {
	plane := newPlane(t)
	s := detached("again")
	s.Options["volume"] = "v"
	first := started(t, s)
	plane.Kill(first.id)
	_, err := first.Wait(within(t))
	require.NoError(t, err)
	again := provider.Spec{Session: "again", Again: true}
	second, err := refProvider().Attach(within(t), again)
	require.NoError(t, err)
	serves(t, second)
	a, _ := plane.Definition(first.id)
	b, _ := plane.Definition(second.Handle().ID)
	require.Equal(t, a.GetEntrypointArgs(), b.GetEntrypointArgs(), "also the folder of its checkpoints")
	require.Equal(t, a.GetResources().GetGpuConfig().GetGpuType(), b.GetResources().GetGpuConfig().GetGpuType())
	require.NoError(t, second.Stop(within(t), 0))
	second.(*instance).Remove()
	_, err = refProvider().Attach(within(t), again)
	require.ErrorIs(t, err, provider.ErrNotFound)
	lost := spec("A100")
	lost.Again = true
	_, err = refProvider().Start(within(t), lost)
	require.ErrorIs(t, err, provider.ErrInvalidSpec)
	require.ErrorContains(t, err, "checkpoints on a volume outlive their sandbox")
}
