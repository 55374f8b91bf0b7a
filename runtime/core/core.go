// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package core is the client's session as a state machine: Step takes the state and an event, and returns actions. The
// package has no clock, socket, goroutine or random number, and Step never blocks. The same events give the same
// actions, so a log of events replays a session exactly.
//
// The loop (package runtime) turns what happens into events, and performs the actions. Actions of one Step must be
// performed in their order. Frames that the sender's events ask for are sent by one goroutine, so the order of frames
// on the connection is the order of the submissions.
package core

import (
	"errors"
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// Ref is the loop's value for a trace, a call, an upload or a ticket. The core compares refs and returns them in
// actions; it never looks inside. A ref must be comparable, and must be used for one thing only.
type Ref any

// Explain returns the error of a status. call is the call whose step has failed; nil: the status explains itself. It
// must not block, and must depend on its arguments only.
type Explain func(call Ref, status *proto.Status) error

// ErrCanceled is the answer to a ticket that was canceled.
var ErrCanceled = errors.New("canceled")

// phase is how far the session's life has come. It only grows, except that a lost worker may be replaced.
type phase uint8

const (
	idle     phase = iota // nothing was submitted; the session has no worker
	starting              // the worker is being started
	running
	gone    // the session has ended: submissions fail
	closing // gone, and the sender exits when Next finds nothing
)

// State is the state of one session. The zero State is not usable; New makes one.
type State struct {
	explain Explain
	phase   phase
	started bool  // the sender was told to start the worker
	why     error // why the session has ended

	seq       uint64 // of the last frame
	queue     queue  // submissions, oldest first
	current   Event  // the submission that the sender works on: a *TraceClosed or an *upload; nil: none
	sinceRead int    // traces with a program since the last read; from neverRead on if there was none
	awake     bool   // the sender asks for Next until there is nothing; it is awake at first
	pressing  int    // submissions in the queue that are no small uploads
	small     uint64 // bytes of the small uploads in the queue

	programs map[uint32]struct{} // the programs that the worker was sent
	calls    map[uint64]Ref      // by sequence number, until their Done
	tickets  map[Ref]*ticket     // those that are not complete
	asked    map[uint64]*ticket  // by sequence number, until the answer; complete if canceled
	line     line                // of calls and asked
	resent   uint64              // the last call whose program the worker had forgotten

	large   []*upload // that are being sent in pieces, oldest first
	turn    bool      // the next piece comes before the next submission
	blocked *Prepared // a trace that waits for the rest of a large upload

	blocks    map[uint64]struct{} // the blocks of shared memory that the worker has
	maxBlocks int
	reading   map[uint64]*upload // by sequence number: uploads that the worker reads from shared memory

	credits credits
	failure failure
	steps   failedSteps
	history history
	guesses guesses
	// The guess whose bytes the loop reads; nil: none.
	fillsGuess *ticket
}

// neverRead is more than the traces of a session.
const neverRead = 1 << 40

// ticket is a wait for an answer.
type ticket struct {
	ref     Ref
	what    transport.Type // of the question, once it is sent
	bytes   uint64         // of a read
	seq     uint64         // of its frame
	filling bool           // the loop writes the bytes of a read
	guess   *guess         // that this is; its ref is a Guess. nil: a caller waits
}

// New returns the state of a session without a worker.
func New(explain Explain) *State {
	return &State{explain: explain, programs: map[uint32]struct{}{}, calls: map[uint64]Ref{}, tickets: map[Ref]*ticket{},
		awake: true,
		asked: map[uint64]*ticket{}, blocks: map[uint64]struct{}{}, reading: map[uint64]*upload{}, steps: newFailedSteps(),
		credits: credits{allowed: MaxCalls}, sinceRead: neverRead, guesses: newGuesses()}
}

// Gone is the reason for the session's end; nil while it has not ended.
func (s *State) Gone() error { return s.why }

// Started says whether anything was submitted, so that the session has a worker, or had one.
func (s *State) Started() bool { return s.started || s.phase == starting }

// Waiting is the call or the ticket that the answer with this sequence number is for; nil if there is none.
func (s *State) Waiting(seq uint64) Ref {
	if c, ok := s.calls[seq]; ok {
		return c
	}
	if t := s.asked[seq]; t != nil {
		return t.ref
	}
	return nil
}

// Waits says whether the worker owes an answer.
func (s *State) Waits() bool {
	return len(s.calls)+len(s.asked)+len(s.reading) > 0 || slices.ContainsFunc(s.large, (*upload).owed)
}

// Step takes one event and appends the actions that follow to out.
func (s *State) Step(event Event, out []Action) []Action {
	switch ev := event.(type) {
	case *TraceClosed:
		return s.traceClosed(ev, out)
	case Upload:
		return s.upload(ev, out)
	case Read:
		return s.ask(ev.Ticket, ev.Bytes, event, out)
	case Sync:
		return s.ask(ev.Ticket, 0, event, out)
	case Mark:
		return s.ask(ev.Ticket, 0, event, out)
	case Ask:
		return s.ask(ev.Ticket, 0, event, out)
	case Checkpoint:
		return s.askCheckpoint(ev, out)
	case Room:
		return s.room(ev, out)
	case Raise:
		return s.raise(out)
	case Forget:
		if s.phase == idle || s.why != nil {
			return out
		}
		return s.submit(event, out)
	case Cancel:
		return s.cancel(ev, out)
	case Next:
		return s.next(out)
	case *Prepared:
		return s.prepared(ev, out)
	case Sent:
		return s.sent(ev, out)
	case Hashed:
		return s.hash(ev, out)
	case WorkerStarted:
		return s.workerStarted(ev, out)
	case WorkerLost:
		if ev.Final {
			return s.gone(ev.Err, out)
		}
		return s.lost(ev.Err, out)
	case Close:
		out = s.gone(ev.Err, out)
		s.phase = closing
		return out
	case *Answer:
		return s.answer(ev, out)
	case Filled:
		return s.filled(ev, out)
	}
	panic(fmt.Sprintf("BUG: the core has no event %T", event))
}

// workerStarted takes the start of the first worker, or of one that replaces a lost one.
func (s *State) workerStarted(ev WorkerStarted, out []Action) []Action {
	if s.phase != starting {
		return out
	}
	s.phase, s.maxBlocks = running, ev.MaxBlocks
	if s.history.stage == restarting {
		return s.restore(out)
	}
	return out
}

// askCheckpoint submits a checkpoint. The loop's own has no ticket.
func (s *State) askCheckpoint(ev Checkpoint, out []Action) []Action {
	switch {
	case ev.Ticket != nil:
		return s.ask(ev.Ticket, 0, ev, out)
	case s.phase == idle || s.why != nil:
		return out
	}
	return s.submit(ev, out)
}
