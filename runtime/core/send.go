// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"slices"

	"github.com/mycelya/mycelya/proto/transport"
)

// next takes submissions from the queue until one has actions.
func (s *State) next(out []Action) []Action {
	if s.current != nil {
		panic("BUG: the sender asked for the next submission before it was through with the last")
	}
	if s.phase == closing {
		return append(out, Exit{})
	}
	n := len(out)
	if s.phase == starting && !s.started {
		s.started, s.awake = true, true
		return append(out, Start{})
	}
	if s.history.stage == orphaned {
		s.history.stage, s.awake = restarting, true
		return append(out, Restart{})
	}
	for s.phase == running && s.history.stage == steady && len(s.history.left) > 0 && len(out) == n {
		out = s.repeat(out)
	}
	for s.phase == running && s.history.stage == steady && len(out) == n {
		large, takes := s.readyLarge(), s.canTake()
		switch {
		case s.blocked != nil && !s.holdsBack(s.blocked):
			ev := s.blocked
			s.blocked = nil
			out = s.dispatched(ev, out)
			continue
		case large != nil && (s.turn || !takes):
			s.turn = false
			out = s.sendLarge(large, out)
			continue
		case takes:
			s.turn = true
			out = s.take(s.queue.pop(), out)
			continue
		}
		break
	}
	s.awake = len(out) > n
	return out
}

// take begins one submission.
func (s *State) take(event Event, out []Action) []Action {
	if small(event) {
		s.small -= event.(*upload).Bytes
	} else {
		s.pressing--
	}
	switch ev := event.(type) {
	case *TraceClosed:
		s.current = event
		return append(out, Prepare{ev.Trace, s.sinceRead})
	case *upload:
		return s.sendUpload(ev, out)
	case Read:
		return s.sendRead(ev, out)
	case Sync:
		return s.sendQuestion(ev.Ticket, transport.Sync, out)
	case Ask:
		s.guesses.forget() // it may write storages
		return s.sendQuestion(ev.Ticket, ev.Type, out)
	case Checkpoint:
		return s.sendCheckpoint(ev, out)
	case Mark:
		return s.complete(ev.Ticket, nil, out)
	case resume:
		return s.sendResume(out)
	case Forget:
		if _, known := s.blocks[ev.Block]; known {
			delete(s.blocks, ev.Block)
			out = append(out, Send{Type: transport.Unshare, Seq: s.nextSeq(), Block: ev.Block})
		}
	}
	return out
}

func (s *State) nextSeq() uint64 {
	s.seq++
	return s.seq
}

// prepared sends the call of a trace, unless the trace has none, or reads what a trace without a program should have
// made.
func (s *State) prepared(ev *Prepared, out []Action) []Action {
	if current, ok := s.current.(*TraceClosed); !ok || current.Trace != ev.Trace {
		return out // a second report of the trace
	}
	s.current = nil
	if s.why == nil && s.holdsBack(ev) {
		later := *ev // its arrays are the trace's, which is not released
		s.blocked = &later
		return out
	}
	return s.dispatched(ev, out)
}

// dispatched sends what a trace has become, and releases the trace.
func (s *State) dispatched(ev *Prepared, out []Action) []Action {
	if s.why == nil {
		out = s.dispatch(ev, out)
	}
	return append(out, Release{ev.Trace})
}

func (s *State) dispatch(ev *Prepared, out []Action) []Action {
	if ev.Err != nil {
		return s.failTrace(ev, out)
	}
	if ev.Inputs != nil {
		s.sinceRead++
	}
	if ev.Call == nil {
		s.guesses.freed(ev.Unused)
		return s.takeBack(s.free(ev.Trace, ev.Unused, out))
	}
	s.guesses.called(ev)
	seq := s.nextSeq()
	s.calls[seq] = ev.Call
	if _, known := s.programs[ev.Program]; !known && s.history.stage == steady {
		s.programs[ev.Program] = struct{}{}
		out = append(out, Send{Type: transport.Program, Seq: seq, Ref: ev.Call})
	}
	return s.sendKept(sentFrame{Send{Type: transport.Call, Seq: seq, Ref: ev.Call}, ev.Program, ev.Bytes}, out)
}

// free tells the worker that no tensor holds these storages any more, since a trace.
func (s *State) free(trace Ref, ids []uint64, out []Action) []Action {
	if len(ids) == 0 {
		return out
	}
	return s.send(Send{Type: transport.Free, Seq: s.nextSeq(), Ref: trace, Storages: slices.Clone(ids)}, out)
}

// takeBack returns the credit of a trace that has no Done.
func (s *State) takeBack(out []Action) []Action {
	s.credits.underWay--
	return s.admitRooms(append(out, Credit{}))
}

// sendQuestion asks the worker, unless the ticket was canceled.
func (s *State) sendQuestion(ref Ref, what transport.Type, out []Action) []Action {
	t := s.tickets[ref]
	if t == nil {
		return out
	}
	t.what, t.seq = what, s.nextSeq()
	s.asked[t.seq] = t
	return s.send(Send{Type: what, Seq: t.seq, Ref: ref, First: what == transport.Read && !s.guesses.begun}, out)
}
