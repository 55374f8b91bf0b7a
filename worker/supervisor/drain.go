// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"net"
	"time"

	"github.com/mycelya/mycelya/proto/link"
)

const (
	// stopText is the answer to the clients of a worker that is being stopped.
	stopText = "The worker is being stopped."
	// drainLook is the time between two looks at the sessions that were told to end.
	drainLook = 10 * time.Millisecond
	// yieldWait limits the time in which a session must end after another client has taken the worker over.
	yieldWait = 10 * time.Second
)

var errStopping = errors.New("the worker is being stopped")

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

// serveLocal gives a client on this host its session.
func (s *Supervisor) serveLocal(c *net.UnixConn) error {
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
	s.entering.Lock()
	defer s.entering.Unlock()
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
