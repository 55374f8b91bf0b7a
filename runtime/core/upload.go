// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// The way of an upload: it is submitted, taken from the queue, sent in one of three ways, and ended when its bytes are
// not used any more. catalogue.UploadLimits has the sizes that decide. The mailbox bounds the bytes under way.

// upload is the state of an upload from its submission to its end.
type upload struct {
	Upload
	way way
	seq uint64 // of its frames
	// Of one in pieces.
	all   bool // they were sent
	held  bool // no piece is sent before the worker has answered the Offer
	offer offer
}

// way is how an upload's bytes go to the worker.
type way uint8

const (
	undecided way = iota
	byBlock       // the worker reads them in shared memory; a Share has told it of the block
	inOneFrame
	inPieces // between which other submissions are sent: none waits for more than a piece
	repeated // in one frame, to a worker that replaces a lost one; the upload has ended before
)

// offer is how far the offer of the bytes of an upload in pieces has come. The worker may have kept the same bytes of
// an earlier upload: then it takes those, and no more pieces are sent.
type offer uint8

const (
	noOffer offer = iota
	hashed        // the hash of the bytes is known; the Offer is to be sent
	offered       // the Offer was sent, and the worker has not answered it
	found         // the worker reads its bytes, and needs no pieces
	taken         // its bytes are right; a Settle ends the upload
	damaged       // they are not; a Settle goes back to the pieces after the Offer
	spent         // the worker needs the pieces
)

// maxHeld bounds the Offers of held uploads that have no final answer: a worker fetches for so many uploads at once.
const maxHeld = 128

// upload takes the submission of an upload.
func (s *State) upload(ev Upload, out []Action) []Action {
	if ev.Ticket != nil {
		s.tickets[ev.Ticket] = &ticket{ref: ev.Ticket}
	}
	u := &upload{Upload: ev}
	if s.why != nil {
		return s.drop(u, out)
	}
	return s.submit(u, out)
}

// small says whether a submission is an upload that may wait for the next submission.
func small(ev Event) bool {
	u, ok := ev.(*upload)
	return ok && u.Ticket == nil && u.Block == 0 && u.Bytes <= catalogue.UploadSmall
}

// sendUpload begins to send an upload.
func (s *State) sendUpload(u *upload, out []Action) []Action {
	_, known := s.blocks[u.Block]
	switch {
	case u.Block == 0 || s.history.on, // a new worker would not have the block's bytes of now
		!known && len(s.blocks) >= s.maxBlocks:
		return s.sendBytes(u, out)
	case known:
		return s.sendBlock(u, out)
	}
	u.way, s.current = byBlock, u
	return append(out, Send{Type: transport.Share, Seq: s.nextSeq(), Ref: u.Ref})
}

// sendPlace tells the worker where in a block the bytes are. The worker answers when it has read them.
func (s *State) sendBlock(u *upload, out []Action) []Action {
	u.way, u.seq = byBlock, s.nextSeq()
	s.reading[u.seq] = u
	return append(out, Send{Type: transport.UploadFrom, Seq: u.seq, Ref: u.Ref})
}

// sendBytes sends all bytes, or tells the worker of an upload whose pieces follow.
func (s *State) sendBytes(u *upload, out []Action) []Action {
	u.seq = s.nextSeq()
	all := sentFrame{Send: Send{Type: transport.Upload, Seq: u.seq, Ref: u.Ref}, bytes: u.Bytes}
	if u.Bytes <= catalogue.UploadWhole {
		u.way, s.current = inOneFrame, u
		return s.sendKept(all, out)
	}
	u.way = inPieces
	s.large = append(s.large, u)
	out = append(out, Send{Type: transport.Begin, Seq: u.seq, Ref: u.Ref, Keep: s.history.on})
	if s.history.on { // a new worker gets all of it at once
		all.Keep = true
		out = s.keep(all, out)
	}
	return out
}

// sent goes on with the upload of which the sender has sent something.
func (s *State) sent(ev Sent, out []Action) []Action {
	u, ok := s.current.(*upload)
	if !ok {
		return out
	}
	s.current = nil
	switch {
	case u.way == repeated && (s.why != nil || !s.keeps(u.Ref)):
		return append(out, Release{u.Ref})
	case u.way == repeated:
		return out
	case u.way == inPieces:
		return s.pieceSent(u, ev, out)
	case u.way == inOneFrame || s.why != nil:
		return s.uploaded(u, out)
	case !ev.OK:
		return s.sendBytes(u, out)
	}
	s.blocks[u.Block] = struct{}{}
	return s.sendBlock(u, out)
}

// uploaded ends an upload whose bytes are not used any more.
func (s *State) uploaded(u *upload, out []Action) []Action {
	if s.why != nil || !s.keeps(u.Ref) {
		out = append(out, Release{u.Ref})
	}
	return s.complete(u.Ticket, s.why, out)
}

// ready says whether the next frame of an upload in pieces can be sent, while so many held uploads are offered.
func (u *upload) ready(offers int) bool {
	switch u.offer {
	case hashed:
		return !u.held || offers < maxHeld
	case taken, damaged:
		return true
	case found:
		return false
	case noOffer, offered:
		return !u.all && !u.held
	}
	return !u.all
}

// owed says whether the worker owes an answer to the upload's Offer.
func (u *upload) owed() bool { return u.offer == offered || u.offer == found }

// readyLarge is the oldest upload in pieces of which something can be sent; nil: there is none.
func (s *State) readyLarge() *upload {
	offers := 0
	for _, u := range s.large {
		if u.held && u.owed() {
			offers++
		}
	}
	for _, u := range s.large {
		if u.ready(offers) {
			return u
		}
	}
	return nil
}

// sendLarge sends the next frame of an upload in pieces.
func (s *State) sendLarge(u *upload, out []Action) []Action {
	send := Send{Seq: u.seq, Ref: u.Ref}
	switch u.offer {
	case hashed:
		u.offer = offered
		send.Type = transport.Offer
	case taken:
		send.Type = transport.Settle
		return s.endLarge(u, append(out, send))
	case damaged:
		u.offer, u.all = spent, false
		send.Type, send.Again = transport.Settle, true
	default:
		s.current = u
		send.Type = transport.Piece
	}
	return append(out, send)
}

// pieceSent ends an upload after its last piece, unless an offer has no answer yet. It also does so if the session has
// ended, or if another worker will get all bytes again.
func (s *State) pieceSent(u *upload, ev Sent, out []Action) []Action {
	switch {
	case !slices.Contains(s.large, u) || !ev.OK || s.why != nil:
		return s.endLarge(u, out)
	case ev.Held:
		u.held = true
		return out
	case ev.More:
		return out
	}
	u.all = true
	if u.offer == noOffer || u.offer == hashed || u.offer == spent {
		return s.endLarge(u, out)
	}
	return out
}

// hash takes the report that the hash of an upload in pieces is known.
func (s *State) hash(ev Hashed, out []Action) []Action {
	if u := s.largeOf(ev.Seq); u != nil && u.offer == noOffer && !u.all {
		u.offer = hashed
		return s.wake(out)
	}
	return out
}

// offeredReply takes the worker's answer to an Offer.
func (s *State) offeredReply(seq uint64, m *proto.Offered, out []Action) []Action {
	u := s.largeOf(seq)
	switch {
	case u == nil:
	case u.offer == offered && m.Found == proto.Offered_ABSENT && u.all:
		return s.wake(s.endLarge(u, out))
	case u.offer == offered && m.Found == proto.Offered_ABSENT:
		u.offer = spent
		return s.wake(out)
	case u.offer == offered && m.Found == proto.Offered_FOUND:
		u.offer = found
		return out
	case u.offer == found && m.Found == proto.Offered_TAKEN:
		u.offer = taken
		return s.wake(out)
	case u.offer == found && m.Found == proto.Offered_DAMAGED:
		u.offer = damaged
		return s.wake(out)
	}
	return append(out, Disconnect{fmt.Errorf("the worker answered offer %d with %v, which was not due", seq, m.Found)})
}

func (s *State) largeOf(seq uint64) *upload {
	for _, u := range s.large {
		if u.seq == seq {
			return u
		}
	}
	return nil
}

func (s *State) endLarge(u *upload, out []Action) []Action {
	s.large = slices.DeleteFunc(s.large, func(o *upload) bool { return o == u })
	return s.uploaded(u, out)
}

// dropLarge ends the uploads in pieces that will not be sent, except the one whose piece is being sent.
func (s *State) dropLarge(out []Action) []Action {
	for _, u := range s.large {
		if u != s.current {
			out = s.uploaded(u, out)
		}
	}
	s.large = nil
	return out
}

// isLarge says whether one of these storages is still being uploaded.
func (s *State) isLarge(lists ...[]uint64) bool {
	return slices.ContainsFunc(s.large, func(u *upload) bool {
		return slices.ContainsFunc(lists, func(ids []uint64) bool { return slices.Contains(ids, u.Storage) })
	})
}

// holdsBack says whether the worker must not see a trace before the end of an upload in pieces.
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
