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
	if s.why != nil {
		return out // what the answer was for has ended with the session
	}
	switch m := ev.Message.(type) {
	case *proto.Done:
		return s.done(ev, m, out)
	case *proto.ReadReply:
		return s.readReply(ev, m, out)
	case *proto.SyncReply:
		return s.syncReply(ev.Seq, m, out)
	case *proto.Uploaded:
		u, ok := s.reading[ev.Seq]
		if !ok {
			return append(out, Disconnect{fmt.Errorf("the worker answered upload %d, which was not waiting", ev.Seq)})
		}
		delete(s.reading, ev.Seq)
		return s.uploaded(u, out)
	case *proto.StateReply:
		return s.stateReply(ev.Seq, m, out)
	}
	return append(out, Disconnect{fmt.Errorf("the worker sent a %T, which only clients send", ev.Message)})
}

// done ends a call. A worker that has forgotten the call's program waits for the program and the call, and keeps all
// later frames back.
func (s *State) done(ev *Answer, m *proto.Done, out []Action) []Action {
	seq := ev.Seq
	call, ok := s.calls[seq]
	if again, repeats := s.history.repeats[seq]; repeats && !ok {
		if m.UnknownProgram {
			return resend(seq, again, out)
		}
		delete(s.history.repeats, seq) // its first answer has counted
		return out
	}
	if !ok {
		return append(out, Disconnect{fmt.Errorf("the worker answered call %d, which was not waiting", seq)})
	}
	if m.UnknownProgram {
		if s.history.stage != settled { // the next worker gets the program anyway
			return out
		}
		return resend(seq, call, out)
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

// resend sends the program and the call that a worker has asked for.
func resend(seq uint64, call Ref, out []Action) []Action {
	return append(out, Send{Type: transport.Program, Seq: seq, Ref: call, Again: true},
		Send{Type: transport.Call, Seq: seq, Ref: call, Again: true})
}

func (s *State) readReply(ev *Answer, m *proto.ReadReply, out []Action) []Action {
	t := s.asked[ev.Seq]
	delete(s.asked, ev.Seq)
	switch {
	case t == nil || s.tickets[t.ref] != t: // canceled
		return out
	case s.failure.err != nil:
		return s.complete(t.ref, s.failure.err, out)
	case m.Status.GetKind() != 0:
		return s.complete(t.ref, s.steps.of(m.Status, s.explain), out)
	case ev.Bytes != t.bytes:
		text := fmt.Sprintf("BUG: the worker answered a read of %d bytes with %d bytes. Please report this.",
			t.bytes, ev.Bytes)
		return s.complete(t.ref, errors.New(text), out)
	}
	t.filling = true
	return append(out, Fill{t.ref})
}

func (s *State) filled(ev Filled, out []Action) []Action {
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

func (s *State) syncReply(seq uint64, m *proto.SyncReply, out []Action) []Action {
	t := s.asked[seq]
	delete(s.asked, seq)
	switch {
	case t == nil || s.tickets[t.ref] != t: // canceled
		return out
	case s.failure.err != nil:
		return s.complete(t.ref, s.failure.err, out)
	case m.Status.GetKind() != 0:
		return s.complete(t.ref, s.steps.of(m.Status, s.explain), out)
	}
	return s.complete(t.ref, nil, out)
}

// stateReply takes the answer to an Ask, a checkpoint or a Restore.
func (s *State) stateReply(seq uint64, m *proto.StateReply, out []Action) []Action {
	switch seq {
	case s.history.asked:
		return s.checkpointed(seq, m, out)
	case s.history.restoring:
		return s.restoredReply(m, out)
	}
	t := s.asked[seq]
	delete(s.asked, seq)
	switch {
	case t == nil || s.tickets[t.ref] != t: // canceled
		return out
	case s.failure.err != nil:
		return s.complete(t.ref, s.failure.err, out)
	case m.Status.GetKind() != 0:
		return s.complete(t.ref, s.steps.of(m.Status, s.explain), out)
	}
	return s.complete(t.ref, nil, out)
}
