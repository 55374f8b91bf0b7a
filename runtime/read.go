// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/core"
)

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
