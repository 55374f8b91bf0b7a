// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import "time"

// Limits of how far a client runs ahead of its worker.
const (
	MaxCalls  = 64  // traces under way: submitted, and not done
	mostCalls = 256 // the same where all of them take less than aheadTime

	aheadTime = 500 * time.Millisecond
)

// credits say how far the client may run ahead of the worker, and hold what waits for that.
type credits struct {
	underWay int
	allowed  int
	pace     pace
	rooms    []Ref // tickets, oldest first
}

// done counts a call that the worker has done, and returns how many traces may be under way.
func (c *credits) done(now time.Duration) int {
	c.underWay--
	c.pace.done(now)
	c.allowed = c.pace.ahead()
	return c.allowed
}

// Busy says how many traces are under way, since when the first of them may run, and how long one has taken on average,
// 0 if that is not known.
func (s *State) Busy() (underWay int, since, each time.Duration) {
	return s.credits.underWay, s.credits.pace.busy, s.credits.pace.each
}

// admitRooms completes the tickets that wait for room, if there is room.
func (s *State) admitRooms(out []Action) []Action {
	c := &s.credits
	if c.underWay >= c.allowed || len(c.rooms) == 0 {
		return out
	}
	for _, ref := range c.rooms {
		out = s.complete(ref, nil, out)
	}
	c.rooms = c.rooms[:0]
	return out
}

// pace is how fast the worker does calls.
type pace struct {
	began    bool
	last     time.Duration // when the last call was done
	interval time.Duration // between two, on average; 0: not known

	busy time.Duration // when the worker could begin the call that it does now
	each time.Duration // how long a call has taken, on average; 0: not known
}

func (p *pace) done(now time.Duration) {
	if took := now - p.busy; p.each == 0 {
		p.each = took
	} else {
		p.each += (took - p.each) / 4
	}
	p.busy = now
	if p.began {
		if took := min(now-p.last, aheadTime); p.interval == 0 {
			p.interval = took
		} else {
			p.interval += (took - p.interval) / 16
		}
	}
	p.began, p.last = true, now
}

// ahead is how many traces may be under way. Steps of a millisecond need more of them than long steps, so that the
// worker has work while the client or the network pauses.
func (p *pace) ahead() int {
	if p.interval <= 0 {
		return MaxCalls
	}
	return int(min(max(aheadTime/p.interval, MaxCalls), mostCalls))
}
