// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import "time"

// Clocks end a worker that nobody needs any more, so that a client that has gone costs no money. The client and the
// provider have clocks of their own: each of the three may fail. 0 is no limit.
type Clocks struct {
	Lease time.Duration // the worker's life
	Alone time.Duration // without a session
}

// watch ends the supervisor when a clock has run out. It returns when the supervisor has ended.
func (s *Supervisor) watch() {
	began := time.Now()
	last := began // when there was a session
	least := time.Hour
	for _, d := range []time.Duration{s.Clocks.Lease, s.Clocks.Alone} {
		if d > 0 {
			least = min(least, d)
		}
	}
	t := time.NewTicker(max(least/8, time.Millisecond))
	defer t.Stop()
	for now := range t.C {
		sessions, closed := s.count()
		if sessions > 0 {
			last = now
		}
		switch {
		case closed:
			return
		case s.Clocks.Lease > 0 && now.Sub(began) >= s.Clocks.Lease:
			s.Log.Warn("the worker ends: its lease has passed", "lease", s.Clocks.Lease)
		case s.Clocks.Alone > 0 && now.Sub(last) >= s.Clocks.Alone:
			s.Log.Warn("the worker ends: it had no session", "for", s.Clocks.Alone)
		default:
			continue
		}
		s.Close()
		return
	}
}

// count returns how many processes have a client, and whether the supervisor has ended.
func (s *Supervisor) count() (sessions int, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.live {
		if p.given {
			sessions++
		}
	}
	return sessions, s.closed
}
