// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// simOffer is a large upload whose bytes may be offered.
type simOffer struct {
	ref   Ref
	sent  bool
	held  bool                 // no piece is sent before the worker's answer
	known bool                 // the hash
	left  int                  // pieces that were left at the Offer
	reply *proto.Offered_Found // the worker's last answer
}

// open says whether the upload needs an answer of the worker before it ends.
func (o *simOffer) open() bool {
	return o.sent && (o.reply == nil || *o.reply != proto.Offered_ABSENT)
}

// hashed reports the hash of a large upload, which may have ended.
func (s *simulation) hashed() {
	seqs := slices.Sorted(maps.Keys(s.offers))
	if len(seqs) > 0 {
		s.hashes(seqs[s.IntN(len(seqs))])
	}
}

func (s *simulation) hashes(seq uint64) {
	s.offers[seq].known = true
	s.step(Hashed{seq})
}

// hashesHeld reports the hash of an upload that is held.
func (s *simulation) hashesHeld() bool {
	for _, seq := range slices.Sorted(maps.Keys(s.offers)) {
		if o := s.offers[seq]; o.held && !o.known {
			s.hashes(seq)
			return true
		}
	}
	return false
}

// holds says whether the sender, instead of a piece, waits for the worker's answer to an offer that follows.
func (s *simulation) holds(piece Send) bool {
	o := s.offers[piece.Seq]
	if o == nil || o.sent || o.held || s.IntN(3) > 0 {
		return false
	}
	o.held = true
	return true
}

// largeFrame takes a frame of a large upload.
func (s *simulation) largeFrame(a Send) {
	s.Helper()
	o := s.offers[a.Seq]
	require.NotNil(s, o)
	require.Equal(s, o.ref, a.Ref)
	storage := s.uploads[a.Ref].Storage
	require.True(s, s.arriving[storage])
	switch a.Type {
	case transport.Piece:
		require.True(s, o.reply == nil || *o.reply == proto.Offered_ABSENT, "the worker needs no piece")
		require.True(s, !o.held || o.reply != nil, "the upload is held")
		require.GreaterOrEqual(s, s.pieces[a.Ref], 0)
		s.sending = a
	case transport.Offer:
		require.False(s, o.sent, "two offers of one upload")
		o.sent, o.left = true, s.pieces[a.Ref]
		s.frames = append(s.frames, a)
	case transport.Settle:
		require.NotNil(s, o.reply)
		if !a.Again {
			require.Equal(s, proto.Offered_TAKEN, *o.reply)
			delete(s.arriving, storage)
			delete(s.offers, a.Seq)
			return
		}
		require.Equal(s, proto.Offered_DAMAGED, *o.reply)
		s.pieces[a.Ref] = o.left
		*o.reply = proto.Offered_ABSENT
	}
}

// arrived ends an upload after its last piece, unless an offer is open.
func (s *simulation) arrived(a Send) {
	if o := s.offers[a.Seq]; o != nil && s.pieces[a.Ref] < 0 && !o.open() {
		delete(s.arriving, s.uploads[a.Ref].Storage)
	}
}

// answerOffer is the worker's answer to an Offer.
func (s *simulation) answerOffer(f Send) {
	s.answerFound(f.Seq, proto.Offered_Found(s.IntN(2)))
}

func (s *simulation) answerFound(seq uint64, found proto.Offered_Found) {
	o := s.offers[seq]
	o.reply = &found
	if s.sending.Seq != seq || s.sending.Type != transport.Piece {
		s.arrived(Send{Seq: seq, Ref: o.ref})
	}
	s.step(&Answer{Seq: seq, Message: &proto.Offered{Found: found}})
	if found == proto.Offered_FOUND {
		require.True(s, s.gone != nil || s.state.Waits(), "the worker must answer again")
	}
}

// takesOffered is the worker's second answer to an offer that has found something.
func (s *simulation) takesOffered() bool {
	for _, seq := range slices.Sorted(maps.Keys(s.offers)) {
		if o := s.offers[seq]; o.reply != nil && *o.reply == proto.Offered_FOUND {
			s.answerFound(seq, proto.Offered_TAKEN+proto.Offered_Found(s.IntN(2)))
			return true
		}
	}
	return false
}

// waitsForOffer says whether the sender may sleep although submissions wait: the worker has not answered an offer.
func (s *simulation) waitsForOffer() bool {
	for _, o := range s.offers {
		if o.held && !o.known || o.open() && (o.reply == nil || *o.reply == proto.Offered_FOUND) {
			return true
		}
	}
	return false
}
