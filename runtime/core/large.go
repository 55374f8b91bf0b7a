// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"slices"

	"github.com/mycelya/mycelya/proto/transport"
)

// LargeUpload bounds the bytes of an upload that is sent in one frame. Larger ones are sent in pieces, between which
// other submissions are sent: none waits for more than a piece. A submission that uses the storage waits for the last
// piece, and what was submitted after it waits too.
const LargeUpload = 1 << 20

// largeUpload is an upload that is being sent in pieces.
type largeUpload struct {
	Upload
	seq uint64
}

// piece is the sender's submission while it sends a piece.
type piece struct{ largeUpload }

// beginLarge tells the worker of a large upload, whose pieces follow.
func (s *State) beginLarge(u Upload, out []Action) []Action {
	s.current = nil
	l := largeUpload{u, s.nextSeq()}
	begin := Send{Type: transport.Begin, Seq: l.seq, Ref: u.Upload, Keep: s.history.on}
	out = append(out, begin)
	if s.history.on { // a new worker gets all of it at once
		whole := Send{Type: transport.Upload, Seq: l.seq, Ref: u.Upload, Keep: true}
		out = s.keep(sentFrame{Send: whole, bytes: u.Bytes}, out)
	}
	s.large = append(s.large, l)
	return out
}

// sendPiece sends the next piece of the oldest large upload.
func (s *State) sendPiece(out []Action) []Action {
	l := s.large[0]
	s.current = piece{l}
	return append(out, Send{Type: transport.Piece, Seq: l.seq, Ref: l.Upload.Upload})
}

// pieceSent ends an upload after its last piece. It also does so if the session has ended, or if another worker will
// get all bytes again.
func (s *State) pieceSent(p piece, ev Sent, out []Action) []Action {
	is := func(l largeUpload) bool { return l.seq == p.seq }
	if ev.OK && ev.More && s.why == nil && slices.ContainsFunc(s.large, is) {
		return out
	}
	s.large = slices.DeleteFunc(s.large, is)
	return s.uploaded(p.Upload, out)
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

// holdsBackNext says the same of the next submission. What a trace uses is known when it is prepared.
func (s *State) holdsBackNext() bool {
	switch ev := s.queue.items[s.queue.first].(type) {
	case Read:
		return s.isLarge([]uint64{ev.Storage})
	case Sync, Mark, Ask, Checkpoint:
		return true
	}
	return false
}
