// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"errors"
	"fmt"
	"io"

	pb "github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// receive is the receiver goroutine: it takes the worker's answers until the connection ends.
func (s *session) receive(conn *transport.Conn) {
	defer func() {
		if r := recover(); r != nil {
			s.lose(bug(r))
		}
	}()
	for {
		h, err := conn.Next()
		stepAside(&s.credits.Core)
		if err == nil {
			n := uint64(h.Meta) + h.Payload + frameHeader
			s.metrics.received(n, s.payer(h.Seq))
			s.settings.Dump.Frame(s.index, false, h.Type, h.Seq, n)
			err = s.answer(conn, h)
		}
		if err != nil {
			s.lost(err)
			return
		}
	}
}

// payer is whom an answer is charged to.
func (s *session) payer(seq uint64) *charge {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.pending[seq]; c != nil {
		return c.by
	}
	if t := s.tickets[seq]; t != nil {
		return t.by
	}
	return nil
}

func (s *session) answer(conn *transport.Conn, h transport.Header) error {
	switch h.Type {
	case transport.Done:
		m := new(pb.Done)
		if err := conn.Meta(m); err != nil {
			return err
		}
		return s.done(h.Seq, m)
	case transport.ReadReply:
		m := new(pb.ReadReply)
		if err := conn.Meta(m); err != nil {
			return err
		}
		return s.readReply(conn, h, m)
	case transport.SyncReply:
		m := new(pb.SyncReply)
		if err := conn.Meta(m); err != nil {
			return err
		}
		s.syncReply(h.Seq, m)
		return nil
	case transport.Uploaded:
		if err := conn.Meta(new(pb.Uploaded)); err != nil {
			return err
		}
		if end := s.takeReading(h.Seq); end != nil {
			end()
		} else if s.alive() {
			return fmt.Errorf("the worker answered upload %d, which was not waiting", h.Seq)
		}
		return nil
	case transport.Hello:
		m := new(pb.Hello)
		if err := conn.Meta(m); err != nil {
			return err
		}
		return refused(m.Error) // its last word
	}
	return fmt.Errorf("the worker sent a %v, which only clients send", h.Type)
}

// done ends a call: its failed steps become errors of the user's lines. A worker that has dropped the program waits
// for it and the call, with all that came later waiting behind.
func (s *session) done(seq uint64, m *pb.Done) error {
	s.mu.Lock()
	c := s.pending[seq]
	if c == nil {
		gone := s.gone
		s.mu.Unlock()
		if gone != nil {
			return nil
		}
		return fmt.Errorf("the worker answered call %d, which was not waiting", seq)
	}
	if m.UnknownProgram {
		s.mu.Unlock()
		s.metrics.programsResent.Add(1)
		if err := s.sendProgram(seq, c.variant, c.by); err != nil {
			return err
		}
		_, err := s.write(c.by, transport.Call, seq, c.meta, nil)
		return err
	}
	delete(s.pending, seq)
	s.pace.done()
	s.credits.Allowed.Store(int64(s.pace.ahead()))
	s.credits.OnWay.Add(-1)
	s.admit()
	s.mu.Unlock()
	s.metrics.kernels(m.Kernels)
	if text := m.Kernels.GetWarning(); text != "" {
		s.log.Warn(text)
	}
	if m.Failed > 0 {
		s.metrics.errors.Add(uint64(m.Failed))
		c.inOrder(m.Errors)
		for _, status := range m.Errors {
			s.failures.addStep(seq, status.Step, s.explain(c, status))
		}
		s.failures.keep(c, int(m.Failed) > len(m.Errors))
	}
	return nil
}

// take removes and returns the ticket of an answer, nil if its session has ended.
func (s *session) take(seq uint64) *Ticket {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.tickets[seq]
	delete(s.tickets, seq)
	return t
}

func (s *session) readReply(conn *transport.Conn, h transport.Header, m *pb.ReadReply) error {
	t := s.take(h.Seq)
	if t == nil {
		return conn.Discard()
	}
	if st := m.Status; st.GetKind() != 0 {
		t.end(s.poisonOf(st))
		return nil
	}
	took, err := t.fill(h.Payload, func() { conn.Close() }, conn.ReadBody)
	switch {
	case err != nil:
		s.lost(err) // first, so that the ticket can say it
		t.end(s.why())
		return err
	case !took && h.Payload > 0:
		t.end(bug(fmt.Sprintf("the worker answered a read with %d bytes, which are not what was asked for", h.Payload)))
		return conn.Discard()
	}
	t.end(nil)
	return nil
}

func (s *session) syncReply(seq uint64, m *pb.SyncReply) {
	t := s.take(seq)
	switch {
	case t == nil:
	case m.Status.GetKind() != 0:
		t.end(s.poisonOf(m.Status))
	default:
		if e := s.failures.oldest(); e != nil {
			t.end(e)
		} else {
			t.end(nil)
		}
	}
}

func (s *session) why() *Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// ended says whether an error only means that the stream is over.
func streamEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, transport.ErrFrameTruncated)
}
