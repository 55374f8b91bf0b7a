// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"errors"
	"fmt"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// answer takes a frame of the worker.
func (s *State) answer(ev *Answer, out []Action) []Action {
	if s.why != nil || s.history.stage == orphaned || s.history.stage == restarting {
		return out // what the answer was for has ended with the session, or another worker will answer
	}
	switch m := ev.Message.(type) {
	case *proto.Done:
		return s.done(ev, m, out)
	case *proto.ReadReply:
		t, err := s.answered(ev.Seq, transport.Read)
		if err != nil {
			return append(out, Disconnect{err})
		}
		return s.readReply(t, ev, m, out)
	case *proto.SyncReply:
		t, err := s.answered(ev.Seq, transport.Sync)
		if err != nil {
			return append(out, Disconnect{err})
		}
		return s.over(t, m.Status, out)
	case *proto.Uploaded:
		u, ok := s.reading[ev.Seq]
		if !ok {
			return append(out, Disconnect{fmt.Errorf("the worker answered upload %d, which was not waiting", ev.Seq)})
		}
		delete(s.reading, ev.Seq)
		return s.uploaded(u, out)
	case *proto.StateReply:
		return s.stateReply(ev.Seq, m, out)
	case *proto.Offered:
		return s.offeredReply(ev.Seq, m, out)
	case *proto.Fetching:
		return s.fetching(ev.Seq, m, out)
	}
	return append(out, Disconnect{fmt.Errorf("the worker sent a %T, which only clients send", ev.Message)})
}

// answered takes the ticket of a question that the worker has answered. Answers come in the order of their requests, so
// that a worker that leaves one out is noticed.
func (s *State) answered(seq uint64, what transport.Type) (*ticket, error) {
	t := s.asked[seq]
	if t == nil || t.what != what || !s.line.isNext(seq) {
		return nil, fmt.Errorf("the worker answered %v %d, which was not the next", what, seq)
	}
	s.line.pop()
	delete(s.asked, seq)
	return t, nil
}

// done ends a call. A worker that has forgotten the call's program waits for the program and the call, and keeps all
// later frames back.
func (s *State) done(ev *Answer, m *proto.Done, out []Action) []Action {
	seq := ev.Seq
	call, ok := s.calls[seq]
	repeated, repeats := s.history.repeats[seq]
	if !ok && repeats {
		call = repeated
	}
	switch {
	case !ok && !repeats || !s.line.isNext(seq):
		return append(out, Disconnect{fmt.Errorf("the worker answered call %d, which was not the next", seq)})
	case m.UnknownProgram && s.resent == seq:
		return append(out, Disconnect{fmt.Errorf("the worker has forgotten the program of call %d twice", seq)})
	case m.UnknownProgram:
		s.resent = seq
		return append(out, Send{Type: transport.Program, Seq: seq, Ref: call, Again: true},
			Send{Type: transport.Call, Seq: seq, Ref: call, Again: true})
	}
	s.line.pop()
	delete(s.history.repeats, seq)
	if !ok { // its first answer has counted
		return out
	}
	delete(s.calls, seq)
	if m.Failed > 0 && len(m.Errors) > 0 {
		out = s.fail(seq, s.steps.first(seq, call, m.Errors[0], s.explain), out)
	}
	if before := s.credits.allowed; s.credits.done(ev.At) != before {
		out = append(out, Allow{s.credits.allowed})
	}
	return s.admitRooms(append(out, Credit{}))
}

func (s *State) readReply(t *ticket, ev *Answer, m *proto.ReadReply, out []Action) []Action {
	if t.guess != nil {
		return s.guessed(t, ev, m, out)
	}
	if s.tickets[t.ref] != t { // canceled
		return out
	}
	if err := s.readError(t, ev, m); err != nil {
		return s.complete(t.ref, err, out)
	}
	t.filling = true
	return append(out, Fill{t.ref})
}

// readError is the error of an answer to a read; nil: the elements follow.
func (s *State) readError(t *ticket, ev *Answer, m *proto.ReadReply) error {
	switch {
	case s.failure.err != nil:
		return s.failure.err
	case m.Status.GetKind() != 0:
		return s.steps.of(m.Status, s.explain)
	case ev.Bytes != t.bytes:
		text := fmt.Sprintf("BUG: the worker answered a read of %d bytes with %d bytes. Please report this.",
			t.bytes, ev.Bytes)
		return errors.New(text)
	}
	return nil
}

func (s *State) filled(ev Filled, out []Action) []Action {
	if _, ok := ev.Ticket.(Guess); ok {
		return s.guessFilled(ev, out)
	}
	t := s.tickets[ev.Ticket]
	switch {
	case t == nil || !t.filling:
		return out
	case ev.OK:
		return s.complete(ev.Ticket, nil, out)
	case s.why == nil: // the next worker is asked again
		t.filling, s.asked[t.seq] = false, t
		return out
	}
	return s.complete(ev.Ticket, s.why, out)
}

// over ends a question that needs only the status of its answer.
func (s *State) over(t *ticket, status *proto.Status, out []Action) []Action {
	switch {
	case s.tickets[t.ref] != t: // canceled
		return out
	case s.failure.err != nil:
		return s.complete(t.ref, s.failure.err, out)
	case status.GetKind() != 0:
		return s.complete(t.ref, s.steps.of(status, s.explain), out)
	}
	return s.complete(t.ref, nil, out)
}

// fetching takes a report about a Fetch, whose last one ends its ticket. A Fetch is not in the line of answers: others
// are answered meanwhile.
func (s *State) fetching(seq uint64, m *proto.Fetching, out []Action) []Action {
	t := s.asked[seq]
	switch {
	case t == nil || t.what != transport.Fetch:
		return append(out, Disconnect{fmt.Errorf("the worker reported about fetch %d, which there is not", seq)})
	case !m.End:
		return out
	}
	delete(s.asked, seq)
	return s.over(t, m.Status, out)
}

// stateReply takes the answer to an Ask, a checkpoint or a Restore.
func (s *State) stateReply(seq uint64, m *proto.StateReply, out []Action) []Action {
	h := &s.history
	if seq == h.restoring && s.line.isNext(seq) {
		s.line.pop()
		return s.restoredReply(m, out)
	}
	t := s.asked[seq]
	if t == nil || !isQuestion(t.what) || !s.line.isNext(seq) {
		return append(out, Disconnect{fmt.Errorf("the worker answered question %d, which was not the next", seq)})
	}
	s.line.pop()
	delete(s.asked, seq)
	if seq == h.asked {
		return s.checkpointed(seq, t, m, out)
	}
	if t.what == transport.Load && h.on && h.asked == 0 && !h.pressed {
		h.pressed = true // a new worker could not repeat the Load: what it has found may be gone
		out = s.submit(Checkpoint{}, out)
	}
	return s.over(t, m.Status, out)
}

// isQuestion says whether a StateReply may answer frames of a type.
func isQuestion(t transport.Type) bool {
	return t != transport.Read && t != transport.Sync && t != transport.Fetch
}
