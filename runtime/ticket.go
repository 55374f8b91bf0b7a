// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"errors"
	"sync"
	"time"
)

// ErrPending says that a ticket's answer has not come yet.
var ErrPending = errors.New("pending")

// Ticket stands for an answer that is on its way.
type Ticket struct {
	done    chan struct{} // closed when err is final
	metrics *metrics
	by      *charge     // who asked
	told    func(error) // is called once with the answer; nil: nobody is to be told

	mu      sync.Mutex
	err     error
	ended   bool
	stalled bool
	dst     []byte        // where a read goes; nil once nobody may write it
	filling chan struct{} // closed when the receiver is through with dst; nil while it isn't at it
	abandon func()        // ends the connection under a receiver that fills dst
}

func newTicket(m *metrics, by *charge, dst []byte) *Ticket {
	return &Ticket{done: make(chan struct{}), metrics: m, by: by, dst: dst}
}

// end makes err the answer, unless there is one. dst is not written any more after it, except by a fill that
// has begun, which then ends the ticket itself.
func (t *Ticket) end(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ended || t.filling != nil {
		return
	}
	t.ended, t.err, t.dst = true, err, nil
	close(t.done)
	if t.told != nil {
		t.told(err)
	}
}

// fill lets read write dst and makes its error the answer. False: nobody waits for the bytes any more, or they
// are not of the length that was asked for.
func (t *Ticket) fill(n uint64, abandon func(), read func(dst []byte) error) (bool, error) {
	t.mu.Lock()
	if t.ended || uint64(len(t.dst)) != n {
		t.mu.Unlock()
		return false, nil
	}
	dst := t.dst
	t.filling, t.abandon = make(chan struct{}), abandon
	t.mu.Unlock()
	err := read(dst)
	t.mu.Lock()
	close(t.filling)
	t.filling = nil
	t.mu.Unlock()
	return true, err
}

// Wait waits at most timeout for the answer; ErrPending: it has not come.
func (t *Ticket) Wait(timeout time.Duration) error {
	select {
	case <-t.done:
		return t.err
	default:
	}
	if timeout <= 0 { // only a question
		return ErrPending
	}
	t.mu.Lock()
	if !t.stalled {
		t.stalled = true
		t.metrics.stall(t.by)
	}
	t.mu.Unlock()
	start := time.Now()
	defer t.metrics.stalled(start, t.by)
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-t.done:
		return t.err
	case <-timer.C:
		return ErrPending
	}
}

// cancelPatience is how long a cancel waits for bytes that are arriving. A local worker fills a GiB in less; past it the
// worker has stopped in the middle of its answer, and only the end of the connection makes dst safe.
const cancelPatience = 5 * time.Second

// Cancel ends the ticket. After it has returned nobody writes the memory that the read was given.
func (t *Ticket) Cancel() {
	t.mu.Lock()
	filling, abandon := t.filling, t.abandon
	t.mu.Unlock()
	if filling != nil {
		select {
		case <-filling:
		case <-time.After(cancelPatience):
			abandon()
			<-filling
		}
	}
	t.end(errors.New("canceled"))
}
