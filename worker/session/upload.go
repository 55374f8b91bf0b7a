// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"slices"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// maxArriving bounds the uploads of a session that arrive in pieces at the same time. A client sends one after the
// other, so there are more only if submissions of several threads are mixed.
const maxArriving = 1024

// arriving is an upload that arrives in pieces, by the sequence number of its Begin.
type arriving struct {
	storage, bytes uint64
	dst            []byte // nil: the upload has failed, and the pieces are discarded
	at             uint64 // bytes that have arrived
	err            error

	offered bool       // the client has sent an Offer
	sourced bool       // copying reads a file that is fetched
	copying *copying   // what the worker has kept is read; pieces are discarded
	keeping *recording // the bytes are being kept
}

// upload makes a storage of an upload in one frame.
func (s *session) upload(h transport.Header) error {
	var m proto.Upload
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	if m.Storage == 0 || m.Bytes != h.Payload {
		return faultf("An upload to storage %d says %d bytes and has %d.", m.Storage, m.Bytes, h.Payload)
	}
	if err := s.fill(m.Storage, m.Bytes, s.c.ReadBody); err != nil {
		return err
	}
	return s.c.Discard()
}

// fill makes a storage and calls read to fill it. fill returns an error of read; an error of the executor poisons the
// storage instead.
func (s *session) fill(id, bytes uint64, read func(dst []byte) error) error {
	dst, err := s.x.UploadBegin(id, bytes)
	if err == nil && bytes > 0 {
		if err := read(dst); err != nil {
			return err
		}
	}
	if err == nil {
		err = s.x.UploadEnd(id)
	}
	return s.uploaded(id, err)
}

// uploaded poisons a storage whose upload has failed, unless the client is to blame.
func (s *session) uploaded(id uint64, err error) error {
	if err != nil {
		if e := asError(err); e.Kind == proto.ErrValue {
			return faultf("An upload to storage %d: %s", id, e.Text)
		}
		s.x.Poison([]uint64{id}, asError(err))
	}
	return nil
}

// begin makes memory for an upload whose bytes come in pieces.
func (s *session) begin(h transport.Header) error {
	var m proto.Upload
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	switch {
	case m.Storage == 0 || m.Bytes == 0 || m.Bytes > transport.MaxBody:
		return faultf("An upload in pieces to storage %d has %d bytes.", m.Storage, m.Bytes)
	case len(s.arriving) == maxArriving:
		return faultf("%d uploads arrive at the same time.", maxArriving)
	case s.arriving[h.Seq] != nil:
		return faultf("Two uploads have the number %d.", h.Seq)
	}
	a := &arriving{storage: m.Storage, bytes: m.Bytes}
	a.dst, a.err = s.x.UploadBegin(m.Storage, m.Bytes)
	if a.err != nil && asError(a.err).Kind == proto.ErrValue {
		return s.uploaded(m.Storage, a.err)
	}
	if s.arriving == nil {
		s.arriving = map[uint64]*arriving{}
	}
	s.arriving[h.Seq] = a
	return nil
}

// piece takes a piece of an upload. The last one makes the storage.
func (s *session) piece(h transport.Header) error {
	a := s.arriving[h.Seq]
	switch {
	case a == nil:
		return faultf("A piece belongs to upload %d, which does not arrive.", h.Seq)
	case h.Payload == 0:
		return faultf("A piece of an upload has no bytes.")
	case a.copying != nil: // it was sent before the client knew
		return s.c.Discard()
	}
	n, err := s.pieceBytes(h)
	switch {
	case err != nil:
		return err
	case n > a.bytes-a.at:
		return faultf("A piece of %d bytes belongs to an upload that lacks %d.", n, a.bytes-a.at)
	case a.err != nil:
		err = s.c.Discard()
	case n != h.Payload:
		err = s.expand(a.dst[a.at:a.at+n], h.Payload)
	default:
		err = s.c.ReadBody(a.dst[a.at : a.at+n])
	}
	a.at += n
	if err != nil {
		return err
	}
	a.keeping.arrived(a.at)
	if a.at < a.bytes {
		return nil
	}
	return s.arrived(h.Seq, a)
}

// pieceBytes is how many bytes of its upload a piece has.
func (s *session) pieceBytes(h transport.Header) (uint64, error) {
	if h.Meta == 0 {
		return h.Payload, nil
	}
	var m proto.Piece
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return 0, err
	}
	if m.Bytes == 0 {
		return h.Payload, nil
	}
	if m.Bytes <= h.Payload || m.Bytes > transport.MaxExpanded {
		return 0, faultf("A compressed piece of %d bytes stands for %d.", h.Payload, m.Bytes)
	}
	return m.Bytes, nil
}

// expand reads a compressed piece, of fewer bytes than dst.
func (s *session) expand(dst []byte, bytes uint64) error {
	if uint64(cap(s.compressed)) < bytes {
		s.compressed = make([]byte, bytes)
	}
	body := s.compressed[:bytes]
	if err := s.c.ReadBody(body); err != nil {
		return err
	}
	if err := s.expander.Expand(dst, body); err != nil {
		return faultf("A piece of an upload: %v.", err)
	}
	return nil
}

// arrived ends an upload whose bytes are all there.
func (s *session) arrived(seq uint64, a *arriving) error {
	delete(s.arriving, seq)
	if a.keeping != nil {
		a.keeping.complete()
	}
	if a.err == nil {
		a.err = s.x.UploadEnd(a.storage)
	}
	return s.uploaded(a.storage, a.err)
}

// arrives says whether one of these storages arrives. A client that obeys the protocol does not use it.
func (s *session) arrives(ids []uint64) bool {
	for _, a := range s.arriving {
		if slices.Contains(ids, a.storage) {
			return true
		}
	}
	return false
}
