// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/trace"
)

// sendFrame performs core.Send.
func (s *session) sendFrame(a core.Send) {
	switch a.Type {
	case transport.Program:
		s.sendProgram(a, a.Ref.(*call))
	case transport.Call:
		s.sendCall(a, a.Ref.(*call))
	case transport.Free:
		s.write(a, a.Ref.(*closedTrace).by, &proto.FreeStorages{Storages: a.Storages}, nil)
	case transport.Fail:
		e := asError(a.Err)
		s.write(a, a.Ref.(*closedTrace).by, &proto.Fail{Status: &proto.Status{Kind: int32(e.Kind), Text: e.Text},
			Storages: a.Storages}, nil)
	case transport.Resume:
		s.write(a, nil, &proto.Resume{}, nil)
	case transport.Unshare:
		s.write(a, nil, &proto.Unshare{Block: a.Block}, nil)
	case transport.Read:
		if g, ok := a.Ref.(core.Guess); ok {
			s.metrics.Guesses.Add(1)
			s.hold(a, s.metrics.Bill.At(trace.Place{}), guessMessage(g), nil)
			return
		}
		t := a.Ref.(*Ticket)
		s.sendQuestion(a, t, t.view.message())
	case transport.Sync:
		s.sendQuestion(a, a.Ref.(*Ticket), &proto.Sync{})
	case transport.Save, transport.Find, transport.Load, transport.Drop, transport.Names, transport.Pass:
		t := a.Ref.(*Ticket)
		s.sendQuestion(a, t, t.message)
	case transport.Fetch, transport.Unfetch:
		t := a.Ref.(*Ticket)
		s.sendQuestion(a, t, t.fetch.message(a))
	case transport.Take: // usually nobody waits for its answer
		t := a.Ref.(*Ticket)
		s.write(a, t.by, t.message, nil)
	case transport.Checkpoint:
		s.write(a, nil, &proto.Checkpoint{Session: s.name, Base: a.Base}, nil)
	case transport.Restore:
		s.write(a, nil, &proto.Restore{Session: s.name, At: a.Base}, nil)
	case transport.Share, transport.UploadFrom, transport.Upload, transport.Begin, transport.Piece, transport.Offer,
		transport.Settle:
		s.sendUpload(a, a.Ref.(*Upload))
	default:
		panic(fmt.Sprintf("BUG: the core sends a %v", a.Type))
	}
}

// sendProgram sends a program that the worker does not have.
func (s *session) sendProgram(a core.Send, c *call) {
	if a.Again {
		s.metrics.ProgramsResent.Add(1)
	}
	s.metrics.ProgramBytes.Add(s.write(a, c.by, &proto.Program{Key: c.variant.Key[:], Words: c.variant.Packed}, nil))
}

// sendCall sends a whole call, or its difference from the last call of the program. A worker that has forgotten the
// program gets the whole call.
func (s *session) sendCall(a core.Send, c *call) {
	m := c.meta
	if !a.Again {
		s.compiler.Called(c.variant)
		if c.notes != nil {
			s.profile.sends(c.notes, a.Seq)
		}
		m = differing(c.variant, a.Seq, m, s.worker)
	}
	if !a.Again && s.pace.dozes() { // the receiver sends a call again
		s.hold(a, c.by, m, nil)
	} else {
		s.write(a, c.by, m, nil)
	}
}

// differing is the message of a call, which becomes the variant's last. life is the number of the worker.
func differing(v *compile.Variant, seq uint64, m *proto.Call, life int) *proto.Call {
	send := m
	if v.Last != nil && v.LastLife == life {
		if delta, ok := proto.AppendDelta(nil, v.Last, m); ok {
			send = &proto.Call{Key: m.Key, Base: v.LastSeq, Delta: delta, Busy: m.Busy, Timed: m.Timed}
		}
	}
	v.Last, v.LastSeq, v.LastLife = m, seq, life
	return send
}

func (s *session) sendQuestion(a core.Send, t *Ticket, m protobuf.Message) {
	why := report.TripWait
	switch {
	case a.Type != transport.Read:
	case a.First:
		why = report.TripNew
	case len(t.dst) > core.MaxGuessBytes:
		why = report.TripLarge
	default:
		why = report.TripUnforeseen
	}
	if !t.view.Ahead {
		s.metrics.Asked(why, t.by)
	}
	s.write(a, t.by, m, nil)
}

// hold sends a frame in one message with the next one, or when the sender has nothing else to send.
func (s *session) hold(a core.Send, by *report.Charge, meta protobuf.Message, body []byte) {
	n := frameBytes(meta, body)
	s.frames.Add(1)
	s.settings.Dump.Frame(s.index, true, a.Type, a.Seq, n)
	s.metrics.Held(n, by)
	defer s.profile.frame(s.index, false, a.Type, n)()
	if err := s.conn.Hold(a.Type, a.Seq, meta, body); err != nil {
		s.notSent(fmt.Errorf("sending %v: %w", a.Type, err))
	}
}

// flushHeld sends the held frames.
func (s *session) flushHeld() {
	if s.conn == nil {
		return
	}
	sent, err := s.conn.Flush()
	if sent {
		s.metrics.MessagesSent.Add(1)
	}
	if err != nil {
		s.notSent(fmt.Errorf("sending: %w", err))
	}
}

// notSent ends the session because nothing can be sent. The receiver may be about to read the reason.
func (s *session) notSent(err error) {
	s.mu.Lock()
	gone := s.core.Gone()
	s.mu.Unlock()
	if gone == nil && streamEnded(err) {
		select {
		case <-s.received:
		case <-time.After(receiverWait):
		}
	}
	s.lost(s.worker, err)
}

// write sends a frame, and counts and returns its bytes. If that fails the session has ended, and it returns 0.
func (s *session) write(a core.Send, by *report.Charge, meta protobuf.Message, body []byte) uint64 {
	n := frameBytes(meta, body)
	s.frames.Add(1)
	// Count before the send: when the answer arrives, its receiver must find the frame counted.
	s.settings.Dump.Frame(s.index, true, a.Type, a.Seq, n)
	s.metrics.Sent(n, by)
	defer s.profile.frame(s.index, false, a.Type, n)()
	if err := s.conn.Send(a.Type, a.Seq, meta, body); err != nil {
		s.notSent(fmt.Errorf("sending %v: %w", a.Type, err))
		return 0
	}
	return n
}
