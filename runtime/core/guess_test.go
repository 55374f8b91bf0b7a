// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// The part of guesses in a simulation.

// waiting are the guesses that have no answer.
func (s *simulation) waiting() (out []*guess) {
	for _, t := range s.state.asked {
		if t.guess != nil {
			out = append(out, t.guess)
		}
	}
	if t := s.state.fillsGuess; t != nil {
		out = append(out, t.guess)
	}
	return out
}

func (s *simulation) waitsForGuess(t Ref) bool {
	return slices.ContainsFunc(s.waiting(), func(g *guess) bool { return slices.Contains(g.waiters, t) })
}

// noteTurns notes the reads that wait for guesses since the last step.
func (s *simulation) noteTurns() {
	for _, g := range s.waiting() {
		for _, t := range g.waiters {
			if _, known := s.turns[t]; !known {
				s.turns[t] = s.position
			}
		}
	}
}

// given checks a read that a guess answers: no frame between the two has changed what it reads.
func (s *simulation) given(a Give) {
	s.Helper()
	asked, ok := s.tickets[a.Ticket].(Read)
	require.True(s, ok, "%v has ended", a.Ticket)
	turn, waited := s.turns[a.Ticket]
	if !waited {
		turn = s.position
		s.begun(a.Ticket)
	}
	delete(s.tickets, a.Ticket)
	require.Equal(s, Read{a.Ticket, a.Guess.Storage, a.Guess.Bytes, a.Guess.View}, asked)
	require.Equal(s, s.guessed[a.Guess], turn, "a frame came between the guess and the read")
	require.Equal(s, fmt.Sprint(a.Guess), string(a.Data))
	require.Empty(s, s.poison[asked.Storage].GetText())
}

// answerGuess is the worker's part of a guess. It may be wrong if no read waits: its storage may be gone.
func (s *simulation) answerGuess(g Guess) {
	m, n := &proto.ReadReply{Status: s.poison[g.Storage]}, g.Bytes
	waiters := 0
	for _, t := range s.state.asked[g.Seq].guess.waiters {
		if s.tickets[t] != nil {
			waiters++
		}
		s.expected[t] = s.failing
		if m.Status != nil && s.failing == "" {
			s.expected[t] = s.textOf(m.Status)
		}
	}
	if waiters == 0 && s.IntN(8) == 0 {
		m.Status = &proto.Status{Kind: 1, Text: "there is no such storage"}
	}
	if m.Status != nil {
		n = 0
	}
	s.step(&Answer{Seq: g.Seq, Bytes: n, Message: m})
}

// loop steps a core as a loop does that calls a program and reads some of its storages.
type loop struct {
	testing.TB
	*State
	call uint64
	next uint64 // storage
}

// begin calls a program with two storages: an input and an output. It returns them.
func (l *loop) begin(program uint32, frees ...uint64) [2]uint64 {
	l.call++
	trace := fmt.Sprint("trace ", l.call)
	l.Step(&TraceClosed{Trace: trace}, nil)
	require.Equal(l, []Action{Prepare{trace, l.sinceRead}}, l.Step(Next{}, nil))
	l.next += 2
	ids := [2]uint64{l.next - 1, l.next}
	out := l.Step(&Prepared{Trace: trace, Call: l.call, Program: program, Storages: ids[:], Alive: []uint8{1, 1},
		Inputs: []bool{true, false}, Changed: []bool{false, true}, Frees: frees}, nil)
	require.IsType(l, Send{}, out[0])
	return ids
}

// read reads a storage, and returns the actions of the sender.
func (l *loop) read(ticket string, id uint64, view string) []Action {
	l.Step(Read{Ticket: ticket, Storage: id, Bytes: 4, View: view}, nil)
	return l.Step(Next{}, nil)
}

// answers answers the call, and the reads of a list of actions with their numbers as bytes.
func (l *loop) answers(sent []Action) (out []Action) {
	if _, ok := l.calls[l.line.seqs[l.line.first]]; ok {
		l.Step(&Answer{Seq: l.line.seqs[l.line.first], Message: new(proto.Done)}, nil)
	}
	for _, a := range sent {
		read := a.(Send)
		fill := l.Step(&Answer{Seq: read.Seq, Bytes: 4, Message: new(proto.ReadReply)}, nil)
		require.Equal(l, []Action{Fill{read.Ref}}, fill)
		out = append(out, l.Step(Filled{Ticket: read.Ref, OK: true, Data: []byte(fmt.Sprint(read.Seq))}, nil)...)
	}
	return out
}

func readsOf(actions []Action) (out []Ref) {
	for _, a := range actions {
		out = append(out, a.(Send).Ref)
	}
	return out
}

// TestGuesses: the second time, the first read takes the others along, and they cost no question.
func TestGuesses(t *testing.T) {
	l := &loop{TB: t, State: started(t, 0)}
	ids := l.begin(7)
	for i, ticket := range []string{"a", "b"} {
		sent := l.read(ticket, ids[i], "whole")
		require.Equal(t, []Ref{ticket}, readsOf(sent), "nothing is known")
		require.Equal(t, []Action{Complete{ticket, nil}}, l.answers(sent))
	}
	ids = l.begin(7, ids[0], ids[1])
	sent := l.read("c", ids[0], "whole")
	guess := Guess{l.seq, ids[1], "whole", 4}
	require.Equal(t, []Ref{"c", guess}, readsOf(sent))
	require.Empty(t, l.read("d", ids[1], "whole"), "it waits for the guess")
	require.Equal(t, []Action{Complete{"c", nil}, Give{"d", guess, []byte(fmt.Sprint(l.seq))}}, l.answers(sent))
	require.Equal(t, []Action{Give{"e", guess, []byte(fmt.Sprint(l.seq))}}, l.read("e", ids[1], "whole"), "it has come")
	require.Equal(t, []Ref{"f"}, readsOf(l.read("f", ids[1], "half")), "other elements")

	l.begin(8)
	require.Equal(t, []Ref{"g"}, readsOf(l.read("g", ids[1], "whole")), "a call may have changed it")
}

// TestWrongGuesses: they end after some steps, and steps without reads do not count.
func TestWrongGuesses(t *testing.T) {
	l := &loop{TB: t, State: started(t, 0)}
	ids := l.begin(7)
	l.answers(append(l.read("a", ids[0], "whole"), l.read("b", ids[1], "whole")...))
	for range 3 * patience {
		l.begin(7)
	}
	for i := range 2 * patience {
		ids = l.begin(7)
		sent := l.read(fmt.Sprint(i), ids[0], "whole")
		require.Len(t, sent, map[bool]int{true: 2, false: 1}[i < patience], i)
	}
}

// TestStoragesOfEarlierCalls are guessed too, unless no tensor holds them.
func TestStoragesOfEarlierCalls(t *testing.T) {
	l := &loop{TB: t, State: started(t, 0)}
	for i, c := range []struct{ ofCall, ofTrace bool }{{}, {}, {ofCall: true}, {ofTrace: true}} {
		first := l.begin(7)
		var frees []uint64
		if c.ofCall {
			frees = []uint64{first[1]}
		}
		second := l.begin(8, frees...)
		if c.ofTrace {
			l.Step(&TraceClosed{Trace: "frees"}, nil)
			l.Step(Next{}, nil)
			l.Step(&Prepared{Trace: "frees", Unused: []uint64{first[1]}}, nil)
		}
		sent := l.read(fmt.Sprint("x", i), second[1], "whole")
		switch {
		case i == 0:
			require.Len(t, sent, 1)
			sent = append(sent, l.read("y", first[1], "whole")...)
			require.Len(t, sent, 2)
		case i == 1:
			require.Equal(t, []Ref{"x1", Guess{l.seq, first[1], "whole", 4}}, readsOf(sent))
		default:
			require.Len(t, sent, 1)
		}
	}
}

// TestAFailedGuess: reads that wait get its error, and later ones ask again.
func TestAFailedGuess(t *testing.T) {
	l := &loop{TB: t, State: started(t, 0)}
	ids := l.begin(7)
	l.answers(append(l.read("a", ids[0], "whole"), l.read("b", ids[1], "whole")...))
	for _, waits := range []bool{false, true} {
		ids = l.begin(7)
		sent := l.read("c", ids[0], "whole")
		require.Len(t, sent, 2)
		l.answers(sent[:1])
		want := []Action(nil)
		st := &proto.Status{Kind: 1, Text: "gone"}
		if waits {
			require.Empty(t, l.read("d", ids[1], "whole"))
			want = []Action{Complete{"d", explainInTest(nil, st)}}
		}
		require.Equal(t, want, l.Step(&Answer{Seq: l.seq, Message: &proto.ReadReply{Status: st}}, nil))
		again := l.read("e", ids[1], "whole")
		require.Equal(t, []Ref{"e"}, readsOf(again))
		require.Equal(t, []Action{Complete{"e", nil}}, l.answers(again))
	}
}

// TestReadsThatWaitForAGuess can be canceled, and end with the session.
func TestReadsThatWaitForAGuess(t *testing.T) {
	for _, filling := range []bool{false, true} {
		l := &loop{TB: t, State: started(t, 0)}
		ids := l.begin(7)
		l.answers(append(l.read("a", ids[0], "whole"), l.read("b", ids[1], "whole")...))
		ids = l.begin(7)
		sent := l.read("c", ids[0], "whole")
		require.Empty(t, l.read("d", ids[1], "whole"))
		require.Empty(t, l.read("e", ids[1], "whole"))
		require.Equal(t, []Action{Complete{"d", ErrCanceled}}, l.Step(Cancel{"d"}, nil))
		lost := errors.New("lost")
		want := []Action{End{lost}, Complete{"c", lost}, Complete{"e", lost}}
		if filling {
			l.answers(sent[:1])
			fill := l.Step(&Answer{Seq: l.seq, Bytes: 4, Message: new(proto.ReadReply)}, nil)
			require.Equal(t, []Action{Fill{sent[1].(Send).Ref}}, fill)
			want = []Action{End{lost}}
		}
		require.Equal(t, want, l.Step(WorkerLost{Err: lost}, nil))
		if filling {
			require.Equal(t, []Action{Complete{"e", lost}}, l.Step(Filled{Ticket: sent[1].(Send).Ref}, nil))
		}
	}
}

// TestGuessesAreBounded in number, in bytes, and in programs.
func TestGuessesAreBounded(t *testing.T) {
	l := &loop{TB: t, State: started(t, 0)}
	ids := l.begin(7)
	for i := range 2 * maxGuesses {
		l.answers(l.read(fmt.Sprint(i), ids[0], fmt.Sprint("view ", i)))
	}
	ids = l.begin(7)
	require.Len(t, l.read("first", ids[0], "view 0"), maxGuesses)

	l = &loop{TB: t, State: started(t, 0)}
	ids = l.begin(7)
	l.Step(Read{Ticket: "big", Storage: ids[0], Bytes: MaxGuessBytes + 1, View: "big"}, nil)
	l.Step(Next{}, nil)
	require.Empty(t, l.guesses.habits[7])
	for program := range uint32(2 * maxGuessed) {
		ids = l.begin(program)
		require.Equal(t, transport.Read, l.read(fmt.Sprint(program), ids[0], "whole")[0].(Send).Type)
		require.LessOrEqual(t, len(l.guesses.habits), maxGuessed)
	}
}
