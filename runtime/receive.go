// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"errors"
	"fmt"
	"io"
	"syscall"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/report"
)

// receive is the receiver: it takes the worker's answers until the connection ends.
func (s *session) receive(conn *transport.Conn, life int, received chan struct{}) {
	defer close(received)
	defer s.guard()
	var actions []core.Action
	for {
		h, err := conn.Next()
		stepAside(&s.credits.Core)
		if err == nil {
			actions, err = s.answer(conn, life, h, actions[:0])
		}
		if err != nil {
			s.lost(life, err)
			return
		}
	}
}

// answer gives the core one frame of the worker. It uses the memory of actions, and returns it.
func (s *session) answer(conn *transport.Conn, life int, h transport.Header,
	actions []core.Action) ([]core.Action, error) {
	s.mu.Lock()
	waiting := s.core.Waiting(h.Seq)
	s.mu.Unlock()
	n := uint64(h.Meta) + h.Payload + frameHeader
	s.metrics.Received(n, payer(waiting))
	s.settings.Dump.Frame(s.index, false, h.Type, h.Seq, n)
	m, err := message(h.Type)
	if err == nil {
		err = conn.Meta(m)
	}
	if err != nil {
		return actions, err
	}
	switch m := m.(type) {
	case *proto.Hello:
		return actions, refused(m.Error) // the last frame of a worker that ends the session
	case *proto.StateReply:
		if t, ok := waiting.(*Ticket); ok {
			t.reply, t.found = m, h.Seq
		}
	case *proto.Fetching:
		if t, ok := waiting.(*Ticket); ok && t.fetch != nil {
			t.fetch.report(s, m)
		}
	case *proto.EndedReply:
		return actions, processEnded{m}
	case *proto.Done:
		if c, ok := waiting.(*call); ok && !m.UnknownProgram {
			s.account(c, life, m)
		}
	}
	s.answered = core.Answer{At: time.Since(s.began), Seq: h.Seq, Bytes: h.Payload, Message: m}
	actions = s.step(&s.answered, actions)
	for _, a := range actions {
		switch a := a.(type) {
		case core.Fill:
			err = s.fill(conn, life, a.Ticket)
		case core.Disconnect:
			return actions, a.Err
		default:
			s.perform(a)
		}
	}
	clear(actions)
	return actions, err
}

// processEnded is the last frame of a worker that has no other stream to say how the process of the session has ended.
type processEnded struct{ *proto.EndedReply }

func (processEnded) Error() string { return "the process of the session has ended" }

// payer is the charge for an answer to a call or a ticket; nil: no place in particular.
func payer(waiting core.Ref) *report.Charge {
	switch w := waiting.(type) {
	case *call:
		return w.by
	case *Ticket:
		return w.by
	}
	return nil
}

// message is an empty message of an answer's type.
func message(t transport.Type) (protobuf.Message, error) {
	switch t {
	case transport.Done:
		return new(proto.Done), nil
	case transport.ReadReply:
		return new(proto.ReadReply), nil
	case transport.SyncReply:
		return new(proto.SyncReply), nil
	case transport.Uploaded:
		return new(proto.Uploaded), nil
	case transport.StateReply:
		return new(proto.StateReply), nil
	case transport.Offered:
		return new(proto.Offered), nil
	case transport.Fetching:
		return new(proto.Fetching), nil
	case transport.Hello:
		return new(proto.Hello), nil
	case transport.EndedReply:
		return new(proto.EndedReply), nil
	}
	return nil, fmt.Errorf("the worker sent a %v, which only clients send", t)
}

// account adds a worker's report about a call to the metrics, before any waiter of the call continues.
func (s *session) account(c *call, life int, m *proto.Done) {
	s.metrics.Kernels(m.Kernels)
	if text := m.Kernels.GetWarning(); text != "" {
		s.log.Warn(text)
	}
	if m.Kernels.GetWrong() > 0 {
		s.log.Warn(s.wrongKernels(c, m.Kernels))
	}
	if c.notes != nil && m.Times != nil {
		s.profile.answer(c.notes, life, m.Times)
		s.bill(c, m.Times)
		s.showCall(c, m.Times)
	}
	if m.Failed > 0 {
		s.metrics.Errors.Add(uint64(m.Failed))
	}
}

// fill reads the bytes of an answer from the connection into the memory of the ticket's read, or of a guess.
func (s *session) fill(conn *transport.Conn, life int, ticket core.Ref) error {
	var data []byte
	at, ok := ticket.(*Ticket)
	if !ok {
		data = make([]byte, ticket.(core.Guess).Bytes)
		at = &Ticket{dst: data}
	}
	ended := s.profile.frame(s.index, true, transport.ReadReply, uint64(len(at.dst)))
	s.downloading.begins(at)
	err := conn.ReadCounted(at.dst, func(n int) { s.downloading.came(at, n) })
	ended()
	if err != nil {
		s.lost(life, err) // first, so that the ticket's error has the reason
	}
	s.do(core.Filled{Ticket: ticket, OK: err == nil, Data: data})
	return err
}

// streamEnded reports whether an error only means that the stream has ended.
func streamEnded(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, link.ErrUnknown) || errors.Is(err, transport.ErrFrameTruncated) ||
		errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}
