// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"time"

	"github.com/mycelya/mycelya/proto/transport"
)

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
	s.note(began, last)
	t := time.NewTicker(max(least/8, time.Millisecond))
	defer t.Stop()
	for now := range t.C {
		sessions, closed := s.count()
		if sessions > 0 {
			last = now
		}
		s.note(began, last)
		switch {
		case closed:
			return
		case s.Clocks.Lease > 0 && now.Sub(began) >= s.Clocks.Lease:
			s.Log.Warn("the worker ends: its lease has passed", "lease", s.Clocks.Lease)
			s.code.Store(transport.ExitLease)
		case s.Clocks.Alone > 0 && now.Sub(last) >= s.Clocks.Alone:
			s.Log.Warn("the worker ends: it had no session", "for", s.Clocks.Alone)
			s.code.Store(transport.ExitAlone)
		default:
			continue
		}
		s.Close()
		return
	}
}

// note keeps when the clocks have begun.
func (s *Supervisor) note(began, used time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.began, s.used = began, used
}

// left returns the seconds to the end of the lease, and to the end for lack of a session; -1: there is no such clock.
func (s *Supervisor) left(now time.Time) (lease, alone float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	lease, alone = -1, -1
	if s.Clocks.Lease > 0 && !s.began.IsZero() {
		lease = max(0, s.Clocks.Lease-now.Sub(s.began)).Seconds()
	}
	if s.Clocks.Alone > 0 && !s.used.IsZero() {
		alone = max(0, s.Clocks.Alone-now.Sub(s.used)).Seconds()
	}
	return lease, alone
}

// ExitCode is the code with which the program should end after the supervisor's end: 0, or that of a clock.
func (s *Supervisor) ExitCode() int { return int(s.code.Load()) }

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
