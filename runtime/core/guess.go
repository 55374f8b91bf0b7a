// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"slices"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// Bounds of guesses.
const (
	MaxGuessBytes = 4 << 10 // of the elements of one
	maxGuesses    = 16      // between two calls
	maxGuessed    = 1024    // programs whose reads are remembered
	recentCalls   = 8       // reads of what earlier calls have used are not guessed
	patience      = 3       // so many wrong guesses in a row end a habit
)

// Guess is a read that no caller has asked for yet. A loop that prints five numbers in each step would wait for the
// network five times. So the core remembers what was read after the call of a program. When the program is called
// again, the first read that follows takes all of them along. Until the next call the storages keep their values, so a
// guess has exactly what a read would have.
type Guess struct {
	Seq     uint64 // of its frame
	Storage uint64
	View    string // see Read
	Bytes   uint64
}

// guess is a Guess that was sent.
type guess struct {
	Guess
	filling bool
	filled  bool
	data    []byte
	waiters []Ref // tickets of the reads that asked for it before the answer has come
}

// habit is a read that follows the call of a program.
type habit struct {
	back, slot int // where the storage is: in the call so many calls before, at this local number
	view       string
	bytes      uint64
	read       bool // since the last call
	patience   int
}

// seen is what is known of a call. Its arrays are used again.
type seen struct {
	program  uint32
	storages []uint64 // by local number
	freed    []uint64 // that no tensor holds since the call
}

// elements names the elements of a read.
type elements struct {
	storage uint64
	view    string
}

// guesses is what the core knows of reads.
type guesses struct {
	calls  [recentCalls]seen
	last   int                 // the last call in calls
	begun  bool                // there was a read since the last call
	sent   map[elements]*guess // since the last call
	habits map[uint32][]habit  // by program
}

func newGuesses() guesses { return guesses{sent: map[elements]*guess{}, habits: map[uint32][]habit{}} }

// back is the call so many calls before the last one.
func (g *guesses) back(n int) *seen { return &g.calls[(g.last+recentCalls-n)%recentCalls] }

// called notes that a call is sent: the reads before it are over.
func (g *guesses) called(ev *Prepared) {
	g.endReads()
	g.last = (g.last + 1) % recentCalls
	c := g.back(0)
	c.program = ev.Program
	c.storages = append(c.storages[:0], ev.Storages...)
	c.freed = append(c.freed[:0], ev.Frees...)
	for i, alive := range ev.Alive {
		if alive == 0 {
			c.freed = append(c.freed, ev.Storages[i])
		}
	}
}

// freed notes that no tensor holds these storages any more.
func (g *guesses) freed(ids []uint64) {
	c := g.back(0)
	c.freed = append(c.freed, ids...)
}

// forget forgets the calls and what was guessed since: the next reads go to the worker.
func (g *guesses) forget() {
	g.endReads()
	for i := range g.calls {
		c := &g.calls[i]
		c.storages, c.freed = c.storages[:0], c.freed[:0]
	}
}

// endReads is called when another call follows: no guess is valid any more. It updates the habits of the last call's
// program with the reads that came after it.
func (g *guesses) endReads() {
	clear(g.sent)
	if !g.begun {
		return // a step without reads says nothing about those that have some
	}
	g.begun = false
	program := g.back(0).program
	habits := slices.DeleteFunc(g.habits[program], func(h habit) bool { return !h.read && h.patience <= 1 })
	for i := range habits {
		if h := &habits[i]; h.read {
			h.read, h.patience = false, patience
		} else {
			h.patience--
		}
	}
	g.habits[program] = habits
}

// learn notes a read.
func (g *guesses) learn(ev Read) {
	if ev.View == "" || ev.Bytes > MaxGuessBytes {
		return
	}
	program := g.back(0).program
	for back := range recentCalls {
		slot := slices.Index(g.back(back).storages, ev.Storage)
		if slot < 0 {
			continue
		}
		habits := g.habits[program]
		same := func(h habit) bool { return h.back == back && h.slot == slot && h.view == ev.View }
		if i := slices.IndexFunc(habits, same); i >= 0 {
			habits[i].read = true
		} else if len(habits) < maxGuesses {
			if len(g.habits) >= maxGuessed {
				clear(g.habits)
			}
			g.habits[program] = append(habits, habit{back, slot, ev.View, ev.Bytes, true, patience})
		}
		return
	}
}

// storageOf is the storage of a habit now; 0: there is none, or no tensor holds it any more.
func (g *guesses) storageOf(h habit) uint64 {
	c := g.back(h.back)
	if h.slot >= len(c.storages) {
		return 0
	}
	id := c.storages[h.slot]
	for back := range h.back + 1 {
		if slices.Contains(g.back(back).freed, id) {
			return 0
		}
	}
	return id
}

// sendRead answers a read with a guess, or asks the worker. The first read after a call takes the guesses along.
func (s *State) sendRead(ev Read, out []Action) []Action {
	s.sinceRead = 0
	if s.tickets[ev.Ticket] == nil { // canceled
		return out
	}
	g := &s.guesses
	if known := g.sent[elements{ev.Storage, ev.View}]; known != nil && ev.View != "" {
		g.learn(ev)
		return s.useGuess(known, ev.Ticket, out)
	}
	out = s.sendQuestion(ev.Ticket, transport.Read, out)
	if !g.begun && s.failure.err == nil {
		out = s.sendGuesses(ev, out)
	}
	g.begun = true
	g.learn(ev)
	return out
}

// sendGuesses sends what was read after other calls of the last call's program.
func (s *State) sendGuesses(first Read, out []Action) []Action {
	g := &s.guesses
	for _, h := range g.habits[g.back(0).program] {
		id := g.storageOf(h)
		key := elements{id, h.view}
		if id == 0 || key == (elements{first.Storage, first.View}) || g.sent[key] != nil || s.isLarge([]uint64{id}) {
			continue
		}
		sent := &guess{Guess: Guess{s.nextSeq(), id, h.view, h.bytes}}
		g.sent[key] = sent
		s.asked[sent.Seq] = &ticket{ref: sent.Guess, what: transport.Read, bytes: h.bytes, seq: sent.Seq, guess: sent}
		out = s.send(Send{Type: transport.Read, Seq: sent.Seq, Ref: sent.Guess}, out)
	}
	return out
}

// useGuess answers a read with a guess, when it has come.
func (s *State) useGuess(g *guess, ref Ref, out []Action) []Action {
	if !g.filled {
		g.waiters = append(g.waiters, ref)
		return out
	}
	return s.give(g, ref, out)
}

// give ends a ticket with the elements of a guess, unless the ticket has ended.
func (s *State) give(g *guess, ref Ref, out []Action) []Action {
	if s.tickets[ref] == nil {
		return out
	}
	delete(s.tickets, ref)
	return append(out, Give{ref, g.Guess, g.data})
}

// guessed takes the answer to a guess. If it is an error, later reads ask again.
func (s *State) guessed(t *ticket, ev *Answer, m *proto.ReadReply, out []Action) []Action {
	if err := s.readError(t, ev, m); err != nil {
		return s.guessLost(t.guess, err, out)
	}
	t.guess.filling = true
	s.fillsGuess = t
	return append(out, Fill{t.ref})
}

// guessFilled is filled for a guess.
func (s *State) guessFilled(ev Filled, out []Action) []Action {
	t := s.fillsGuess
	if t == nil || t.ref != ev.Ticket {
		return out
	}
	s.fillsGuess = nil
	g := t.guess
	switch g.filling = false; {
	case ev.OK:
		g.filled, g.data = true, ev.Data
		for _, ref := range g.waiters {
			out = s.give(g, ref, out)
		}
		g.waiters = nil
	case s.why == nil: // the next worker is asked again
		s.asked[t.seq] = t
	default:
		out = s.guessLost(g, s.why, out)
	}
	return out
}

// guessLost ends the reads that wait for a guess with its error.
func (s *State) guessLost(g *guess, err error, out []Action) []Action {
	key := elements{g.Storage, g.View}
	if s.guesses.sent[key] == g {
		delete(s.guesses.sent, key)
	}
	for _, ref := range g.waiters {
		out = s.complete(ref, err, out)
	}
	g.waiters = nil
	return out
}
