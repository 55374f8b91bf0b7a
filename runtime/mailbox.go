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

// Mailbox is the queue through which a device gets traces, uploads, reads and waits, without a call into Go. The sender
// sleeps in its Wait. All methods may be called at the same time; Wait by one goroutine at a time.
type Mailbox interface {
	// Open has the mailbox take items until Close.
	Open()
	// Close has it refuse further items with an error. Items that are in it stay.
	Close(why error)
	// Take removes the oldest item; nil: there is none.
	Take() *Item
	// Ticket is the ticket of a request that a call has begun, and what ends it. Waits for an answer count as stalls if
	// the worker gives it. The number is 0 if memory is short.
	Ticket(at trace.Place, stalls bool) (number uint64, answer func(error))
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

// Item is a closed trace, an upload or another request.
type Item struct {
	// Of a trace; its arrays are used until Release is called.
	Trace *trace.Trace

	Release func()

	// Of others. Ticket is a number, which is 0 if no caller waits; otherwise Answer is called once.
	Ticket uint64
	Answer func(error)
	At     trace.Place

	Upload *Upload

	Request Request // of no trace and no upload
	View    View    // of a read
	Dst     []byte  // its elements; nil if the view can't be read
}

// Request is the kind of a request.
type Request uint8

const (
	RequestRead Request = 1 + iota
	RequestSync         // a wait for all that was submitted before it
	RequestRoom         // a wait until the worker has caught up with the credits
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

// submission is what an item stands for. With an error it is a read that can't be made.
func (s *session) submission(item *Item) (core.Event, error) {
	if item.Trace != nil {
		return &s.closed(item.Trace, item.Release).event, nil
	}
	by := s.metrics.Bill.At(item.At)
	if item.Upload != nil && item.Ticket == 0 {
		return s.upload(item.Upload, nil, by), nil
	}
	t := s.ticket(by)
	s.tickets.open(item.Ticket, t, item.Answer)
	if item.Upload != nil {
		return s.upload(item.Upload, t, by), nil
	}
	switch item.Request {
	case RequestRead:
		return t.read(item.View, item.Dst)
	case RequestSync:
		t.all = item.At != trace.Place{} // without a place it is not the user's
		return core.Sync{Ticket: t}, nil
	case RequestRoom:
		return core.Room{Ticket: t}, nil
	}
	panic(fmt.Sprintf("BUG: there is no request %d", item.Request))
}

// tickets are the tickets of all devices that C code knows, by its number for them, until they are answered. That of a
// question stays until somebody has taken its answer.
type tickets struct {
	mu  sync.Mutex
	all map[uint64]*Ticket
}

// open gives a ticket a number. answer gets its answer.
func (a *tickets) open(number uint64, t *Ticket, answer func(error)) {
	t.told = func(err error) {
		if err != nil || !t.question {
			a.drop(number)
		}
		answer(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all[number] = t
}

func (a *tickets) drop(number uint64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.all, number)
}

// get is the ticket with a number; nil: it has ended.
func (a *tickets) get(number uint64) *Ticket {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.all[number]
}
