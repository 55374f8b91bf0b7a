// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// LargeUpload bounds the bytes of an upload that is sent in one frame. Larger ones are sent in pieces, between which
// other submissions are sent: none waits for more than a piece. A submission that uses the storage waits for the last
// piece, and what was submitted after it waits too.
const LargeUpload = 1 << 20

// largeUpload is an upload that is being sent in pieces.
type largeUpload struct {
	Upload
	seq   uint64
	whole bool // all pieces were sent
	held  bool // no piece is sent before the worker has answered the Offer
	offer offer
}

// offer is how far the offer of a large upload's bytes has come. The worker may have kept the same bytes of an earlier
// upload: then it takes those, and no more pieces are sent.
type offer uint8

const (
	noOffer offer = iota
	hashed        // the hash of the bytes is known; the Offer is to be sent
	offered       // the worker has not answered
	found         // the worker reads its bytes, and needs no pieces
	taken         // its bytes are right; a Settle ends the upload
	damaged       // they are not; a Settle goes back to the pieces after the Offer
	spent         // the worker needs the pieces
)

// maxHeld bounds the Offers of held uploads that have no final answer: a worker fetches for so many uploads at once.
const maxHeld = 128

// ready says whether the next frame of the upload can be sent, while so many held uploads are offered.
func (l *largeUpload) ready(offers int) bool {
	switch l.offer {
	case hashed:
		return !l.held || offers < maxHeld
	case taken, damaged:
		return true
	case found:
		return false
	case noOffer, offered:
		return !l.whole && !l.held
	}
	return !l.whole
}

// piece is the sender's submission while it sends a piece.
type piece struct{ largeUpload }

// beginLarge tells the worker of a large upload, whose pieces follow.
func (s *State) beginLarge(u Upload, out []Action) []Action {
	s.current = nil
	l := &largeUpload{Upload: u, seq: s.nextSeq()}
	begin := Send{Type: transport.Begin, Seq: l.seq, Ref: u.Upload, Keep: s.history.on}
	out = append(out, begin)
	if s.history.on { // a new worker gets all of it at once
		whole := Send{Type: transport.Upload, Seq: l.seq, Ref: u.Upload, Keep: true}
		out = s.keep(sentFrame{Send: whole, bytes: u.Bytes}, out)
	}
	s.large = append(s.large, l)
	return out
}

// readyLarge is the oldest large upload of which something can be sent; nil: there is none.
func (s *State) readyLarge() *largeUpload {
	offers := 0
	for _, l := range s.large {
		if l.held && (l.offer == offered || l.offer == found) {
			offers++
		}
	}
	for _, l := range s.large {
		if l.ready(offers) {
			return l
		}
	}
	return nil
}

// sendLarge sends the next frame of a large upload.
func (s *State) sendLarge(l *largeUpload, out []Action) []Action {
	send := Send{Seq: l.seq, Ref: l.Upload.Upload}
	switch l.offer {
	case hashed:
		l.offer = offered
		send.Type = transport.Offer
	case taken:
		send.Type = transport.Settle
		return s.endLarge(l, append(out, send))
	case damaged:
		l.offer, l.whole = spent, false
		send.Type, send.Again = transport.Settle, true
	default:
		s.current = piece{*l}
		send.Type = transport.Piece
	}
	return append(out, send)
}

// hash takes the report that the hash of a large upload is known.
func (s *State) hash(ev Hashed, out []Action) []Action {
	if l := s.largeOf(ev.Seq); l != nil && l.offer == noOffer && !l.whole {
		l.offer = hashed
		return s.wake(out)
	}
	return out
}

// offeredReply takes the worker's answer to an Offer.
func (s *State) offeredReply(seq uint64, m *proto.Offered, out []Action) []Action {
	l := s.largeOf(seq)
	switch {
	case l == nil:
	case l.offer == offered && m.Found == proto.Offered_ABSENT && l.whole:
		return s.wake(s.endLarge(l, out))
	case l.offer == offered && m.Found == proto.Offered_ABSENT:
		l.offer = spent
		return s.wake(out)
	case l.offer == offered && m.Found == proto.Offered_FOUND:
		l.offer = found
		return out
	case l.offer == found && m.Found == proto.Offered_TAKEN:
		l.offer = taken
		return s.wake(out)
	case l.offer == found && m.Found == proto.Offered_DAMAGED:
		l.offer = damaged
		return s.wake(out)
	}
	return append(out, Disconnect{fmt.Errorf("the worker answered offer %d with %v, which was not due", seq, m.Found)})
}

func (s *State) largeOf(seq uint64) *largeUpload {
	for _, l := range s.large {
		if l.seq == seq {
			return l
		}
	}
	return nil
}

func (s *State) endLarge(l *largeUpload, out []Action) []Action {
	s.large = slices.DeleteFunc(s.large, func(o *largeUpload) bool { return o == l })
	return s.uploaded(l.Upload, out)
}

// pieceSent ends an upload after its last piece, unless an offer has no answer yet. It also does so if the session has
// ended, or if another worker will get all bytes again.
func (s *State) pieceSent(p piece, ev Sent, out []Action) []Action {
	l := s.largeOf(p.seq)
	switch {
	case l == nil || !ev.OK || s.why != nil:
		s.large = slices.DeleteFunc(s.large, func(o *largeUpload) bool { return o == l })
		return s.uploaded(p.Upload, out)
	case ev.Held:
		l.held = true
		return out
	case ev.More:
		return out
	}
	l.whole = true
	if l.offer == noOffer || l.offer == hashed || l.offer == spent {
		return s.endLarge(l, out)
	}
	return out
}

// dropLarge ends the large uploads that will not be sent, except the one whose piece is being sent.
func (s *State) dropLarge(out []Action) []Action {
	p, _ := s.current.(piece)
	for _, l := range s.large {
		if l.seq != p.seq {
			out = s.uploaded(l.Upload, out)
		}
	}
	s.large = nil
	return out
}

// isLarge says whether one of these storages is still being uploaded.
func (s *State) isLarge(lists ...[]uint64) bool {
	for _, l := range s.large {
		for _, ids := range lists {
			if slices.Contains(ids, l.Storage) {
				return true
			}
		}
	}
	return false
}

// holdsBack says whether the worker must not see a trace before the end of a large upload.
func (s *State) holdsBack(ev *Prepared) bool {
	return len(s.large) > 0 && s.isLarge(ev.Storages, ev.Frees, ev.Unused)
}

// canTake says whether the next submission of the queue can be sent. What a trace uses is known when it is prepared.
func (s *State) canTake() bool {
	if !s.pressed() || s.blocked != nil {
		return false
	}
	if len(s.large) == 0 {
		return true
	}
	switch ev := s.queue.items[s.queue.first].(type) {
	case Read:
		return !s.isLarge([]uint64{ev.Storage})
	case Sync, Mark, Ask, Checkpoint:
		return false
	}
	return true
}
