// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"maps"
	"slices"
)

// lost takes the loss of the worker, which is replaced if there is a checkpoint. Otherwise the session ends.
func (s *State) lost(err error, out []Action) []Action {
	if s.why != nil {
		return out
	}
	out, replaced := s.replace(err, out)
	if replaced {
		return out
	}
	return s.gone(err, out)
}

// gone ends the session. Everything that waits completes with err, in the order in which it was submitted, except for
// what other goroutines of the loop use: the sender's current submission, and the read that is being filled.
func (s *State) gone(err error, out []Action) []Action {
	if s.why != nil {
		return out
	}
	s.phase, s.why = gone, err
	out = append(out, End{err})
	for _, seq := range slices.Sorted(maps.Keys(s.reading)) {
		out = s.drop(s.reading[seq], out)
	}
	for _, seq := range slices.Sorted(maps.Keys(s.asked)) {
		switch t := s.asked[seq]; {
		case t.guess != nil:
			out = s.guessLost(t.guess, err, out)
		case s.tickets[t.ref] == t:
			out = s.complete(t.ref, err, out)
		}
	}
	for !s.queue.empty() {
		out = s.drop(s.queue.pop(), out)
	}
	for _, ref := range s.credits.rooms {
		out = s.complete(ref, err, out)
	}
	if s.blocked != nil {
		out = append(out, Release{s.blocked.Trace})
		s.blocked = nil
	}
	for _, ref := range s.history.waiting {
		out = s.complete(ref, err, out)
	}
	s.history.on = false
	for _, f := range s.history.frames {
		out = s.releaseKept(f, out)
	}
	out = s.dropLarge(out)
	s.history = history{}
	clear(s.reading)
	clear(s.asked)
	clear(s.calls)
	s.line = line{}
	s.credits = credits{allowed: s.credits.allowed}
	s.pressing, s.small = 0, 0
	return out
}

// drop ends a submission that was not sent.
func (s *State) drop(ev Event, out []Action) []Action {
	switch ev := ev.(type) {
	case *TraceClosed:
		return append(out, Release{ev.Trace})
	case *upload:
		return s.complete(ev.Ticket, s.why, append(out, Release{ev.Ref}))
	case Read:
		return s.complete(ev.Ticket, s.why, out)
	case Sync:
		return s.complete(ev.Ticket, s.why, out)
	case Mark:
		return s.complete(ev.Ticket, s.why, out)
	case Ask:
		return s.complete(ev.Ticket, s.why, out)
	case Checkpoint:
		return s.complete(ev.Ticket, s.why, out)
	}
	return out // a block needs no Unshare
}
