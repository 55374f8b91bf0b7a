// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// ref names a trace, a call, an upload or a ticket of a simulation.
type ref struct {
	kind string
	n    int
}

// simTrace is a trace: it reads in, writes in[0] if inPlace, and makes out.
type simTrace struct {
	in, out []uint64
	inPlace bool
}

// simulation drives a core with random events: callers, a sender, a receiver and a worker in one goroutine, with a time
// that the test makes. It checks each action against what must hold.
type simulation struct {
	testing.TB
	*rand.Rand
	state *State
	now   time.Duration
	log   []logged

	n        int // refs so far
	storages []uint64
	traces   map[Ref]*simTrace
	calls    map[Ref]Ref // call to trace
	uploads  map[Ref]Upload
	tickets  map[Ref]Event // that are not complete
	order    []Ref         // submissions, oldest first, that no action has begun
	released map[Ref]bool
	lastSeq  uint64
	underWay int
	allowed  int
	gone     error
	exited   bool

	// The sender.
	asleep  bool // until a Wake
	starts  int
	prepare Ref
	sending Send // an Upload or a Share without a Sent
	filling Ref

	// The worker.
	frames    []Send // that the worker has not handled, oldest first
	forgotten bool   // the first frame is a Call whose program the worker has asked for
	blocks    map[uint64]bool
	arriving  map[uint64]bool // storages whose last piece was not sent
	pieces    map[Ref]int     // of large uploads, that will still be sent; -1: the last one was sent
	offers    map[uint64]*simOffer
	reading   []Send // uploads from shared memory without an answer

	halted *proto.Status            // the worker runs no calls because of this failure
	poison map[uint64]*proto.Status // by storage
	exists map[uint64]bool          // storages that calls have made

	// Replacement of the worker.
	checkpoints bool              // the session has some
	images      map[uint64]image  // checkpoints that the worker has made, by number
	outcomes    map[uint64]string // of calls that the worker has run: what failed, or ""
	orphaned    bool              // the worker is lost, and there is no other one
	restarting  bool              // the sender starts another one
	again       bool              // frames may have old numbers,
	restore     uint64            // smaller than that of the Restore,
	lastAgain   uint64            // in their order
	replaced    int

	// Guesses. The position counts frames after which storages may have other values.
	position int
	guessed  map[Guess]int // where it was sent
	turns    map[Ref]int   // where a read was that waits for a guess

	// What reads and syncs must raise.
	failing  string            // the error that nothing has raised
	first    uint64            // the number of the call or Fail that failed with it
	resumes  int               // that were not sent
	covered  uint64            // failures of smaller numbers have been raised
	texts    map[stepID]string // of steps that have failed
	expected map[Ref]string
}

// image is a simulated worker's state in a checkpoint.
type image struct {
	halted *proto.Status
	poison map[uint64]*proto.Status
	exists map[uint64]bool
}

type logged struct {
	event   Event
	actions []Action
}

func explainInTest(call Ref, st *proto.Status) error {
	return fmt.Errorf("%s of step %d of %v", st.Text, st.Step, call)
}

func newSimulation(t testing.TB, seed uint64) *simulation {
	return &simulation{TB: t, Rand: rand.New(rand.NewPCG(seed, 22)), state: New(explainInTest), allowed: MaxCalls,
		traces: map[Ref]*simTrace{}, calls: map[Ref]Ref{}, uploads: map[Ref]Upload{}, tickets: map[Ref]Event{},
		released: map[Ref]bool{}, blocks: map[uint64]bool{}, images: map[uint64]image{}, outcomes: map[uint64]string{},
		guessed: map[Guess]int{}, turns: map[Ref]int{},
		arriving: map[uint64]bool{}, pieces: map[Ref]int{}, offers: map[uint64]*simOffer{},
		poison: map[uint64]*proto.Status{}, exists: map[uint64]bool{}, texts: map[stepID]string{}, expected: map[Ref]string{}}
}

func (s *simulation) ref(kind string) Ref {
	s.n++
	return ref{kind, s.n}
}

// step gives the core an event, and checks and performs the actions.
func (s *simulation) step(event Event) []Action {
	s.Helper()
	s.now += time.Duration(s.IntN(2_000_000))
	if answer, ok := event.(*Answer); ok {
		answer.At = s.now
	}
	actions := s.state.Step(event, nil)
	s.log = append(s.log, logged{event, actions})
	for _, a := range actions {
		s.perform(event, a)
	}
	s.noteTurns()
	if s.asleep && s.gone == nil && s.state.history.stage == steady && !s.waitsForOffer() {
		left := uint64(0)
		for _, ev := range s.state.queue.items[s.state.queue.first:] {
			require.True(s, small(ev), "%#v waits, and the sender sleeps", ev)
			left += ev.(*upload).Bytes
		}
		require.LessOrEqual(s, left, uint64(catalogue.UploadSmallAll))
	}
	return actions
}

func (s *simulation) perform(event Event, action Action) {
	s.Helper()
	switch a := action.(type) {
	case Start:
		s.starts++
		require.Equal(s, 1, s.starts)
	case Wake:
		require.True(s, s.asleep, "the sender is awake")
		s.asleep = false
	case Exit:
		s.exited = true
	case Prepare:
		s.begun(a.Trace)
		s.prepare = a.Trace
	case Send:
		s.send(a)
	case Fill:
		if _, ok := a.Ticket.(Guess); !ok {
			require.Contains(s, s.tickets, a.Ticket, "the memory of a ticket that has ended is written")
		}
		s.filling = a.Ticket
	case Give:
		s.given(a)
	case Complete:
		s.complete(event, a)
	case Release:
		require.False(s, s.released[a.Ref], "%v is released twice", a.Ref)
		s.released[a.Ref] = true
		require.NotEqual(s, s.prepare, a.Ref, "the sender uses it")
	case Credit:
		s.underWay--
	case Failing:
		require.Equal(s, a.Yes, s.state.Failure() != nil)
	case Allow:
		require.GreaterOrEqual(s, a.Traces, MaxCalls)
		s.allowed = a.Traces
	case End:
		require.NoError(s, s.gone, "the session ends twice")
		s.gone = a.Err
	case Disconnect:
		s.step(WorkerLost{Err: a.Err})
	case Replace:
		s.replaced++
		s.frames, s.reading, s.forgotten, s.orphaned, s.restarting = nil, nil, false, true, false
		clear(s.blocks)
		clear(s.arriving)
		clear(s.offers)
	case Restart:
		require.True(s, s.orphaned)
		require.Nil(s, s.filling, "the receiver has ended")
		s.restarting = true
	case NotKept:
	default:
		s.Fatalf("an unknown action: %T", action)
	}
}

// begun notes that an action begins a submission: the oldest that has not begun, without the questions that were
// canceled or answered by the core.
func (s *simulation) begun(ref Ref) {
	s.Helper()
	i := slices.Index(s.order, ref)
	require.GreaterOrEqual(s, i, 0, "%v begins again", ref)
	for _, skipped := range s.order[:i] {
		asked, waits := s.tickets[skipped]
		if _, ok := asked.(Checkpoint); ok {
			continue // it may wait for another one
		}
		if s.waitsForGuess(skipped) {
			continue
		}
		require.False(s, waits, "%v begins before %v", ref, skipped)
		require.Nil(s, s.traces[skipped], "%v begins before %v", ref, skipped)
		require.NotContains(s, s.uploads, skipped, "%v begins before %v", ref, skipped)
	}
	s.order = s.order[i+1:]
}

func (s *simulation) send(a Send) {
	s.Helper()
	require.NoError(s, s.gone, "a frame after the end")
	if _, upload := s.uploads[a.Ref]; upload {
		require.False(s, s.released[a.Ref], "%v was released", a.Ref)
	}
	if a.Type == transport.Piece || a.Type == transport.Offer || a.Type == transport.Settle {
		s.largeFrame(a)
		return
	}
	if a.Again {
		require.True(s, s.forgotten)
		if a.Type == transport.Call {
			s.forgotten = false
		}
		return
	}
	require.Equal(s, s.orphaned, a.Type == transport.Restore, "a %v, and no worker: %v", a.Type, s.orphaned)
	s.orphaned = false
	uploads := a.Type == transport.Upload || a.Type == transport.Begin
	if !s.again || a.Seq >= s.restore {
		require.Equal(s, uploads && s.state.history.on, a.Keep)
	}
	if a.Type == transport.Restore {
		s.again = true
	} else if s.again && a.Seq < s.restore {
		require.GreaterOrEqual(s, a.Seq, s.lastAgain, "the order of the frames that are sent again")
		s.lastAgain = a.Seq
		if a.Type == transport.Upload {
			s.sending = a
		}
		s.frames = append(s.frames, a)
		return
	}
	switch {
	case a.Type == transport.Restore:
		require.Greater(s, a.Seq, s.lastSeq)
		s.restore, s.lastAgain = a.Seq, a.Base
	case a.Type == transport.Call && len(s.frames) > 0 && s.frames[len(s.frames)-1].Type == transport.Program:
		require.Equal(s, s.lastSeq, a.Seq, "a program and its call have one number")
	default:
		require.Equal(s, s.lastSeq+1, a.Seq, "the order of the frames")
	}
	s.lastSeq = a.Seq
	s.sendsAfter(a)
	switch a.Type {
	case transport.Read, transport.Sync:
		if g, ok := a.Ref.(Guess); ok {
			require.Equal(s, a.Seq, g.Seq)
			s.guessed[g] = s.position
		} else {
			s.begun(a.Ref)
		}
	case transport.Checkpoint:
		if a.Ref != nil {
			s.begun(a.Ref)
		}
	case transport.Begin:
		if slices.Contains(s.order, a.Ref) { // otherwise a Share has begun it
			s.begun(a.Ref)
		}
		s.arriving[s.uploads[a.Ref].Storage], s.pieces[a.Ref] = true, s.IntN(6)
		s.offers[a.Seq] = &simOffer{ref: a.Ref}
	case transport.Resume:
		if s.resumes--; s.resumes == 0 {
			s.covered = a.Seq
		}
	case transport.Fail:
		s.fails(a.Seq, a.Err.Error())
	case transport.Upload, transport.Share, transport.UploadFrom:
		if slices.Contains(s.order, a.Ref) {
			s.begun(a.Ref)
		}
		if a.Type != transport.UploadFrom {
			s.sending = a
		}
	}
	s.frames = append(s.frames, a)
}

// sendsAfter checks a frame against those that were sent before, and notes it for later ones.
func (s *simulation) sendsAfter(a Send) {
	s.Helper()
	s.checkBlock(a)
	if a.Type == transport.Call || a.Type == transport.Fail || a.Type == transport.Resume {
		s.position++
	}
	if t := s.traces[s.calls[a.Ref]]; t != nil {
		for _, id := range slices.Concat(t.in, t.out) {
			require.NotContains(s, s.arriving, id, "a call before the last piece of its input")
		}
	}
}

// checkBlock follows which blocks the worker has.
func (s *simulation) checkBlock(a Send) {
	s.Helper()
	switch block := s.uploads[a.Ref].Block; a.Type {
	case transport.Share:
		require.False(s, s.blocks[block], "block %d is shared twice", block)
	case transport.UploadFrom:
		require.True(s, s.blocks[block], "the worker does not have block %d", block)
	case transport.Unshare:
		require.True(s, s.blocks[a.Block], "the worker does not have block %d", a.Block)
		delete(s.blocks, a.Block)
	}
}

func (s *simulation) complete(event Event, a Complete) {
	s.Helper()
	asked, ok := s.tickets[a.Ticket]
	require.True(s, ok, "%v completes twice", a.Ticket)
	require.NotEqual(s, s.filling, a.Ticket, "a ticket ends while its memory is written")
	delete(s.tickets, a.Ticket)
	if a.Err != nil && (a.Err == s.gone || a.Err == ErrCanceled) {
		return
	}
	switch asked := asked.(type) {
	case Room:
		require.NoError(s, a.Err)
		require.Less(s, s.underWay, s.allowed, "there is no room")
	case Upload:
		require.NoError(s, a.Err)
		require.True(s, s.released[asked.Ref] || s.state.keeps(asked.Ref), "its bytes are used")
	case Mark:
		require.NoError(s, a.Err)
		require.IsType(s, Next{}, event, "a mark is reached by the sender")
		s.begun(a.Ticket)
	case Read:
		require.Equal(s, s.expected[a.Ticket], text(a.Err))
	case Checkpoint:
		if a.Err != nil {
			require.ErrorContains(s, a.Err, "disk")
		}
	case Sync:
		require.Equal(s, s.failing, text(a.Err), "a sync raises the error that nothing has raised")
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// fails notes what the client knows of a failure. The first one counts, unless an error was raised since then.
func (s *simulation) fails(seq uint64, err string) {
	if seq < s.covered || s.failing != "" && s.first < seq {
		return
	}
	s.failing, s.first = err, seq
}

// raise raises the error that nothing has raised.
func (s *simulation) raise() {
	require.Equal(s, s.failing, text(s.state.Failure()))
	if s.failing != "" {
		s.covered = math.MaxUint64 // until the Resume is sent
		s.resumes++
	}
	s.failing = ""
	s.step(Raise{})
}

// finish ends the session, and checks that nothing is left.
func (s *simulation) finish() {
	s.step(Close{errors.New("closed")})
	s.asleep = false // the loop wakes the sender
	for range 10 {
		s.senderGoesOn()
		s.workerGoesOn()
	}
	require.True(s, s.exited, "the sender exits")
	require.Empty(s, s.tickets, "tickets that wait for ever")
	for ref := range s.traces {
		require.True(s, s.released[ref], "%v is not released", ref)
	}
	for ref := range s.uploads {
		require.True(s, s.released[ref], "%v is not released", ref)
	}
	require.Empty(s, s.state.tickets)
	require.True(s, s.state.queue.empty())
}

// replay steps the log again: a fresh core must return the same actions.
func (s *simulation) replay() {
	again := New(explainInTest)
	for i, l := range s.log {
		got := again.Step(l.event, nil)
		require.Equal(s, describe(l.actions), describe(got), "event %d: %#v", i, l.event)
	}
}

// describe is actions as text, with the texts of errors.
func describe(actions []Action) string {
	var b strings.Builder
	for _, a := range actions {
		fmt.Fprintf(&b, "%T %+v\n", a, a)
	}
	return b.String()
}

// TestSimulation runs sessions of random events until their end.
func TestSimulation(t *testing.T) {
	seen := map[string]int{}
	for seed := range uint64(240) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			s := newSimulation(t, seed)
			s.checkpoints = seed%4 < 2
			for range 100 + s.IntN(1000) {
				s.anEvent()
			}
			if seed%3 == 0 {
				s.drain()
			}
			if seed%2 == 0 {
				s.step(WorkerLost{Err: errors.New("lost")})
				s.endFill()
				for range s.IntN(200) {
					s.anEvent()
				}
			}
			s.finish()
			s.replay()
			for _, l := range s.log {
				for _, a := range l.actions {
					name := fmt.Sprintf("%T", a)
					if send, ok := a.(Send); ok {
						name += fmt.Sprint(" ", send.Type, " again ", send.Again)
					}
					seen[name]++
				}
			}
		})
	}
	for _, want := range []string{"Start", "Wake", "Exit", "Prepare", "Fill", "Give", "Complete", "Release", "Credit",
		"Allow", "End", "Failing", "Replace", "Restart", "NotKept", "Send Checkpoint again false",
		"Send Restore again false", "Send Begin again false", "Send Piece again false",
		"Send Offer again false", "Send Settle again false", "Send Settle again true",
		"Send Fail again false", "Send Resume again false",
		"Send Program again false", "Send Program again true", "Send Call again true", "Send Free again false",
		"Send Share again false", "Send Unshare again false", "Send UploadFrom again false", "Send Upload again false"} {
		require.Positive(t, seen["core."+want], "no simulation has seen %s: %v", want, seen)
	}
}

// drain lets the sender and the worker finish. After the last error was raised, the worker runs calls again.
func (s *simulation) drain() {
	if !s.state.Started() || s.gone != nil {
		return
	}
	idle := func() bool {
		return s.state.phase == running && s.state.history.stage == steady && len(s.state.history.left) == 0 &&
			s.state.blocked == nil && len(s.state.large) == 0 && s.prepare == nil && s.sending.Ref == nil && s.filling == nil &&
			s.state.queue.empty() && len(s.frames) == 0 && len(s.reading) == 0
	}
	for n := 0; !idle() || s.failing != ""; n++ {
		require.Less(s, n, 100_000, "the session does not come to rest")
		if s.asleep && !s.state.queue.empty() { // small uploads wait for the next submission
			t := s.ref("ticket")
			s.tickets[t] = Mark{t}
			s.order = append(s.order, t)
			s.step(s.tickets[t])
		}
		s.senderGoesOn()
		s.workerGoesOn()
		if s.gone != nil { // too many workers were lost
			return
		}
		if idle() {
			s.raise()
		}
	}
	require.Nil(s, s.halted, "the worker does not run calls, and nobody knows")
	require.Zero(s, s.underWay)
	require.Zero(s, s.state.credits.underWay)
	require.Empty(s, s.tickets)
}
