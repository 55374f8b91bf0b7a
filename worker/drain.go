// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
)

const (
	// stopText is the answer to the clients of a worker that is being stopped.
	stopText = "The worker is being stopped."
	// A session that was told to end has received all its frames if drainLooks checks in a row, drainLook apart, find no
	// new one. Checks are counted instead of time, because the system may not run the process for a while.
	drainLook  = 10 * time.Millisecond
	drainLooks = 10
	// yieldWait limits the time in which a session must end after another client has taken the worker over.
	yieldWait = 10 * time.Second
	// lastWait limits the time in which a client must read the last frame. A client whose connection is lost has
	// lastWaitLink, because it tries to connect every two seconds.
	lastWait     = time.Second
	lastWaitLink = 3 * time.Second
)

var (
	errStopping = errors.New("the worker is being stopped")
	// errDrained means that a session has handled all frames that had arrived when it was told to end.
	errDrained = errors.New("worker: the session has answered all that had arrived")
)

// Drain ends the supervisor gracefully. New clients are refused. Each session answers the frames that have arrived, and
// tells its client why it ends. Sessions that have not ended after the longest time are killed. Drain returns when no
// process runs; Close may be called meanwhile, and ends everything at once.
func (s *Supervisor) Drain(longest time.Duration) {
	s.Begin()
	s.mu.Lock()
	s.draining = true
	s.mu.Unlock()
	over := time.Now().Add(longest)
	for sessions := s.tell(); sessions > 0; sessions = s.tell() {
		if !time.Now().Before(over) {
			s.Log.Warn("sessions are killed: they did not end in time", "sessions", sessions, "time", longest)
			break
		}
		time.Sleep(drainLook)
	}
	s.Close()
}

// tell tells sessions to end that were not told yet, and returns how many there are. A client whose connection came
// before Drain may get its session later.
func (s *Supervisor) tell() (sessions int) {
	return len(s.end(messageDrain, func(*process) bool { return true }))
}

// end tells the sessions that which chooses, with the lock held, to end if they were not told yet. It returns those
// that have not ended.
func (s *Supervisor) end(message byte, which func(*process) bool) (chosen []*process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p := range s.live {
		if p.given && which(p) {
			chosen = append(chosen, p)
			if !p.told {
				p.told = true
				go func() { _, _ = p.control.Write([]byte{message}) }() // a stopped process may not read
			}
		}
	}
	return chosen
}

// place gives a client on this host its session.
func (s *Supervisor) place(c *net.UnixConn) error {
	p, err := s.process(true)
	if err != nil {
		return err
	}
	return p.give(c)
}

// entered notes the client of a process after the client's Hello. If the worker serves one client at a time, entered
// first ends the sessions of the other client. These sessions complete all frames that they have received. A session
// that does not end within yieldWait is killed. A process whose client has not sent a Hello yet is left alone, because
// that client came later.
func (s *Supervisor) entered(of *process, client string) {
	if !s.Single {
		return
	}
	s.placing.Lock()
	defer s.placing.Unlock()
	s.mu.Lock()
	of.client = client
	s.mu.Unlock()
	over := time.Now().Add(yieldWait)
	for {
		others := s.end(messageYield, func(p *process) bool { return p.client != "" && p.client != client })
		if len(others) == 0 {
			return
		}
		if !time.Now().Before(over) {
			for _, p := range others {
				_ = p.cmd.Process.Kill()
			}
		}
		time.Sleep(drainLook)
	}
}

// refuseNew tells a client over TCP that a worker that is being stopped has no session for it. It reports whether it
// did: the connection is that of a new session.
func (s *Supervisor) refuseNew(nc net.Conn, session string) bool {
	s.mu.Lock()
	refuse := s.draining && s.sessions[session] == nil
	s.mu.Unlock()
	if refuse {
		s.refuse(nc, link.Stopping)
	}
	return refuse
}

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
	look := time.NewTicker(drainLook)
	defer look.Stop()
	last := t.c.Progress()
	for idle := 0; idle < drainLooks; idle++ {
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
	return lastWait
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
