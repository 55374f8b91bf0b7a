// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import "github.com/mycelya/mycelya/catalogue"

// queue holds submissions, oldest first. It allocates only when more of them wait than ever before.
type queue struct {
	items []Event
	first int
}

func (q *queue) empty() bool { return q.first == len(q.items) }

func (q *queue) push(ev Event) {
	if q.empty() {
		q.items, q.first = q.items[:0], 0
	}
	if q.first > 0 && len(q.items) == cap(q.items) {
		n := copy(q.items, q.items[q.first:])
		clear(q.items[n:])
		q.items, q.first = q.items[:n], 0
	}
	q.items = append(q.items, ev)
}

func (q *queue) pop() Event {
	ev := q.items[q.first]
	q.items[q.first] = nil
	q.first++
	return ev
}

// submit puts a submission into the queue. The first one has the sender start the worker. A small upload does not wake
// the sender: it is sent with the submission that uses it.
func (s *State) submit(ev Event, out []Action) []Action {
	s.queue.push(ev)
	if small(ev) {
		s.small += ev.(*upload).Bytes
	} else {
		s.pressing++
	}
	switch {
	case s.phase == idle:
		s.phase = starting
	case !s.pressed():
		return out
	}
	return s.wake(out)
}

// wake wakes the sender if it sleeps.
func (s *State) wake(out []Action) []Action {
	if s.awake {
		return out
	}
	s.awake = true
	return append(out, Wake{})
}

// pressed says whether the sender has to take submissions from the queue.
func (s *State) pressed() bool { return s.pressing > 0 || s.small > catalogue.UploadSmallAll }

func (s *State) traceClosed(ev *TraceClosed, out []Action) []Action {
	if s.why != nil {
		return append(out, Release{ev.Trace})
	}
	if s.credits.underWay++; s.credits.underWay == 1 {
		s.credits.pace.busy = ev.At
	}
	return s.submit(ev, out)
}

// ask submits a question, whose answer completes the ticket.
func (s *State) ask(ref Ref, bytes uint64, ev Event, out []Action) []Action {
	s.tickets[ref] = &ticket{ref: ref, bytes: bytes}
	if s.why != nil {
		return s.complete(ref, s.why, out)
	}
	return s.submit(ev, out)
}

// room completes its ticket when fewer traces are under way than the credits allow.
func (s *State) room(ev Room, out []Action) []Action {
	s.tickets[ev.Ticket] = &ticket{ref: ev.Ticket}
	if s.why != nil {
		return s.complete(ev.Ticket, s.why, out)
	}
	s.credits.rooms = append(s.credits.rooms, ev.Ticket)
	return s.admitRooms(out)
}

func (s *State) cancel(ev Cancel, out []Action) []Action {
	if t := s.tickets[ev.Ticket]; t == nil || t.filling {
		return out
	}
	return s.complete(ev.Ticket, ErrCanceled, out)
}

// complete ends a ticket, unless the ticket has ended.
func (s *State) complete(ref Ref, err error, out []Action) []Action {
	if s.tickets[ref] == nil {
		return out
	}
	delete(s.tickets, ref)
	return append(out, Complete{ref, err})
}
