// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import "time"

const (
	// A sender that gets a trace more often than this dozes. To wake it for each of them would cost the thread that
	// records more than all else that it does for a trace, and the worker, which is faster, would wake for each one too.
	fastTraces = 250 * time.Microsecond
	dozeTime   = time.Millisecond
	// fastRests is after how many such rests in a row.
	fastRests = 4
)

// pace is how often a sender gets traces. Only the sender uses it.
type pace struct {
	traces int       // since the last rest
	rested time.Time // the beginning of the last rest
	fast   int       // rests in a row before which traces came fast
}

// dozes says whether traces come so fast that several are sent together.
func (p *pace) dozes() bool { return p.fast >= fastRests }

// rest waits for the next submission. A sender that dozes is not woken by traces, and takes them after a while.
func (p *pace) rest(b Mailbox) {
	now := time.Now()
	if now.Sub(p.rested) < time.Duration(p.traces)*fastTraces {
		p.fast++
	} else {
		p.fast = 0
	}
	p.traces, p.rested = 0, now
	if p.dozes() {
		b.Doze(dozeTime)
	} else {
		b.Wait()
	}
}
