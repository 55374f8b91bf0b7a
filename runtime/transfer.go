// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/trace"
)

// copyUploads is the size up to which the bytes of an upload are copied. More bytes are sent from the caller's memory
// while the call waits.
const copyUploads = 32 << 20

// upload is a new storage and its bytes.
type upload struct {
	storage uint64
	data    []byte
	by      *charge
	shared  *Shared // nil: the bytes are not in shared memory
	free    func()  // gives data back; may be nil
	pieces  *pieces // nil: it is not sent in pieces
	from    *origin // nil: the worker cannot find the bytes elsewhere
	counted bool    // by uploading
}

func (u *upload) release() {
	if u.pieces != nil {
		u.pieces.end()
	}
	if u.free != nil {
		u.free()
	}
}

// keep copies bytes that are not the session's, so that they can be sent again after their owner has changed them.
func (u *upload) keep() {
	if u.free != nil && u.shared == nil {
		return // upload has copied them
	}
	data, free := copyOut(u.data)
	u.release()
	u.data, u.free, u.shared = data, free, nil
}

// upload makes storage id with these bytes. Up to copyUploads bytes are copied, and the ticket has ended unless too
// many bytes wait already; more are sent from data itself, until the ticket has ended.
func (s *session) upload(id uint64, data []byte, by *charge) *Ticket {
	n := uint64(len(data))
	s.metrics.uploaded(n, by)
	s.uploads(n)
	u, t := &upload{storage: id, data: data, by: by, from: s.originOf(data), counted: true}, s.ticket(by)
	ev := core.Upload{Upload: u, Ticket: t, Storage: id, Bytes: n, From: core.Borrowed}
	if n > copyUploads {
		t.sends = true
	} else {
		u.data, u.free = copyOut(data)
		ev = s.copied(u, t)
	}
	_ = s.submit(ev) // if the session has ended, so has the ticket
	return t
}

// copied is the event of an upload whose bytes are the session's.
func (*session) copied(u *upload, t *Ticket) core.Upload {
	return core.Upload{Upload: u, Ticket: t, Storage: u.storage, Bytes: uint64(len(u.data)), From: core.Copied}
}

// read begins a read of a view into dst.
func (s *session) read(v View, dst []byte, by *charge) (*Ticket, error) {
	t := s.ticket(by)
	ev, err := t.read(v, dst)
	if err != nil {
		return nil, err
	}
	return s.begin(t, ev)
}

// read makes t the ticket of a read.
func (t *Ticket) read(v View, dst []byte) (core.Read, error) {
	t.view, t.dst = v, dst
	_, err := v.Bytes()
	if err == nil {
		t.session.downloading.reads(t)
	}
	ev := core.Read{Ticket: t, Storage: v.Storage, Bytes: uint64(len(dst))}
	if err == nil && ev.Bytes <= core.MaxGuessBytes && !t.session.settings.NoGuesses && !v.Ahead {
		ev.View = v.text()
	}
	return ev, err
}

// message is the view's message.
func (v *View) message() *proto.Read {
	return &proto.Read{Storage: v.Storage, Dtype: uint32(v.DType), Sizes: v.Sizes, Strides: v.Strides, Offset: v.Offset}
}

// text is the view without its storage, as text that equal views have in common.
func (v *View) text() string {
	m := v.message()
	m.Storage = 0
	b, err := protobuf.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic("BUG: a read does not encode: " + err.Error())
	}
	return string(b)
}

// guessMessage is the message of a guess.
func guessMessage(g core.Guess) *proto.Read {
	m := new(proto.Read)
	if err := protobuf.Unmarshal([]byte(g.View), m); err != nil {
		panic("BUG: a guess does not decode: " + err.Error())
	}
	m.Storage = g.Storage
	return m
}

// sync begins a wait for all that was submitted.
func (s *session) sync(at trace.Place) (*Ticket, error) {
	t := s.ticket(s.metrics.bill.at(at))
	return s.begin(t, t.sync(at))
}

// sync makes t the ticket of a wait for all that was submitted. Without a place it is not the user's.
func (t *Ticket) sync(at trace.Place) core.Sync {
	t.all = at != trace.Place{}
	return core.Sync{Ticket: t}
}

// room begins a wait until fewer traces are under way than the credits allow.
func (s *session) room(by *charge) (*Ticket, error) {
	t := s.ticket(by)
	return s.begin(t, core.Room{Ticket: t})
}

// begin submits a question. It fails if the session has ended.
func (s *session) begin(t *Ticket, ev core.Event) (*Ticket, error) {
	if gone := s.submit(ev); gone != nil {
		s.downloading.ended(t)
		return nil, gone
	}
	return t, nil
}
