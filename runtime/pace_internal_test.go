// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// rests counts how a sender rests.
type rests struct {
	queue
	waits, dozes int
}

func (r *rests) Wait()              { r.waits++ }
func (r *rests) Doze(time.Duration) { r.dozes++ }

// TestPace: a sender dozes while traces come fast, and sleeps again when they do not.
func TestPace(t *testing.T) {
	var p pace
	r := &rests{}
	p.rest(r)
	for range fastRests {
		require.False(t, p.dozes())
		p.traces = 1_000_000 // since the last rest: faster than any limit
		p.rest(r)
	}
	require.True(t, p.dozes())
	require.Equal(t, [2]int{fastRests, 1}, [2]int{r.waits, r.dozes})
	p.traces = 1_000_000
	p.rest(r)
	require.Equal(t, 2, r.dozes)
	time.Sleep(fastTraces)
	p.traces = 1
	p.rest(r)
	require.False(t, p.dozes())
	require.Equal(t, [2]int{fastRests + 1, 2}, [2]int{r.waits, r.dozes})
	p.rest(r) // without a trace
	require.False(t, p.dozes())
}

// TestPaceWithRequests: traces before a request have to come faster than others, or the sender does not doze.
func TestPaceWithRequests(t *testing.T) {
	var p pace
	r := &rests{}
	p.rest(r)
	const traces = 10_000 // so many that the time of the test itself does not count
	for _, c := range []struct {
		each  time.Duration
		asked bool
		dozes bool
	}{
		{fastTraces / 2, false, true},
		{fastTraces / 2, true, false},
		{fastWithRequests / 2, true, true},
		{2 * fastWithRequests, true, false},
		{2 * fastWithRequests, false, true},
		{2 * fastTraces, false, false},
	} {
		for range fastRests {
			p.traces, p.asked = traces, c.asked
			p.rested = time.Now().Add(-traces * c.each)
			p.rest(r)
		}
		require.Equal(t, c.dozes, p.dozes(), "%v", c)
	}
}

// TestATraceBeforeEachRequest: there is nothing to send together, and the thread waits.
func TestATraceBeforeEachRequest(t *testing.T) {
	var p pace
	r := &rests{}
	p.rest(r)
	for range 3 * fastRests {
		p.traces, p.asked = 1, true
		p.rest(r)
	}
	require.False(t, p.dozes())
	require.Zero(t, r.dozes)
}
