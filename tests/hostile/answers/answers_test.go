// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package answers_test runs real sessions of package runtime against a worker that lies. An honest worker computes, and
// a relay changes its answers at random: frames that are missing, doubled, of another type, number or length, answers
// that nobody has asked for, texts with control characters, changed bytes, connections that end within a frame. The
// client must survive, must return the values of an honest run or an error, and must not wait for ever.
//
// A worker can always lie about the content of a tensor. The relay leaves the payloads of reads as they are.
package answers_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	goruntime "runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	runs = flag.Int("runs", 500, "number of sessions")
	seed = flag.Uint64("seed", 1, "of the sessions")
	only = flag.Uint64("session", 0, "run only the session with this number; 0: all")
)

// parallel is the number of sessions at a time: most of them wait.
const parallel = 24

// one runs a session with a worker that lies as a plan says, and returns what must not be.
func one(number uint64, folder string, p func(*rand.Rand) plan) (outcome, error) {
	r := rand.New(rand.NewPCG(*seed, number))
	lies := rand.New(rand.NewPCG(*seed, number|1<<63)) // of another goroutine
	w, err := newLiar(lies, folder, p(r))
	if err != nil {
		return outcome{}, err
	}
	c, err := newClient(r, w)
	if err != nil {
		return outcome{}, err
	}
	err = c.run()
	_ = w.Stop(context.Background(), 0)
	if err != nil {
		err = fmt.Errorf("session %d of seed %d: %w", number, *seed, err)
	}
	return c.outcome, err
}

// lies is a random plan. One of 16 begins with the Hello.
func lies(r *rand.Rand) plan {
	p := plan{after: 1 + r.IntN(12), rate: 1 + r.IntN(4)}
	if r.IntN(16) == 0 {
		p.after = 0
	}
	return p
}

func openFiles(t *testing.T) int {
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Skip("this system does not list the descriptors of a process")
	}
	return len(files)
}

func TestHostileAnswers(t *testing.T) {
	if *only > 0 {
		got, err := one(*only, t.TempDir(), lies)
		require.NoError(t, err)
		t.Logf("%+v", got)
		return
	}
	files, goroutines := openFiles(t), goruntime.NumGoroutine()
	var mu sync.Mutex
	var total outcome
	var next atomic.Uint64
	var failed atomic.Int64
	var all sync.WaitGroup
	for range parallel {
		folder := t.TempDir()
		all.Go(func() {
			for n := next.Add(1); n <= uint64(*runs) && failed.Load() < 5; n = next.Add(1) {
				got, err := one(n, folder, lies)
				mu.Lock()
				total.add(got)
				mu.Unlock()
				if err != nil {
					failed.Add(1)
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d sessions: %d reads with the right values, %d errors, %d sessions were lost, %d waits were cancelled",
		*runs, total.right, total.failed, total.lost, total.cancelled)
	for what, n := range map[string]int{"right values": total.right, "errors": total.failed, "lost": total.lost,
		"cancelled": total.cancelled} {
		require.Greater(t, n, *runs/100, what)
	}
	require.Eventually(t, func() bool { return goruntime.NumGoroutine() <= goroutines+2 && openFiles(t) <= files+2 },
		2*time.Minute, 50*time.Millisecond, "the sessions have left %d goroutines (%d before) and %d files (%d before)",
		goruntime.NumGoroutine(), goroutines, openFiles(t), files)
}

// TestAnHonestRelay: without lies all reads are right, and a payload that is changed is noticed.
func TestAnHonestRelay(t *testing.T) {
	right := 0
	for n := range uint64(30) {
		got, err := one(n+1, t.TempDir(), func(*rand.Rand) plan { return plan{after: never, rate: 1} })
		require.NoError(t, err)
		require.Zero(t, got.lost+got.cancelled)
		right += got.right
	}
	require.Greater(t, right, 30)
	noticed := 0
	for n := range uint64(30) {
		if _, err := one(n+1, t.TempDir(), func(*rand.Rand) plan { return plan{rate: 1, payload: true} }); err != nil {
			require.ErrorContains(t, err, "element ")
			noticed++
		}
	}
	require.Greater(t, noticed, 10)
}
