// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// The test program is also the client that TestKilledClients kills.
const clientEnv = "CLIENT_OF_CLUSTER"

// killsEnv is the number of clients that TestKilledClients kills.
const killsEnv = "KILLED_CLIENTS"

// client starts a machine, uses it, and stops it. It prints a line before each of these, and when it has ended.
func client() {
	ctx := context.Background()
	spec := specOf()
	spec.Lease, spec.Idle = time.Minute, time.Second
	spec.Session, spec.Detached = os.Getenv(clientEnv), os.Getenv(clientEnv) != "ends"
	fmt.Println("start")
	began := time.Now()
	in, err := Provider{}.Start(ctx, spec)
	for i := 0; err == nil && i < 3; i++ {
		fmt.Println("use")
		c, dialErr := provider.Connect(ctx, in, transport.NewSessionName())
		if err = dialErr; err == nil {
			_ = c.Close()
		}
	}
	fmt.Println("stop")
	if in != nil {
		err = errors.Join(err, in.Stop(ctx, 0))
	}
	// On a slow machine the worker may have ended before its client has come.
	if err != nil && time.Since(began) < spec.Idle {
		fmt.Println("error:", err)
		os.Exit(1)
	}
	fmt.Println("end")
}

// TestKilledClients: whenever a client is killed, its machine ends by its clocks, and Sweep removes what is left of it.
func TestKilledClients(t *testing.T) {
	kills, err := strconv.Atoi(os.Getenv(killsEnv))
	if err != nil {
		kills = 6
	}
	s := begin(t)
	whole := run(t, "ends", func(*exec.Cmd, int) {})
	require.Empty(t, s.left(t))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range kills {
		session := []string{"ends", fmt.Sprint("stays-", i)}[i%2]
		after := time.Duration(random.Int64N(int64(whole)))
		run(t, session, func(c *exec.Cmd, line int) {
			if line == 0 {
				time.AfterFunc(after, func() { _ = c.Process.Kill() })
			}
		})
		require.Eventually(t, func() bool { return len(s.Processes()) == 0 }, patience, 5*time.Millisecond,
			"seed 1 2, kill %d after %v", i, after)
		// The last request of the client may be on its way, and a pod may be ending.
		for end := time.Now().Add(patience); len(s.left(t)) > 0; {
			require.True(t, time.Now().Before(end), "seed 1 2, kill %d after %v: %v", i, after, s.left(t))
			sweepAll(t)
		}
	}
}

// sweepAll ends all machines of the user.
func sweepAll(t *testing.T) {
	t.Helper()
	all, err := Provider{}.Sweep(within(t), func(f provider.Found) bool { return !f.Used })
	require.NoError(t, err)
	for _, f := range all {
		require.True(t, f.Ended, "the client that used it is dead")
	}
}

// run runs a client and returns how long it took. saw gets the number of each line that it prints, from 0 on.
func run(t *testing.T, session string, saw func(*exec.Cmd, int)) time.Duration {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), clientEnv+"="+session)
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	began := time.Now()
	require.NoError(t, c.Start())
	lines := bufio.NewScanner(out)
	for i := 0; lines.Scan(); i++ {
		require.NotContains(t, lines.Text(), "error")
		saw(c, i)
	}
	_ = c.Wait()
	return time.Since(began)
}
