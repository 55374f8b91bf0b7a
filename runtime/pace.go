// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import "time"

const (
	// A sender that gets a trace more often than this dozes. To wake it for each of them would cost the thread that
	// records more than all else that it does for a trace, and the worker, which is faster, would wake for each one too.
	fastTraces = time.Millisecond
	dozeTime   = time.Millisecond
	// fastWithRequests is the limit after a request. The thread that waits for the answer waits for the worker to end
	// these traces, so the worker has to begin them early, except if they are as short as the time to wake. One trace
	// before each request is as late as its sender wakes, so then the sender does not doze.
	fastWithRequests = 250 * time.Microsecond
	// fastRests is after how many such rests in a row.
	fastRests = 2
)

// pace is how often a sender gets traces. Only the sender uses it.
type pace struct {
	traces int       // since the last rest
	asked  bool      // a request came since the last rest
	rested time.Time // the beginning of the last rest
	fast   int       // rests in a row before which traces came fast
}

// dozes says whether traces come so fast that several are sent together.
func (p *pace) dozes() bool { return p.fast >= fastRests }

// rest waits for the next submission. A sender that dozes is not woken by traces, and takes them after a while.
func (p *pace) rest(b Mailbox) {
	now, limit := time.Now(), fastTraces
	switch {
	case p.asked && p.traces < 2:
		limit = 0
	case p.asked:
		limit = fastWithRequests
	}
	if now.Sub(p.rested) < time.Duration(p.traces)*limit {
		p.fast++
	} else {
		p.fast = 0
	}
	p.traces, p.asked, p.rested = 0, false, now
	if p.dozes() {
		b.Doze(dozeTime)
	} else {
		b.Wait()
	}
}
