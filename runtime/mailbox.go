// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/trace"
)

// Mailbox is a queue in which threads that aren't Go's leave traces and requests for a device, without a call into Go.
// The sender sleeps in its Wait. All methods may be called at the same time; Wait by one goroutine at a time.
type Mailbox interface {
	// Open allows or forbids to leave items. Items that are already in the mailbox stay.
	Open(open bool)
	// Take removes the oldest item; nil: there is none.
	Take() *Item
	// Stalls reports the waits for answers since the last call, by place.
	Stalls(each func(at trace.Place, waits uint64, took time.Duration))
	// Wait returns when there is an item, or after a Wake that no Wait has seen.
	Wait()
	// Doze is a Wait that also returns after a time. Until then, traces do not end it, unless the client must wait for
	// the worker.
	Doze(d time.Duration)
	Wake()
	Credits() *Credits
}

// Item is a closed trace, a small upload, or a request.
type Item struct {
	// Of a trace; its arrays are used until Release is called.
	Trace   *trace.Trace
	Release func()

	// Of an upload: the new storage and its bytes, which are used until Release is called. At is its place.
	Upload uint64
	Data   []byte

	// Of a request. Answer is called once.
	Request Request
	Ticket  uint64
	At      trace.Place
	View    View   // of a read
	Dst     []byte // its elements; nil if the view can't be read
	Answer  func(error)
}

// Request is the kind of a request.
type Request uint8

// Each request is the one of Runtime's method with its name.
const (
	RequestRead Request = 1 + iota
	RequestSync
	RequestRoom
)

// Credits limit how far a client may run ahead of its worker. A thread that leaves a trace counts it, and waits if no
// more are allowed. The core's credits decide; these are a copy that threads which aren't Go's can read.
type Credits struct {
	OnWay   atomic.Int64 // traces under way: their Done has not arrived
	Allowed atomic.Int64
	Core    atomic.Int64 // the CPU core on which the last item was left, from 1 on; 0: not known
	Hurry   atomic.Int64 // not 0: a thread that waits may look for the answer for a while before it sleeps
	Failing atomic.Int64 // not 0: there is an error that no thread has raised
}

// open is the submission that an item stands for. With an error the submission is a read that can't be made.
func (s *session) open(item *Item) (core.Event, error) {
	if item.Trace != nil {
		return &s.closed(item.Trace, item.Release).event, nil
	}
	by := s.metrics.bill.at(item.At)
	if item.Data != nil {
		s.metrics.uploaded(uint64(len(item.Data)), by)
		return s.copied(&upload{storage: item.Upload, data: item.Data, by: by, free: item.Release}, s.ticket(by)), nil
	}
	t := s.ticket(by)
	s.asked.add(item.Ticket, t)
	t.told = func(err error) { s.asked.drop(item.Ticket); item.Answer(err) }
	switch item.Request {
	case RequestRead:
		return t.read(item.View, item.Dst)
	case RequestSync:
		return t.sync(item.At), nil
	case RequestRoom:
		return core.Room{Ticket: t}, nil
	}
	panic(fmt.Sprintf("BUG: there is no request %d", item.Request))
}

// asked holds the tickets of requests from the mailbox, by C's number, until they are answered.
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

// cancelAsked ends the ticket of a request that was left in the mailbox. After it nothing writes the memory of its
// read.
func (s *session) cancelAsked(number uint64) {
	s.collect()
	if t := s.asked.get(number); t != nil {
		t.Cancel()
	}
}

// emptyMailbox is a mailbox where nothing is left.
type emptyMailbox struct {
	wake    chan struct{}
	credits Credits
}

// NewMailbox returns a mailbox that stays empty: all submissions come by calls.
func NewMailbox() Mailbox { return &emptyMailbox{wake: make(chan struct{}, 1)} }

func (b *emptyMailbox) Open(bool)                                       {}
func (b *emptyMailbox) Take() *Item                                     { return nil }
func (b *emptyMailbox) Stalls(func(trace.Place, uint64, time.Duration)) {}
func (b *emptyMailbox) Wait()                                           { <-b.wake }
func (b *emptyMailbox) Doze(time.Duration)                              { <-b.wake }
func (b *emptyMailbox) Credits() *Credits                               { return &b.credits }

func (b *emptyMailbox) Wake() {
	select {
	case b.wake <- struct{}{}:
	default: // a Wake that no Wait has seen is there already
	}
}
