// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

const (
	// MaxKept limits the bytes of the uploads and calls that the client keeps in order to repeat them on a new worker.
	// When they exceed it, the client asks for a checkpoint at once. Until the worker has made it, the client may keep
	// as many bytes again.
	MaxKept = 1 << 30
	// maxRestarts limits the workers that are started from one checkpoint. If all of them are lost, the frames since the
	// checkpoint are the likely cause, and would end further workers too.
	maxRestarts = 3
)

// history is what was sent since the last checkpoint. If the worker is lost, another one restores the checkpoint, and
// gets the same frames again under the same numbers. So the session goes on as if nothing had happened.
type history struct {
	on      bool        // a checkpoint was sent: frames are kept
	made    uint64      // the number of the last checkpoint that the worker has made; 0: none
	asked   uint64      // the number of the checkpoint that the worker is making; 0: none
	waiting []Ref       // tickets of others that were asked for meanwhile
	frames  []sentFrame // since the last checkpoint, in order; before the first one, since it was sent
	bytes   uint64      // that they keep
	pressed bool        // a checkpoint was submitted because of them

	stage     stage
	restarts  int            // since the last checkpoint
	restoring uint64         // the number of the Restore
	left      []sentFrame    // frames that the new worker lacks
	repeats   map[uint64]Ref // calls that it gets although the lost worker has done them
}

// stage is how far the replacement of a lost worker has come.
type stage uint8

const (
	steady     stage = iota // there is a worker, or there will be none
	orphaned                // the worker is lost, and the sender does not know it yet
	restarting              // the sender starts another one
	restored                // which restores the checkpoint
)

// Keeps says whether what is sent is kept for a worker that replaces a lost one. Then a caller sends no Take, whose
// bytes no other worker has.
func (s *State) Keeps() bool { return s.history.on }

// sentFrame is a frame that a new worker would get.
type sentFrame struct {
	Send
	program uint32 // of a Call
	bytes   uint64 // that it keeps
}

// send appends a Send of a frame, and keeps it for a new worker. A lost worker gets no frames.
func (s *State) send(a Send, out []Action) []Action { return s.sendKept(sentFrame{Send: a}, out) }

func (s *State) sendKept(f sentFrame, out []Action) []Action {
	h := &s.history
	if h.on {
		f.Keep = f.Type == transport.Upload
		out = s.keep(f, out)
	}
	if h.stage != steady {
		return out
	}
	return s.sendNow(f.Send, out)
}

// sendNow appends a Send to a worker. Requests wait in line for their answers.
func (s *State) sendNow(a Send, out []Action) []Action {
	if isRequest(a.Type) {
		s.line.push(a.Seq)
	}
	return append(out, a)
}

// isRequest says whether the worker answers frames of a type.
func isRequest(t transport.Type) bool {
	switch t {
	case transport.Call, transport.Read, transport.Sync, transport.Save, transport.Find, transport.Load, transport.Drop,
		transport.Names, transport.Checkpoint, transport.Restore, transport.Unfetch,
		transport.Pass, transport.Take:
		return true
	}
	return false
}

// keep keeps a frame for a new worker.
func (s *State) keep(f sentFrame, out []Action) []Action {
	h := &s.history
	h.frames = append(h.frames, f)
	if h.bytes += f.bytes; h.bytes > MaxKept && h.asked == 0 && !h.pressed {
		h.pressed = true
		out = s.submit(Checkpoint{}, out)
	}
	return out
}

// sendCheckpoint begins a checkpoint. Only one is made at a time.
func (s *State) sendCheckpoint(ev Checkpoint, out []Action) []Action {
	h := &s.history
	switch {
	case h.asked != 0:
		if ev.Ticket != nil {
			h.waiting = append(h.waiting, ev.Ticket)
		}
		return out
	case ev.Ticket == nil && h.made != 0 && len(h.frames) == 0:
		return out // nothing has happened since the last one
	}
	h.on, h.asked = true, s.nextSeq()
	t := s.tickets[ev.Ticket]
	if t == nil { // the core's own, or canceled
		t = &ticket{}
	}
	t.what, t.seq = transport.Checkpoint, h.asked
	s.asked[h.asked] = t
	return s.send(Send{Type: transport.Checkpoint, Seq: h.asked, Ref: ev.Ticket, Base: h.made}, out)
}

// checkpointed takes the answer to a checkpoint.
func (s *State) checkpointed(seq uint64, t *ticket, m *proto.StateReply, out []Action) []Action {
	h := &s.history
	var err error
	h.asked, h.pressed = 0, false
	if m.Status.GetKind() == 0 {
		h.made, h.restarts = seq, 0
		out = s.forgetFrames(seq, out)
	} else {
		err = s.explain(nil, m.Status)
		if h.made == 0 || h.bytes > MaxKept { // without bound otherwise
			h.on, h.made = false, 0
			out = s.forgetFrames(seq, out)
		}
		out = append(out, NotKept{err, !h.on})
	}
	if s.tickets[t.ref] == t {
		out = s.complete(t.ref, err, out)
	}
	for _, ref := range h.waiting {
		out = s.complete(ref, err, out)
	}
	h.waiting = nil
	return out
}

// forgetFrames drops the frames up to a number, except fetches that go on, and with history off all but those that the
// worker still lacks.
func (s *State) forgetFrames(upTo uint64, out []Action) []Action {
	h := &s.history
	if !h.on {
		upTo = math.MaxUint64
		if len(h.left) > 0 {
			upTo = h.left[0].Seq - 1
		}
	}
	old := h.frames
	h.frames, h.bytes = nil, 0
	for _, f := range old {
		if f.Seq > upTo || h.on && f.Type == transport.Fetch && s.asked[f.Seq] != nil {
			h.frames = append(h.frames, f)
			h.bytes += f.bytes
		} else {
			out = s.releaseKept(f, out)
		}
	}
	return out
}

// releaseKept releases the bytes of an upload that are not kept any more. If the sender sends them, its Sent does.
func (s *State) releaseKept(f sentFrame, out []Action) []Action {
	if f.Type != transport.Upload {
		return out
	}
	if u, ok := s.current.(*upload); ok && u.Ref == f.Ref {
		return out
	}
	if slices.ContainsFunc(s.large, func(u *upload) bool { return u.Ref == f.Ref }) {
		return out // its last piece does
	}
	return append(out, Release{f.Ref})
}

// keeps says whether an upload's bytes are kept, so that its Release comes later.
func (s *State) keeps(upload Ref) bool {
	h := &s.history
	for i := len(h.frames) - 1; i >= 0; i-- { // it is among the last
		if h.frames[i].Type == transport.Upload && h.frames[i].Ref == upload {
			return true
		}
	}
	return false
}

// replace begins the replacement of a lost worker; false: there is no checkpoint to begin from.
func (s *State) replace(err error, out []Action) ([]Action, bool) {
	h := &s.history
	switch {
	case h.stage == orphaned: // told before
		return out, true
	case h.made == 0 || h.restarts == maxRestarts || s.phase != running && h.stage == steady:
		return out, false
	}
	h.restarts++
	h.stage, h.restoring, h.left, h.repeats = orphaned, 0, nil, nil
	s.phase, s.line, s.resent = starting, line{}, 0
	out = append(out, Replace{err})
	for _, seq := range slices.Sorted(maps.Keys(s.reading)) { // older than the checkpoint, so they were read
		u := s.reading[seq]
		delete(s.reading, seq)
		out = s.uploaded(u, out)
	}
	out = s.dropLarge(out)
	return s.wake(out), true
}

// restore asks the new worker to restore the checkpoint.
func (s *State) restore(out []Action) []Action {
	h := &s.history
	clear(s.programs)
	clear(s.blocks)
	h.stage, h.restoring = restored, s.nextSeq()
	return s.sendNow(Send{Type: transport.Restore, Seq: h.restoring, Base: h.made}, out)
}

// restoredReply takes the answer to a Restore: the frames since the checkpoint follow.
func (s *State) restoredReply(m *proto.StateReply, out []Action) []Action {
	h := &s.history
	switch {
	case m.Status.GetKind() != 0:
		return append(out, Disconnect{s.explain(nil, m.Status)})
	case m.At != h.made:
		return append(out, Disconnect{fmt.Errorf("the worker has restored checkpoint %d instead of %d", m.At, h.made)})
	}
	h.stage, h.restoring = steady, 0
	h.left, h.repeats = append([]sentFrame(nil), h.frames...), map[uint64]Ref{}
	return s.wake(out)
}

// repeat sends the next frame that the new worker lacks. A question that has its answer is left out.
func (s *State) repeat(out []Action) []Action {
	h := &s.history
	f := h.left[0]
	h.left = h.left[1:]
	if !h.on { // switched off meanwhile: the frame was kept for this worker only
		h.frames, h.bytes = h.frames[1:], h.bytes-f.bytes
	}
	switch f.Type {
	case transport.Call:
		if _, waits := s.calls[f.Seq]; !waits {
			h.repeats[f.Seq] = f.Ref
		}
		if _, known := s.programs[f.program]; !known {
			s.programs[f.program] = struct{}{}
			out = append(out, Send{Type: transport.Program, Seq: f.Seq, Ref: f.Ref})
		}
	case transport.Upload:
		s.current = &upload{Upload: Upload{Ref: f.Ref}, way: repeated}
	case transport.Free, transport.Fail, transport.Resume, transport.Checkpoint:
	default:
		if t := s.asked[f.Seq]; t == nil || t.guess == nil && s.tickets[t.ref] != t {
			delete(s.asked, f.Seq)
			return out
		}
	}
	return s.sendNow(f.Send, out)
}
