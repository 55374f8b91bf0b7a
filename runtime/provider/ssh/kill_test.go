// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const (
	clientEnv = "CLIENT_OF_SSH"         // the client's worker program and spec
	killsEnv  = "KILLED_CLIENTS"        // how many moments TestKilledClients tries
	killsMost = 2500 * time.Millisecond // a start, a session and a stop, on a slow machine
)

// order is what the killed client gets.
type order struct {
	Worker string
	Spec   provider.Spec
}

// client starts, uses and stops workers until it is killed.
func client() {
	var o order
	if err := json.Unmarshal([]byte(os.Getenv(clientEnv)), &o); err != nil {
		panic(err)
	}
	p := Provider{Paths: provider.Paths{Worker: o.Worker}, Backend: "ref"}
	fmt.Println("begun")
	for {
		began := time.Now()
		// On a slow machine the worker may have ended before its client has come.
		if err := o.use(context.Background(), p); err != nil && time.Since(began) < o.Spec.Idle {
			fmt.Println("error", err)
			return
		}
	}
}

// use starts, uses and stops a worker.
func (o order) use(ctx context.Context, p Provider) error {
	in, err := p.Start(ctx, o.Spec)
	if err != nil {
		return err
	}
	for range 3 {
		nc, dialErr := provider.Open(ctx, in, transport.NewSessionName(), nil, func(link.Notice) {})
		if err = dialErr; err != nil {
			break
		}
		_ = nc.Close()
	}
	return errors.Join(err, in.Stop(ctx, time.Second))
}

// TestKilledClients kills a client at seeded moments of starts, sessions and stops: alone, or with the ssh processes
// that it has started, which looks like a lost connection to the host. Whatever the moment, nothing runs after the
// worker's clocks, and sweeping finds what runs before.
func TestKilledClients(t *testing.T) {
	moments := 8
	if text := os.Getenv(killsEnv); text != "" {
		var err error
		moments, err = strconv.Atoi(text)
		require.NoError(t, err)
	}
	h := newHost(t)
	s := spec(h.options())
	s.Idle, s.Lease = 2*time.Second, time.Minute
	text, err := json.Marshal(order{workerPath, s})
	require.NoError(t, err)
	in := started(t, s) // copies the worker
	require.NoError(t, in.Stop(deadline(t), time.Second))
	for seed := range moments {
		random := rand.New(rand.NewPCG(uint64(seed), 0))
		c := osexec.Command(os.Args[0])
		c.Env = append(os.Environ(), clientEnv+"="+string(text))
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, "begun\n", line)
		after := time.Duration(random.Int64N(int64(killsMost)))
		time.Sleep(after) // the moment
		var theirs []string
		if seed%2 == 1 {
			theirs = h.clients()
		}
		require.NoError(t, c.Process.Kill())
		for _, pid := range theirs {
			kill(pid)
		}
		rest, _ := lines.ReadString('\n')
		require.Empty(t, rest, "the client failed before it was killed")
		_ = c.Wait()
		if seed%4 == 3 {
			_, err := ref().Sweep(deadline(t), func(provider.Found) bool { return true })
			require.NoError(t, err)
		}
		// A file that says how a worker has ended may wait for its client until it is pruned.
		require.Empty(t, h.leftIn("tmp"), "seed %d, after %v, killed with %v", seed, after, theirs)
	}
	in = started(t, s) // removes the control folders of clients that were killed
	require.NoError(t, in.Stop(deadline(t), time.Second))
	require.Empty(t, h.leftIn("tmp", "mine"))
}

// clients lists the ssh processes of clients.
func (h *host) clients() (out []string) {
	for _, line := range h.processes() {
		pid, command, _ := strings.Cut(line, " ")
		if strings.Contains(command, h.config) {
			out = append(out, pid)
		}
	}
	return out
}
