// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// started is a core whose worker runs.
func started(t testing.TB, blocks int) *State {
	s := New(explainInTest)
	require.Empty(t, s.Step(Mark{"first"}, nil), "the sender is awake at first")
	require.Equal(t, []Action{Start{}}, s.Step(Next{}, nil))
	require.Empty(t, s.Step(Next{}, nil), "nothing is sent before the worker runs")
	require.Empty(t, s.Step(WorkerStarted{MaxBlocks: blocks}, nil))
	require.Equal(t, []Action{Complete{"first", nil}}, s.Step(Next{}, nil))
	return s
}

func TestFastWorkersMayFallFurtherBehind(t *testing.T) {
	var p pace
	require.Equal(t, MaxCalls, p.ahead(), "nothing is known")
	now := time.Hour
	for _, c := range []struct {
		interval time.Duration
		ahead    int
	}{{time.Second, MaxCalls}, {4 * time.Millisecond, 125}, {time.Microsecond, mostCalls}} {
		p = pace{began: true, last: now, interval: c.interval}
		require.Equal(t, c.ahead, p.ahead(), c.interval)
	}
	p = pace{}
	p.done(now)
	require.Equal(t, MaxCalls, p.ahead())
	p.done(now + time.Microsecond)
	require.Equal(t, time.Microsecond, p.interval)
	p.done(now + time.Hour) // a pause does not make the worker slow
	require.Less(t, p.interval, aheadTime/8)
}

// TestABlockThatCannotBeShared: the bytes are sent instead, once, and the next upload tries again.
func TestABlockThatCannotBeShared(t *testing.T) {
	s := started(t, 1)
	require.Empty(t, s.Step(Next{}, nil))
	for i := range 2 {
		require.Equal(t, []Action{Wake{}}, s.Step(Upload{Ref: i, Bytes: 5, Block: 7}, nil))
		seq := uint64(2 * i)
		require.Equal(t, []Action{Send{Type: transport.Share, Seq: seq + 1, Ref: i}}, s.Step(Next{}, nil))
		want := []Action{Send{Type: transport.Upload, Seq: seq + 2, Ref: i}}
		require.Equal(t, want, s.Step(Sent{Seq: seq + 1, OK: false}, nil))
		require.Equal(t, []Action{Release{i}}, s.Step(Sent{Seq: seq + 2, OK: true}, nil))
		require.Empty(t, s.Step(Next{}, nil))
	}
}

// TestASmallUploadWaits: a small upload does not wake the sender. The sender sends it before the next submission.
func TestASmallUploadWaits(t *testing.T) {
	s := started(t, 0)
	require.Empty(t, s.Step(Next{}, nil), "the sender sleeps")
	require.Empty(t, s.Step(Upload{Ref: "small", Bytes: catalogue.UploadSmall}, nil))
	require.Equal(t, []Action{Wake{}}, s.Step(Sync{"sync"}, nil))
	require.Equal(t, []Action{Send{Type: transport.Upload, Seq: 1, Ref: "small"}}, s.Step(Next{}, nil))
	require.Equal(t, []Action{Release{"small"}}, s.Step(Sent{Seq: 1, OK: true}, nil))
	require.Empty(t, s.Step(Upload{Ref: "next", Bytes: 1}, nil))
	require.Equal(t, []Action{Send{Type: transport.Sync, Seq: 2, Ref: "sync"}}, s.Step(Next{}, nil))
	require.Empty(t, s.Step(Next{}, nil), "the next upload is not sent by itself, also if the sender is awake")

	for n := uint64(catalogue.UploadSmall); n < catalogue.UploadSmallAll; n += catalogue.UploadSmall {
		require.Empty(t, s.Step(Upload{Ref: n, Bytes: catalogue.UploadSmall}, nil))
	}
	more := Upload{Ref: "more", Bytes: catalogue.UploadSmall}
	require.Equal(t, []Action{Wake{}}, s.Step(more, nil), "so many do not wait")
	require.Empty(t, s.Step(Upload{Ref: "u", Bytes: catalogue.UploadSmall + 1}, nil), "the sender is awake")
}

// TestHeldUploads: so many uploads are offered at once, and the next one when the worker has answered.
func TestHeldUploads(t *testing.T) {
	s := started(t, 0)
	const n = maxHeld + 2
	for i := range n {
		s.Step(Upload{Ref: i, Storage: uint64(i), Bytes: catalogue.UploadWhole + 1}, nil)
	}
	sends := map[transport.Type][]uint64{}
	for {
		actions := s.Step(Next{}, nil)
		if len(actions) == 0 {
			break
		}
		a := actions[0].(Send)
		sends[a.Type] = append(sends[a.Type], a.Seq)
		if a.Type == transport.Piece {
			require.Empty(t, s.Step(Sent{Seq: a.Seq, OK: true, More: true, Held: true}, nil))
		}
	}
	require.Len(t, sends[transport.Piece], n)
	for _, seq := range sends[transport.Begin] {
		s.Step(Hashed{seq}, nil)
	}
	for range maxHeld {
		require.Equal(t, transport.Offer, s.Step(Next{}, nil)[0].(Send).Type)
	}
	require.Empty(t, s.Step(Next{}, nil))
	first := sends[transport.Begin][0]
	require.Equal(t, []Action{Wake{}}, s.Step(&Answer{Seq: first, Message: &proto.Offered{}}, nil))
	frames := []Action{s.Step(Next{}, nil)[0], nil}
	s.Step(Sent{Seq: first, OK: true}, nil)
	frames[1] = s.Step(Next{}, nil)[0]
	require.Equal(t, []Action{Send{Type: transport.Piece, Seq: first, Ref: 0},
		Send{Type: transport.Offer, Seq: sends[transport.Begin][maxHeld], Ref: maxHeld}}, frames)
}

// TestCancelWhileBytesArrive: the ticket ends when the loop has written the bytes.
func TestCancelWhileBytesArrive(t *testing.T) {
	s := started(t, 0)
	s.Step(Read{Ticket: "read", Storage: 1, Bytes: 4}, nil)
	require.Equal(t, []Action{Send{Type: transport.Read, Seq: 1, Ref: "read", First: true}}, s.Step(Next{}, nil))
	require.Equal(t, "read", s.Waiting(1))
	require.Equal(t, []Action{Fill{"read"}}, s.Step(&Answer{Seq: 1, Bytes: 4, Message: new(proto.ReadReply)}, nil))
	require.Empty(t, s.Step(Cancel{"read"}, nil))
	lost := errors.New("lost")
	require.Equal(t, []Action{End{lost}}, s.Step(WorkerLost{Err: lost}, nil), "the read is still being filled")
	require.Equal(t, []Action{Complete{"read", lost}}, s.Step(Filled{Ticket: "read"}, nil))
	require.Empty(t, s.Step(Filled{Ticket: "read"}, nil))
}

// TestAnswersThatNothingWaitsFor break the protocol.
func TestAnswersThatNothingWaitsFor(t *testing.T) {
	for want, m := range map[string]*Answer{
		"the worker answered call 9, which was not the next":     {Seq: 9, Message: new(proto.Done)},
		"the worker answered upload 9, which was not waiting":    {Seq: 9, Message: new(proto.Uploaded)},
		"the worker answered Sync 9, which was not the next":     {Seq: 9, Message: new(proto.SyncReply)},
		"the worker answered Read 9, which was not the next":     {Seq: 9, Message: new(proto.ReadReply)},
		"the worker sent a *proto.Read, which only clients send": {Seq: 9, Message: new(proto.Read)},
	} {
		refused(t, started(t, 0), m, want)
	}
	s := started(t, 0)
	s.Step(Close{errors.New("closed")}, nil)
	require.Empty(t, s.Step(&Answer{Seq: 9, Message: new(proto.Done)}, nil), "the session has ended")
}

// refused requires that an answer ends the session.
func refused(t *testing.T, s *State, m *Answer, want string) {
	t.Helper()
	actions := s.Step(m, nil)
	require.Len(t, actions, 1)
	require.EqualError(t, actions[0].(Disconnect).Err, want)
}

// TestAnswersComeInOrder: an answer of another kind, or before that of an earlier question, ends the session. So a read
// is never over without its bytes, and no question waits for an answer that was left out.
func TestAnswersComeInOrder(t *testing.T) {
	asked := func() *State {
		s := started(t, 0)
		s.Step(Read{Ticket: "read", Storage: 1, Bytes: 4}, nil)
		s.Step(Sync{"sync"}, nil)
		require.Len(t, append(s.Step(Next{}, nil), s.Step(Next{}, nil)...), 2)
		return s
	}
	refused(t, asked(), &Answer{Seq: 1, Message: new(proto.SyncReply)},
		"the worker answered Sync 1, which was not the next")
	refused(t, asked(), &Answer{Seq: 2, Message: new(proto.SyncReply)},
		"the worker answered Sync 2, which was not the next")
	refused(t, asked(), &Answer{Seq: 1, Message: new(proto.Done)}, "the worker answered call 1, which was not the next")
	s := asked()
	require.Equal(t, []Action{Complete{"read", ErrCanceled}}, s.Step(Cancel{"read"}, nil))
	require.Empty(t, s.Step(&Answer{Seq: 1, Bytes: 4, Message: new(proto.ReadReply)}, nil), "the answer still comes")
	require.Equal(t, []Action{Complete{"sync", nil}}, s.Step(&Answer{Seq: 2, Message: new(proto.SyncReply)}, nil))
	refused(t, s, &Answer{Seq: 2, Message: new(proto.SyncReply)}, "the worker answered Sync 2, which was not the next")
}

// TestAProgramIsSentAgainOnce: a worker that forgets it at once would be sent it for ever.
func TestAProgramIsSentAgainOnce(t *testing.T) {
	s := started(t, 0)
	s.Step(&TraceClosed{Trace: "trace"}, nil)
	s.Step(Next{}, nil)
	s.Step(&Prepared{Trace: "trace", Call: "call", Inputs: []bool{}}, nil)
	unknown := &Answer{Seq: 1, Message: &proto.Done{UnknownProgram: true}}
	require.Equal(t, []Action{Send{Type: transport.Program, Seq: 1, Ref: "call", Again: true},
		Send{Type: transport.Call, Seq: 1, Ref: "call", Again: true}}, s.Step(unknown, nil))
	refused(t, s, unknown, "the worker has forgotten the program of call 1 twice")
}

// TestAHitAllocatesLittle: a trace with a known program, from its cut to its Done.
func TestAHitAllocatesLittle(t *testing.T) {
	s := started(t, 0)
	trace, call := new(int), new(int)
	closed := &TraceClosed{Trace: trace}
	report := &Prepared{Inputs: []bool{true}, Storages: []uint64{1}, Alive: []uint8{1}, Changed: []bool{true}}
	answer := &Answer{Message: new(proto.Done)}
	actions := make([]Action, 0, 8)
	hit := func() {
		s.Step(closed, actions)
		s.Step(Next{}, actions)
		report.Trace, report.Call = trace, call
		s.Step(report, actions)
		answer.Seq = s.seq
		s.Step(answer, actions)
	}
	hit()
	require.LessOrEqual(t, testing.AllocsPerRun(1000, hit), 3.0, "Prepare, Send and Release")
}

func BenchmarkHit(b *testing.B) {
	s := started(b, 0)
	trace, call := new(int), new(int)
	closed := &TraceClosed{Trace: trace}
	report := &Prepared{Inputs: []bool{true}, Storages: []uint64{1}, Alive: []uint8{1}, Changed: []bool{true}}
	answer := &Answer{Message: new(proto.Done)}
	actions := make([]Action, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		s.Step(closed, actions)
		s.Step(Next{}, actions)
		report.Trace, report.Call = trace, call
		s.Step(report, actions)
		answer.Seq = s.seq
		s.Step(answer, actions)
	}
}

// TestUploadsOfAFailedCheckpoint: a new worker makes a checkpoint again, and fails. What it still lacks is sent before
// its bytes are released.
func TestUploadsOfAFailedCheckpoint(t *testing.T) {
	s := started(t, 0)
	next := func(want ...Action) {
		t.Helper()
		require.Equal(t, want, s.Step(Next{}, nil))
	}
	lost := errors.New("lost")
	checkpoint := func(seq, base uint64) Send { return Send{Type: transport.Checkpoint, Seq: seq, Base: base} }
	upload := func(i uint64) Ref { return fmt.Sprint("upload ", i) }
	again := func(last, restore uint64) { // a new worker gets the uploads again
		t.Helper()
		require.Contains(t, s.Step(WorkerLost{Err: lost}, nil), Replace{lost})
		next(Restart{})
		require.Equal(t, []Action{Send{Type: transport.Restore, Seq: restore, Base: 1}}, s.Step(WorkerStarted{}, nil))
		s.Step(&Answer{Seq: restore, Message: &proto.StateReply{At: 1}}, nil)
		for i := uint64(2); i <= last; i++ {
			next(Send{Type: transport.Upload, Seq: i, Ref: upload(i), Keep: true})
			require.Empty(t, s.Step(Sent{Seq: i, OK: true}, nil))
		}
	}
	s.Step(Checkpoint{}, nil)
	next(checkpoint(1, 0))
	require.Empty(t, s.Step(&Answer{Seq: 1, Message: &proto.StateReply{}}, nil))
	const bytes = MaxKept/2 + 1
	for i := uint64(2); i <= 3; i++ {
		s.Step(Upload{Ref: upload(i), Ticket: fmt.Sprint("ticket ", i), Storage: i, Bytes: bytes}, nil)
		next(Send{Type: transport.Begin, Seq: i, Ref: upload(i), Keep: true})
		next(Send{Type: transport.Piece, Seq: i, Ref: upload(i)})
		s.Step(Sent{Seq: i, OK: true}, nil)
	}
	next(checkpoint(4, 1))
	again(3, 5)
	next(checkpoint(4, 1))
	s.Step(Upload{Ref: upload(6), Ticket: "a ticket", Storage: 6, Bytes: 1 << 19}, nil)
	next(Send{Type: transport.Upload, Seq: 6, Ref: upload(6), Keep: true})
	require.NotContains(t, s.Step(Sent{Seq: 6, OK: true}, nil), Release{upload(6)})

	again(3, 7)
	next(checkpoint(4, 1))
	full := &proto.StateReply{Status: &proto.Status{Kind: 1, Text: "the disk is full"}}
	require.NotContains(t, s.Step(&Answer{Seq: 4, Message: full}, nil), Release{upload(6)})
	next(Send{Type: transport.Upload, Seq: 6, Ref: upload(6), Keep: true})
	require.Equal(t, []Action{Release{upload(6)}}, s.Step(Sent{Seq: 6, OK: true}, nil))
}

// TestFetch: other questions are answered while a fetch goes on.
func TestFetch(t *testing.T) {
	s := started(t, 0)
	ask := func(ticket Ref, typ transport.Type, seq uint64) {
		t.Helper()
		s.Step(Ask{Ticket: ticket, Type: typ}, nil)
		require.Equal(t, []Action{Send{Type: typ, Seq: seq, Ref: ticket}}, s.Step(Next{}, nil))
	}
	ask("fetch", transport.Fetch, 1)
	ask("names", transport.Names, 2)
	require.Empty(t, s.Step(&Answer{Seq: 1, Message: &proto.Fetching{Done: 1}}, nil))
	require.Equal(t, []Action{Complete{Ticket: "names"}}, s.Step(&Answer{Seq: 2, Message: &proto.StateReply{}}, nil))
	require.Equal(t, Ref("fetch"), s.Waiting(1))
	end := &Answer{Seq: 1, Message: &proto.Fetching{End: true}}
	require.Equal(t, []Action{Complete{Ticket: "fetch"}}, s.Step(end, nil))
	require.False(t, s.Waits())

	ask("another", transport.Fetch, 3)
	failed := &proto.Fetching{End: true, Status: &proto.Status{Kind: 1, Text: "there is no such repository"}}
	out := s.Step(&Answer{Seq: 3, Message: failed}, nil)
	require.ErrorContains(t, out[0].(Complete).Err, "there is no such repository")
	for _, bad := range []*Answer{{Seq: 3, Message: failed}, {Seq: 9, Message: &proto.Fetching{}}} {
		require.IsType(t, Disconnect{}, s.Step(bad, nil)[0])
	}
	ask("load", transport.Load, 4)
	require.IsType(t, Disconnect{}, s.Step(&Answer{Seq: 4, Message: &proto.Fetching{}}, nil)[0], "of another kind")
	ask("third", transport.Fetch, 5)
	require.IsType(t, Disconnect{}, s.Step(&Answer{Seq: 5, Message: &proto.StateReply{}}, nil)[0], "of another kind")
}

// TestALoadAfterACheckpoint: a new worker could not repeat it, so another checkpoint follows.
func TestALoadAfterACheckpoint(t *testing.T) {
	s := started(t, 0)
	s.Step(Checkpoint{}, nil)
	require.Equal(t, []Action{Send{Type: transport.Checkpoint, Seq: 1}}, s.Step(Next{}, nil))
	require.Empty(t, s.Step(&Answer{Seq: 1, Message: &proto.StateReply{}}, nil))
	s.Step(Ask{Ticket: "load", Type: transport.Load}, nil)
	require.Equal(t, []Action{Send{Type: transport.Load, Seq: 2, Ref: "load"}}, s.Step(Next{}, nil))
	require.Empty(t, s.Step(Next{}, nil))
	out := s.Step(&Answer{Seq: 2, Message: &proto.StateReply{}}, nil)
	require.Equal(t, []Action{Wake{}, Complete{Ticket: "load"}}, out)
	require.Equal(t, []Action{Send{Type: transport.Checkpoint, Seq: 3, Base: 1}}, s.Step(Next{}, nil))
}

func TestQueueKeepsItsOrder(t *testing.T) {
	var q queue
	next, popped := uint64(0), uint64(0)
	for round := range 1000 {
		for range round % 7 {
			q.push(Forget{next})
			next++
		}
		for range min(round%5, int(next-popped)) {
			require.Equal(t, Forget{popped}, q.pop())
			popped++
		}
	}
	require.Equal(t, int(next-popped), len(q.items)-q.first)
}

// TestAFetchDuringACheckpoint: another worker gets a fetch that began before the checkpoint, until it has ended.
func TestAFetchDuringACheckpoint(t *testing.T) {
	s := started(t, 0)
	checkpoint := func(seq, base uint64) {
		t.Helper()
		s.Step(Checkpoint{}, nil)
		require.Equal(t, []Action{Send{Type: transport.Checkpoint, Seq: seq, Base: base}}, s.Step(Next{}, nil))
		require.Empty(t, s.Step(&Answer{Seq: seq, Message: &proto.StateReply{}}, nil))
	}
	lose := func(restore, base uint64) {
		t.Helper()
		lost := errors.New("lost")
		require.Contains(t, s.Step(WorkerLost{Err: lost}, nil), Replace{lost})
		s.Step(Next{}, nil)
		require.Equal(t, []Action{Send{Type: transport.Restore, Seq: restore, Base: base}}, s.Step(WorkerStarted{}, nil))
		s.Step(&Answer{Seq: restore, Message: &proto.StateReply{At: base}}, nil)
	}
	checkpoint(1, 0)
	s.Step(Ask{Ticket: "fetch", Type: transport.Fetch}, nil)
	fetch := Send{Type: transport.Fetch, Seq: 2, Ref: "fetch"}
	require.Equal(t, []Action{fetch}, s.Step(Next{}, nil))
	checkpoint(3, 1)
	lose(4, 3)
	require.Equal(t, []Action{fetch}, s.Step(Next{}, nil))
	end := &Answer{Seq: 2, Message: &proto.Fetching{End: true}}
	require.Equal(t, []Action{Complete{Ticket: "fetch"}}, s.Step(end, nil))
	s.Step(Ask{Ticket: "names", Type: transport.Names}, nil)
	require.Equal(t, []Action{Send{Type: transport.Names, Seq: 5, Ref: "names"}}, s.Step(Next{}, nil))
	s.Step(&Answer{Seq: 5, Message: &proto.StateReply{}}, nil)
	checkpoint(6, 3)
	lose(7, 6)
	require.NotContains(t, s.Step(Next{}, nil), fetch)
}
