// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	pb "github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// upload makes storage id with these bytes. Up to copyUploads bytes are copied, and the call returns at once unless too
// much is waiting already; more are sent from data itself before the call returns.
func (s *session) upload(id uint64, data []byte, by *charge) error {
	n := uint64(len(data))
	s.metrics.uploaded(n, by)
	if n > copyUploads {
		sent := make(chan struct{})
		if err := s.enqueue(by, always, func() { defer close(sent); s.sendUpload(id, data, by) }); err != nil {
			return err
		}
		<-sent // always comes: when the session ends its connection closes under the send
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.gone != nil {
			return s.gone
		}
		return nil
	}
	room := func() bool {
		if s.uploads+n > maxUploadBytes {
			return false
		}
		s.uploads += n
		return true
	}
	held, release := copyOut(data)
	err := s.enqueue(by, room, func() {
		s.sendUpload(id, held, by)
		release()
		s.mu.Lock()
		s.uploads -= n
		s.changed.Broadcast()
		s.mu.Unlock()
	})
	if err != nil {
		release()
	}
	return err
}

func (s *session) sendUpload(id uint64, data []byte, by *charge) {
	if s.alive() {
		s.seq++
		_, _ = s.write(by, transport.Upload, s.seq, &pb.Upload{Storage: id, Bytes: uint64(len(data))}, data)
	}
}

// read begins a read of a view into dst.
func (s *session) read(v View, dst []byte, by *charge) (*Ticket, error) {
	t := newTicket(s.metrics, by, dst)
	return t, s.enqueue(by, always, s.readJob(t, v))
}

// readJob is the sender's part of a read.
func (s *session) readJob(t *Ticket, v View) func() {
	return func() {
		s.reads = 0
		if _, err := v.Bytes(); err != nil {
			t.end(err)
			return
		}
		if why := s.poisoned[v.Storage]; why != nil {
			s.failures.report(why)
			t.end(why)
			return
		}
		s.ask(t, transport.Read, &pb.Read{Storage: v.Storage, Dtype: uint32(v.DType), Sizes: v.Sizes, Strides: v.Strides, Offset: v.Offset})
	}
}

// sync begins a wait for all that was submitted.
func (s *session) sync(by *charge) (*Ticket, error) {
	t := newTicket(s.metrics, by, nil)
	return t, s.enqueue(by, always, s.syncJob(t))
}

// syncJob is the sender's part of a sync.
func (s *session) syncJob(t *Ticket) func() {
	return func() { s.ask(t, transport.Sync, &pb.Sync{}) }
}

// ask sends a question whose answer ends a ticket.
func (s *session) ask(t *Ticket, what transport.Type, m message) {
	s.seq++
	s.mu.Lock()
	gone := s.gone
	if gone == nil {
		s.tickets[s.seq] = t
	}
	s.mu.Unlock()
	if gone != nil {
		t.end(gone)
		return
	}
	s.metrics.roundTrips.Add(1)
	t.by.roundTrips.Add(1)
	_, _ = s.write(t.by, what, s.seq, m, nil) // an error has ended all tickets
}
