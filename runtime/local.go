// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/trace"
)

// ErrPending means that a ticket's answer has not arrived.
var ErrPending = errors.New("pending")

// Local is a runtime for callers in Go: tests, and programs without C code. Its methods leave items in mailboxes and
// wait for answers as the functions of csrc/abi/mycelya.h with these names do.
type Local struct {
	*Runtime

	mu     sync.Mutex
	queues map[int32]*queue
	number uint64
	waits  map[uint64]*waiting
}

// NewLocal is New.
func NewLocal(frontend compile.Frontend, provide func(Paths) (provider.Provider, error)) *Local {
	l := &Local{queues: map[int32]*queue{}, waits: map[uint64]*waiting{}}
	l.Runtime = New(frontend, provide, func(index int32) (Mailbox, error) { return l.queue(index), nil })
	return l
}

func (l *Local) queue(index int32) *queue {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queues[index]
	if q == nil {
		q = &queue{of: l, index: index, wake: make(chan struct{}, 1), stalls: map[trace.Place]stall{},
			closed: &Error{Kind: KindRuntime, Text: fmt.Sprintf("mycelya:%d is not open.", index)}}
		l.queues[index] = q
	}
	return q
}

// Start starts a device's worker. ErrPending: it runs, or has failed to, when the ticket has its answer.
func (l *Local) Start(index int32) (uint64, error) {
	ticket, err := l.Runtime.Start(index)
	if ticket != 0 {
		err = ErrPending
	}
	return ticket, err
}

// Flush submits a closed trace. Its arrays are used until release is called, which happens once, also if Flush fails.
// ErrPending: it was taken, but more traces are under way than the credits allow.
func (l *Local) Flush(index int32, t *trace.Trace, release func()) error {
	q := l.queue(index)
	behind := q.credits.OnWay.Add(1) >= q.credits.Allowed.Load()
	_, err := q.post(&Item{Trace: t, Release: release}, false)
	switch {
	case err != nil:
		q.credits.OnWay.Add(-1)
		release()
		return err
	case behind:
		return ErrPending
	}
	return nil
}

// Upload makes a storage with these bytes. ErrPending: they are used until the ticket has its answer.
func (l *Local) Upload(index int32, id uint64, data []byte, at trace.Place) (uint64, error) {
	address := uintptr(unsafe.Pointer(unsafe.SliceData(data)))
	return l.queue(index).upload(&Upload{Storage: id, Data: data, Address: address}, at)
}

// UploadShared makes a storage with data, which from locates in shared memory. The block must exist, and its bytes must
// not change, until release is called, which happens once, also if UploadShared fails. ErrPending: the caller waits for
// that, as for the ticket's answer, because too many bytes are under way.
func (l *Local) UploadShared(index int32, id uint64, data []byte, from Shared, release func(), at trace.Place) (uint64,
	error) {
	return l.queue(index).upload(&Upload{Storage: id, Data: data, Shared: &from, Release: release}, at)
}

// Read begins a read of a view's elements into dst and returns its ticket.
func (l *Local) Read(index int32, v View, dst []byte, at trace.Place) (uint64, error) {
	return l.queue(index).post(&Item{Request: RequestRead, At: at, View: v, Dst: dst}, true)
}

// Sync begins a wait for all that was submitted before it and returns its ticket.
func (l *Local) Sync(index int32, at trace.Place) (uint64, error) {
	return l.queue(index).post(&Item{Request: RequestSync, At: at}, true)
}

// Room begins a wait until the worker has caught up with the credits and returns its ticket.
func (l *Local) Room(index int32, at trace.Place) (uint64, error) {
	return l.queue(index).post(&Item{Request: RequestRoom, At: at}, true)
}

// Wait waits at most timeout for the answer of a ticket. ErrPending: call again, or cancel. Anything else is the
// answer, and ends the ticket.
func (l *Local) Wait(ticket uint64, timeout time.Duration) error {
	l.mu.Lock()
	w := l.waits[ticket]
	l.mu.Unlock()
	if w == nil {
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: ticket %d does not exist.", ticket)}
	}
	select {
	case err := <-w.answer:
		l.end(ticket)
		return err
	default:
	}
	began := time.Now()
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	defer func() { w.count(time.Since(began)) }()
	select {
	case err := <-w.answer:
		l.end(ticket)
		return err
	case <-timer.C:
		return ErrPending
	}
}

// Cancel ends a ticket. After it nothing writes the memory of its read.
func (l *Local) Cancel(ticket uint64) {
	l.mu.Lock()
	w := l.waits[ticket]
	l.mu.Unlock()
	if w != nil {
		l.Runtime.Cancel(w.queue.index, ticket)
		l.end(ticket)
	}
}

func (l *Local) end(ticket uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waits, ticket)
}

// queue is the mailbox of a device of a Local.
type queue struct {
	of      *Local
	index   int32
	credits Credits
	wake    chan struct{} // has a Wake that no Wait has seen
	bytes   atomic.Uint64 // of uploads that are copied or in shared memory

	mu     sync.Mutex
	closed error // why items are refused; nil: they are not
	items  []*Item
	stalls map[trace.Place]stall
}

// waiting is a ticket whose answer nobody has taken.
type waiting struct {
	queue   *queue
	answer  chan error
	at      trace.Place
	stalls  bool
	counted bool
}

type stall struct {
	waits uint64
	took  time.Duration
}

func (q *queue) Open() { q.Close(nil) }

func (q *queue) Close(why error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = why
}

func (q *queue) Take() *Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		return nil
	}
	item := q.items[0]
	q.items = q.items[1:]
	return item
}

func (q *queue) Ticket(at trace.Place, stalls bool) (number uint64, answer func(error)) {
	w := &waiting{queue: q, answer: make(chan error, 1), at: at, stalls: stalls}
	l := q.of
	l.mu.Lock()
	defer l.mu.Unlock()
	l.number++
	l.waits[l.number] = w
	return l.number, func(err error) { w.answer <- err }
}

func (q *queue) Stalls(each func(at trace.Place, waits uint64, took time.Duration)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for at, s := range q.stalls {
		each(at, s.waits, s.took)
	}
	clear(q.stalls)
}

// count counts a wait that did not end at once.
func (w *waiting) count(took time.Duration) {
	q := w.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if !w.stalls {
		return
	}
	s := q.stalls[w.at]
	if s.took += took; !w.counted {
		s.waits++
	}
	w.counted = true
	q.stalls[w.at] = s
}

func (q *queue) Wait()              { <-q.wake }
func (q *queue) Doze(time.Duration) { <-q.wake }
func (q *queue) Credits() *Credits  { return &q.credits }

func (q *queue) Wake() {
	select {
	case q.wake <- struct{}{}:
	default: // a Wake that no Wait has seen is there already
	}
}

// post leaves an item, with a ticket if the caller waits.
func (q *queue) post(item *Item, waits bool) (uint64, error) {
	if waits {
		item.Ticket, item.Answer = q.Ticket(item.At, item.Upload == nil)
	}
	q.mu.Lock()
	why := q.closed
	if why == nil {
		q.items = append(q.items, item)
	}
	q.mu.Unlock()
	if why != nil {
		q.of.end(item.Ticket)
		return 0, why
	}
	q.Wake()
	return item.Ticket, nil
}

// upload leaves an upload.
func (q *queue) upload(u *Upload, at trace.Place) (uint64, error) {
	n, waits := uint64(len(u.Data)), false
	switch {
	case u.Shared != nil:
		waits = q.bytes.Add(n) > max(n, catalogue.UploadUnderWay) // one is always taken
	case n > catalogue.UploadCopied:
		waits = true
	case q.bytes.Add(n) > catalogue.UploadUnderWay:
		q.bytes.Add(-n)
		waits = true
	default:
		u.Data, u.Release = copyOut(u.Data)
	}
	if release := u.Release; release != nil {
		u.Release = func() { q.bytes.Add(-n); release() }
	}
	ticket, err := q.post(&Item{Upload: u, At: at}, waits)
	switch {
	case err == nil && waits:
		return ticket, ErrPending
	case err != nil && u.Release != nil:
		u.Release()
	}
	return 0, err
}
