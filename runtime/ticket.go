// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"sync/atomic"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/report"
)

// Ticket stands for a pending answer. The core decides when the ticket ends, and when its memory is written.
type Ticket struct {
	session *session
	done    chan struct{} // closed when err is final
	err     error
	by      *report.Charge // for its bytes
	told    func(error)    // called once with the answer, before done is closed; may be nil
	sends   bool           // it waits for bytes that are being sent
	all     bool           // the user waits for all that was submitted

	// Of a read.
	view    View
	dst     []byte
	counted bool   // by downloading
	got     uint64 // bytes that have come

	// Of a question about kept state.
	question bool
	message  protobuf.Message // nil: of a checkpoint
	reply    *proto.StateReply
	found    uint64 // its number, for a Load
	fetch    *fetch // that the question is about
	news     bool   // the core does not know the ticket: it waits for news of the fetch
	have     int    // tensors of the fetch that the caller has
	log      string // the worker's log

	// Of a pass to another device.
	name  string
	aside bool // the elements go through the client

	apart bool        // the core does not know the ticket: tryEnd ends it
	tried atomic.Bool // tryEnd has ended it
}

func (s *session) ticket(by *report.Charge) *Ticket {
	return &Ticket{session: s, done: make(chan struct{}), by: by}
}

// end makes err the answer. It is called once.
func (t *Ticket) end(err error) {
	t.err = err
	t.session.downloading.ended(t)
	if t.all {
		t.session.waitedForAll(err)
	}
	if t.told != nil {
		t.told(err)
	}
	close(t.done)
}

// tryEnd makes err the answer of a ticket that the core does not know, unless it has one.
func (t *Ticket) tryEnd(err error) bool {
	if !t.tried.CompareAndSwap(false, true) {
		return false
	}
	t.end(err)
	return true
}

// over reports whether the ticket has ended.
func (t *Ticket) over() bool {
	select {
	case <-t.done:
		return true
	default:
		return false
	}
}

// cancelPatience is how long a cancel waits for bytes that are arriving. A local worker sends a GiB in less time. After
// it the worker has stopped in the middle of its answer, and only the end of the connection makes the memory safe.
const cancelPatience = 5 * time.Second

// Cancel ends the ticket. After it has returned nothing writes the memory that the read was given.
func (t *Ticket) Cancel() {
	if t.news {
		t.fetch.leave(t)
		return
	}
	if t.apart {
		t.tryEnd(core.ErrCanceled)
		return
	}
	t.session.do(core.Cancel{Ticket: t})
	if t.over() {
		return
	}
	timer := time.NewTimer(cancelPatience)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
		t.session.disconnect()
		<-t.done
	}
}
