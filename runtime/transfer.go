// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/core"
)

// CopyUploads is the size up to which the bytes of an upload are copied. More bytes are sent from the caller's memory
// while it waits.
const CopyUploads = 32 << 20

// UsedUploads bounds the bytes of uploads under way for which no caller waits.
const UsedUploads = core.MaxUploadBytes

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

// upload is the submission of an upload that was left in the mailbox. Up to CopyUploads bytes of a caller that waits
// are copied, and its ticket ends unless too many bytes wait already; more are sent from its memory, until the ticket
// ends. The ticket of bytes in shared memory ends before they are read. If the worker accepts no blocks, they are sent.
func (s *session) upload(t *Ticket, item *Item) core.Upload {
	n := uint64(len(item.Data))
	s.metrics.uploaded(n, t.by)
	u := &upload{storage: item.Upload, data: item.Data, by: t.by, shared: item.Shared, free: item.Release}
	ev := core.Upload{Upload: u, Ticket: t, Storage: u.storage, Bytes: n, From: core.Copied}
	switch {
	case item.Shared != nil:
		ev.From, ev.Block = core.Shared, item.Shared.Block
		return ev
	case item.Release == nil && n > CopyUploads:
		ev.From, t.sends = core.Borrowed, true
	case item.Release == nil:
		u.data, u.free = copyOut(u.data)
	}
	if n > core.SmallUpload {
		s.uploads(n)
		u.from, u.counted = s.originOf(item.Source, len(item.Data)), true
	}
	return ev
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
