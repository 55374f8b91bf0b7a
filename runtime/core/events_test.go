// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// The events of a simulation: callers, sender, receiver and worker.

// anEvent takes one random event that may happen now.
func (s *simulation) anEvent() {
	switch s.IntN(18) {
	case 17:
		switch s.IntN(6) {
		case 0:
			s.loseWorker()
		case 1, 2:
			s.checkpoint()
		default:
			s.hashed()
		}
	case 16:
		s.raise()
	case 0, 1, 2:
		s.submitTrace()
	case 3:
		s.submitUpload()
	case 4:
		s.submitQuestion()
	case 5:
		s.cancelSomething()
	case 6, 7, 8, 9, 10:
		s.senderGoesOn()
	default:
		s.workerGoesOn()
	}
}

func (s *simulation) submitTrace() {
	if s.underWay >= s.allowed && s.IntN(10) > 0 { // most callers wait
		t := s.ref("room")
		s.tickets[t] = Room{t}
		s.step(s.tickets[t])
		return
	}
	r, t := s.ref("trace"), &simTrace{inPlace: s.IntN(4) == 0}
	for range s.IntN(3) {
		if len(s.storages) > 0 {
			t.in = append(t.in, s.storages[s.IntN(len(s.storages))])
		}
	}
	slices.Sort(t.in)
	t.in = slices.Compact(t.in)
	for range 1 + s.IntN(2) {
		t.out = append(t.out, s.storage())
	}
	s.traces[r] = t
	if s.gone == nil {
		s.underWay++
		s.order = append(s.order, r)
	}
	s.step(&TraceClosed{Trace: r})
	if s.IntN(3) == 0 {
		s.submitReads()
	}
}

func (s *simulation) storage() uint64 {
	s.n++
	s.storages = append(s.storages, uint64(s.n))
	return uint64(s.n)
}

func (s *simulation) submitUpload() {
	u := Upload{Storage: s.storage(), Ref: s.ref("upload"),
		Bytes: uint64(s.IntN(catalogue.UploadUnderWay / 4))}
	if s.IntN(2) == 0 {
		u.Bytes = uint64(s.IntN(2 * catalogue.UploadSmall))
	}
	if s.IntN(3) == 0 {
		u.Block = uint64(1 + s.IntN(4))
	}
	s.uploads[u.Ref] = u
	if s.IntN(3) == 0 {
		u.Ticket = s.ref("ticket")
		s.tickets[u.Ticket] = u
	}
	if s.gone == nil {
		s.order = append(s.order, u.Ref)
	}
	s.step(u)
}

func (s *simulation) submitQuestion() {
	t := s.ref("ticket")
	switch s.IntN(5) {
	case 0, 1:
		s.submitReads()
		return
	case 2:
		s.tickets[t] = Sync{t}
	case 3:
		s.tickets[t] = Mark{t}
	default:
		s.step(Forget{uint64(1 + s.IntN(4))})
		return
	}
	if s.gone == nil {
		s.order = append(s.order, t)
	}
	s.step(s.tickets[t])
}

// submitReads submits reads in a row, as a loop does that prints several numbers.
func (s *simulation) submitReads() {
	repeats := s.IntN(4) > 0
	for i := range min(len(s.storages), 1+s.IntN(4)) {
		t, id, view := s.ref("ticket"), s.storages[s.IntN(len(s.storages))], s.IntN(3)
		if repeats { // the last ones
			id, view = s.storages[len(s.storages)-1-i], 1
		}
		s.tickets[t] = Read{Ticket: t, Storage: id, Bytes: uint64(s.IntN(100))}
		if view > 0 {
			s.tickets[t] = Read{Ticket: t, Storage: id, Bytes: uint64(view), View: fmt.Sprint("view ", view)}
		}
		if s.gone == nil {
			s.order = append(s.order, t)
		}
		s.step(s.tickets[t])
	}
}

// cancelSomething cancels a question: a ticket of an upload is its caller's, who waits for it.
func (s *simulation) cancelSomething() {
	var all []Ref
	for t, asked := range s.tickets {
		if _, upload := asked.(Upload); !upload {
			all = append(all, t)
		}
	}
	slices.SortFunc(all, func(a, b Ref) int { return a.(ref).n - b.(ref).n })
	if len(all) > 0 {
		s.step(Cancel{all[s.IntN(len(all))]})
	}
}

// checkpoint asks for a checkpoint, in half of the sessions.
func (s *simulation) checkpoint() {
	if !s.checkpoints {
		return
	}
	if s.IntN(3) == 0 {
		s.step(Checkpoint{})
		return
	}
	t := s.ref("ticket")
	s.tickets[t] = Checkpoint{t}
	if s.gone == nil {
		s.order = append(s.order, t)
	}
	s.step(s.tickets[t])
}

// loseWorker is the end of a worker that another one replaces.
func (s *simulation) loseWorker() {
	h := &s.state.history
	if s.gone != nil || s.state.phase != running || h.made == 0 || h.restarts >= maxRestarts {
		return
	}
	lost := s.replaced
	s.step(WorkerLost{Err: errors.New("lost")})
	require.Equal(s, lost+1, s.replaced)
	s.endFill()
	if s.IntN(2) == 0 {
		s.step(WorkerLost{Err: errors.New("told by the sender too")})
		require.Equal(s, lost+1, s.replaced)
	}
}

// endFill ends the read whose bytes do not come any more.
func (s *simulation) endFill() {
	if t := s.filling; t != nil {
		s.filling = nil
		s.step(Filled{Ticket: t})
	}
}

// senderGoesOn is one step of the sender.
func (s *simulation) senderGoesOn() {
	switch {
	case s.exited:
	case s.restarting:
		s.restarting = false
		if s.IntN(8) == 0 {
			s.step(WorkerLost{Err: errors.New("it does not start")})
			return
		}
		s.poison, s.exists, s.halted = map[uint64]*proto.Status{}, map[uint64]bool{}, nil
		s.step(WorkerStarted{MaxBlocks: s.IntN(3)})
	case s.starts == 1 && s.state.phase == starting && !s.orphaned:
		s.step(WorkerStarted{MaxBlocks: s.IntN(3)})
	case s.prepare != nil:
		s.prepared()
	case s.sending.Ref != nil:
		sent := Sent{Seq: s.sending.Seq, OK: s.IntN(4) > 0}
		if s.sending.Type == transport.Piece && s.holds(s.sending) {
			sent.OK, sent.More, sent.Held = true, true, true
		} else if s.sending.Type == transport.Piece {
			sent.OK = s.gone == nil && !s.orphaned
			sent.More = s.pieces[s.sending.Ref] > 0
			s.pieces[s.sending.Ref]--
			s.arrived(s.sending)
		}
		if s.sending.Type == transport.Share && sent.OK {
			s.blocks[s.uploads[s.sending.Ref].Block] = true
		}
		s.sending = Send{}
		s.step(sent)
	case !s.asleep:
		s.asleep = len(s.step(Next{})) == 0
	}
}

// prepared reports what has become of a trace.
func (s *simulation) prepared() {
	r := s.prepare
	s.prepare = nil
	t := s.traces[r]
	ev := &Prepared{Trace: r, Storages: slices.Concat(t.in, t.out), Program: uint32(len(t.in) + 3*len(t.out))}
	for i, id := range ev.Storages {
		in := i < len(t.in)
		ev.Inputs = append(ev.Inputs, in)
		ev.Changed = append(ev.Changed, !in || i == 0 && t.inPlace)
		ev.Alive = append(ev.Alive, uint8(min(1, s.IntN(8))))
		if ev.Alive[i] == 0 {
			s.forget(id)
			ev.Unused = append(ev.Unused, id)
		}
	}
	if n := len(s.storages); n > 0 && s.IntN(4) == 0 { // a tensor of another trace has died
		id := s.storages[s.IntN(n)]
		if !slices.Contains(ev.Storages, id) {
			s.forget(id)
			ev.Frees, ev.Unused = append(ev.Frees, id), append(ev.Unused, id)
		}
	}
	switch s.IntN(12) {
	case 0:
		ev.Err = fmt.Errorf("%v does not compile", r)
		if s.IntN(2) == 0 {
			ev.Inputs = nil // not known
		}
	case 1:
		ev.Call = nil // nothing to run
	default:
		ev.Call = s.ref("call")
		s.calls[ev.Call] = r
	}
	s.step(ev)
	if s.orphaned && ev.Err != nil { // the next worker gets the Fail
		s.fails(s.state.seq, ev.Err.Error())
	}
}

// forget takes a storage from those that later submissions use.
func (s *simulation) forget(id uint64) {
	if i := slices.Index(s.storages, id); i >= 0 {
		s.storages = slices.Delete(s.storages, i, i+1)
	}
}

// workerGoesOn is one step of the worker or the receiver.
func (s *simulation) workerGoesOn() {
	switch {
	case s.gone != nil && s.filling == nil:
	case s.filling != nil:
		t := s.filling
		s.filling = nil
		s.step(Filled{Ticket: t, OK: s.gone == nil, Data: []byte(fmt.Sprint(t))})
	case len(s.reading) > 0 && s.IntN(3) == 0:
		m := s.reading[0]
		s.reading = s.reading[1:]
		s.step(&Answer{Seq: m.Seq, Message: new(proto.Uploaded)})
	case s.IntN(3) == 0 && (s.hashesHeld() || s.takesOffered()):
	case len(s.frames) > 0:
		s.handle(s.frames[0])
	}
}

// handle is the worker's part of a frame.
func (s *simulation) handle(f Send) {
	switch f.Type {
	case transport.Call:
		if s.IntN(20) == 0 {
			s.forgotten = true
			s.step(&Answer{Seq: f.Seq, Message: &proto.Done{UnknownProgram: true}})
			require.False(s, s.forgotten, "the program and the call were not sent again")
		}
		s.frames = s.frames[1:]
		s.run(f)
		return
	case transport.Read:
		s.frames = s.frames[1:]
		if g, ok := f.Ref.(Guess); ok {
			s.answerGuess(g)
			return
		}
		asked, waits := s.tickets[f.Ref].(Read)
		if !waits { // canceled
			s.step(&Answer{Seq: f.Seq, Bytes: uint64(s.IntN(100)), Message: new(proto.ReadReply)})
			return
		}
		m, n := &proto.ReadReply{Status: s.poison[asked.Storage]}, asked.Bytes
		s.expected[f.Ref] = s.failing
		if m.Status != nil {
			n = 0
			if s.failing == "" {
				s.expected[f.Ref] = s.textOf(m.Status)
			}
		}
		s.step(&Answer{Seq: f.Seq, Bytes: n, Message: m})
		return
	case transport.Fail:
		s.halt(&proto.Status{Kind: 1, Text: f.Err.Error()})
		for _, id := range f.Storages {
			s.lose(id)
		}
	case transport.Checkpoint:
		s.frames = s.frames[1:]
		m := &proto.StateReply{}
		if s.IntN(6) == 0 {
			m.Status = &proto.Status{Kind: 1, Text: "the disk is full"}
		} else {
			s.images[f.Seq] = image{s.halted, maps.Clone(s.poison), maps.Clone(s.exists)}
		}
		s.step(&Answer{Seq: f.Seq, Message: m})
		return
	case transport.Restore:
		s.frames = s.frames[1:]
		im, ok := s.images[f.Base]
		require.True(s, ok, "checkpoint %d does not exist", f.Base)
		s.halted, s.poison, s.exists = im.halted, maps.Clone(im.poison), maps.Clone(im.exists)
		s.step(&Answer{Seq: f.Seq, Message: &proto.StateReply{At: f.Base}})
		return
	case transport.Resume:
		s.halted = nil
	case transport.UploadFrom:
		s.reading = append(s.reading, f)
	case transport.Offer:
		s.frames = s.frames[1:]
		s.answerOffer(f)
		return
	}
	s.frames = s.frames[1:]
	if f.Type == transport.Sync {
		s.step(&Answer{Seq: f.Seq, Message: new(proto.SyncReply)})
	}
}

// halt is the worker's reaction to a failure.
func (s *simulation) halt(cause *proto.Status) {
	if s.halted == nil {
		s.halted = cause
	}
}

// lose poisons a storage that the worker does not make because of a failure.
func (s *simulation) lose(id uint64) {
	if s.poison[id] == nil && !s.exists[id] {
		s.poison[id] = s.halted
	}
}

// run is the worker's part of a call. It may fail, it fails if an input is poisoned, and it is skipped after a failure.
func (s *simulation) run(f Send) {
	t := s.traces[s.calls[f.Ref]]
	m := new(proto.Done)
	if s.halted == nil {
		cause := (*proto.Status)(nil)
		for _, id := range t.in {
			if cause == nil {
				cause = s.poison[id]
			}
		}
		failed, ran := s.outcomes[f.Seq]
		if !ran && cause == nil && s.IntN(10) == 0 {
			failed = "failure"
		}
		s.outcomes[f.Seq] = failed
		if cause == nil && failed != "" {
			cause = &proto.Status{Kind: 1, Text: "failure", Call: f.Seq, Step: uint32(f.Seq % 3)}
			s.texts[stepID{cause.Call, cause.Step}] = text(explainInTest(f.Ref, cause))
		}
		if cause != nil {
			m.Failed, m.Errors = 1, []*proto.Status{cause}
			s.halt(cause)
			s.fails(f.Seq, s.textOf(cause))
		}
	} else {
		m.Skipped = true
	}
	for _, id := range t.out {
		if s.halted != nil {
			s.lose(id)
		} else {
			s.exists[id] = true
		}
	}
	s.step(&Answer{Seq: f.Seq, Message: m})
}

// textOf is the text of the error of a status.
func (s *simulation) textOf(st *proto.Status) string {
	if st.Call == 0 {
		return text(explainInTest(nil, st))
	}
	return s.texts[stepID{st.Call, st.Step}]
}
