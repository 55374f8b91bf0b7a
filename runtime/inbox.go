// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/runtime/core"
)

// Inbox is where threads that aren't Go's leave what they want of a device, without a call into Go, and where its sender sleeps. All
// methods may be called at the same time; Wait by one at a time.
type Inbox interface {
	// Open says whether letters may be left there. Those that are there already stay.
	Open(open bool)
	// Take removes the oldest letter; nil: there is none.
	Take() *Letter
	// Stalls hands over how often and how long it was waited for answers since the last call.
	Stalls(each func(at Place, waits uint64, took time.Duration))
	// Wait returns when there is a letter, or after a Ring that no Wait has seen.
	Wait()
	Ring()
	Credits() *Credits
}

// Letter is a closed trace, or a question.
type Letter struct {
	// Of a trace; its arrays are used until Release is called.
	Trace   *Trace
	Release func()

	// Of a question. Answer is called once.
	Ask    Ask
	Ticket uint64
	At     Place
	View   View   // of a read
	Dst    []byte // its elements; nil if the view can't be read
	Answer func(error)
}

// Ask is what a question asks.
type Ask uint8

// The questions, which are those of Runtime's methods of these names.
const (
	AskRead Ask = 1 + iota
	AskSync
	AskRoom
)

// Credits say how far a client may run ahead of its worker: who leaves a trace counts it, and is to wait if no more are allowed.
type Credits struct {
	OnWay   atomic.Int64 // traces whose Done has not arrived
	Allowed atomic.Int64
	Core    atomic.Int64 // on which the last letter was left, from 1 on; 0: not known
	Hurry   atomic.Int64 // not 0: who waits may look for the answer for a while before sleeping
}

// open is the submission that a letter asks for. With an error the submission is a read that can't be made.
func (s *session) open(l *Letter) (core.Event, error) {
	if l.Trace != nil {
		return core.TraceClosed{Trace: s.closed(l.Trace, l.Release)}, nil
	}
	t := s.ticket(s.metrics.bill.at(l.At))
	s.asked.add(l.Ticket, t)
	t.told = func(err error) { s.asked.drop(l.Ticket); l.Answer(err) }
	switch l.Ask {
	case AskRead:
		return t.read(l.View, l.Dst)
	case AskSync:
		return core.Sync{Ticket: t}, nil
	case AskRoom:
		return core.Room{Ticket: t}, nil
	}
	panic(fmt.Sprintf("BUG: there is no question %d", l.Ask))
}

// asked holds the tickets of questions that were left in an inbox, by C's number, until they are answered.
type asked struct {
	mu      sync.Mutex
	tickets map[uint64]*Ticket
}

func (a *asked) add(number uint64, t *Ticket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.tickets == nil {
		a.tickets = map[uint64]*Ticket{}
	}
	a.tickets[number] = t
}

func (a *asked) drop(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.tickets, number)
}

func (a *asked) get(number uint64) *Ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.tickets[number]
}

// cancelAsked ends the ticket of a question that was left in the inbox. After it nothing writes the memory of its read.
func (s *session) cancelAsked(number uint64) {
	s.collect()
	if t := s.asked.get(number); t != nil {
		t.Cancel()
	}
}

// inbox is one where nobody leaves anything.
type inbox struct {
	bell    chan struct{}
	credits Credits
}

// NewInbox returns an inbox where nothing is left: all that is wanted comes by calls.
func NewInbox() Inbox { return &inbox{bell: make(chan struct{}, 1)} }

func (b *inbox) Open(bool)                                 {}
func (b *inbox) Take() *Letter                             { return nil }
func (b *inbox) Stalls(func(Place, uint64, time.Duration)) {}
func (b *inbox) Wait()                                     { <-b.bell }
func (b *inbox) Credits() *Credits                         { return &b.credits }

func (b *inbox) Ring() {
	select {
	case b.bell <- struct{}{}:
	default: // it has been rung already
	}
}
