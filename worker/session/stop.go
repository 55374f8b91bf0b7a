// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
)

const (
	// A session that was told to end has received all its frames if stopLooks checks in a row, stopLook apart, find no
	// new one. Checks are counted instead of time, because the system may not run the process for a while.
	stopLook  = 10 * time.Millisecond
	stopLooks = 10
	// LastWait limits the time in which a client must read the last frame. A client whose connection is lost has
	// lastWaitLink, because it tries to connect every two seconds.
	LastWait     = time.Second
	lastWaitLink = 3 * time.Second
)

// errDrained means that a session has handled all frames that had arrived when it was told to end.
var errDrained = errors.New("worker: the session has answered all that had arrived")

// stop is how a session ends when its process is told to. The session's thread ends it between two frames. If that
// thread waits for bytes, watch does.
type stop struct {
	c      *transport.Conn
	target atomic.Uint64 // 1 + the bytes of the stream that had arrived when the session was told to end; 0 before
	text   string        // for the client; set before target
	said   atomic.Bool   // the last frame is being sent, or was
	ended  chan struct{} // closed when the session has ended
}

func newStop(c *transport.Conn) *stop { return &stop{c: c, ended: make(chan struct{})} }

// begin tells the session to end.
func (t *stop) begin(text string) {
	t.text = text
	t.target.Store(1 + t.c.Arrived())
	go t.watch()
}

// due says whether all that had arrived has been handled, between two frames.
func (t *stop) due() bool {
	target := t.target.Load()
	return target > 0 && 1+t.c.Taken() >= target
}

// watch ends the session when its thread waits for bytes and none come.
func (t *stop) watch() {
	look := time.NewTicker(stopLook)
	defer look.Stop()
	last := t.c.Progress()
	for idle := 0; idle < stopLooks; idle++ {
		select {
		case <-t.ended:
			return
		case <-look.C:
		}
		n := t.c.Progress()
		if n%2 == 0 || n != last || t.c.Queued() > 0 { // it works, or has work
			last, idle = n, 0
		}
	}
	if !t.said.CompareAndSwap(false, true) {
		return
	}
	wait := t.wait()
	if sayLast(t.c, 0, t.text, wait) == nil { // the session's thread discards what still comes
		select {
		case <-t.ended:
		case <-time.After(wait):
		}
	}
	_ = t.c.Close()
}

// say ends the session on its own thread.
func (t *stop) say() {
	if t.said.CompareAndSwap(false, true) {
		last(t.c, 0, t.text, t.wait())
	}
}

func (t *stop) wait() time.Duration {
	if _, ok := t.c.Net().(*link.Stream); ok {
		return lastWaitLink
	}
	return LastWait
}

// awaitStop tells all sessions to end when Stop says so.
func (s *Server) awaitStop() {
	text := <-s.Stop
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopping = text
	for _, t := range s.conns {
		t.begin(text)
	}
}
