// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"errors"
	"io"
	"log/slog"
	"net"
	"os/exec"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// Supervisor accepts clients on a listener and passes each connection to a process of its own, which serves the
// session. It never loads PyTorch, never reads a client's frames but for the first header, and never ends with a
// session. Set the fields, then call Serve once.
type Supervisor struct {
	// Command makes the command of a session's process, which calls OpenChannel.
	Command func() *exec.Cmd
	Log     *slog.Logger
	Output  io.Writer // gets the output of the processes

	once    sync.Once
	starts  chan start // served by the thread that starts all processes
	waiting chan struct{}

	mu       sync.Mutex
	closed   bool
	listener net.Listener
	spare    *process // without a client yet
	live     map[*process]struct{}
	ended    []*proto.EndedReply // newest last
	pending  map[net.Conn]struct{}
}

type start struct {
	cmd   *exec.Cmd
	reply chan started
}

type started struct {
	p   *process
	err error
}

const (
	// Connections that have not sent their first header. They have a bound of their own, so that they keep no session out.
	maxPending = 64
	// Ends that are kept for clients that ask.
	maxEnds = 64
	// How long an answer to Ended waits for the end of a process whose connection has ended.
	endWait = 1500 * time.Millisecond
)

// Begin starts the process of the first client, which loads PyTorch while the client connects. Serve calls it
// otherwise.
func (s *Supervisor) Begin() {
	s.once.Do(func() {
		s.starts, s.waiting = make(chan start), make(chan struct{}, maxPending)
		s.live, s.pending = map[*process]struct{}{}, map[net.Conn]struct{}{}
		go s.startAll()
		p, err := s.launch()
		if err != nil {
			s.Log.Error("a session's process cannot be started", "error", err)
			return
		}
		s.mu.Lock()
		s.spare = p
		s.mu.Unlock()
	})
}

// startAll starts processes on a thread that never ends, as startProcess requires.
func (s *Supervisor) startAll() {
	goruntime.LockOSThread()
	for r := range s.starts {
		p, err := startProcess(r.cmd, s.Output)
		r.reply <- started{p, err}
	}
}

// launch starts a process.
func (s *Supervisor) launch() (*process, error) {
	r := start{s.Command(), make(chan started, 1)}
	s.starts <- r
	out := <-r.reply
	if out.err != nil {
		return nil, out.err
	}
	s.mu.Lock()
	s.live[out.p] = struct{}{}
	closed := s.closed
	s.mu.Unlock()
	if closed {
		_ = out.p.cmd.Process.Kill()
	}
	go s.bury(out.p)
	return out.p, nil
}

// bury keeps the end of a process.
func (s *Supervisor) bury(p *process) {
	<-p.done
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, p)
	if s.spare == p {
		s.spare = nil
	}
	if s.ended = append(s.ended, p.end); len(s.ended) > maxEnds {
		s.ended = append(s.ended[:0], s.ended[1:]...)
	}
	if !s.closed && (p.end.Code != 0 || p.end.Signal != "") {
		s.Log.Error("a session's process has ended", "pid", p.end.Pid, "code", p.end.Code, "signal", p.end.Signal,
			"call", p.end.Call, "step", int64(p.end.Step)-1)
	}
}

// Serve accepts clients until Close. It owns l.
func (s *Supervisor) Serve(l net.Listener) error {
	s.Begin()
	s.mu.Lock()
	s.listener = l
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return l.Close()
	}
	var clients sync.WaitGroup
	for {
		c, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			s.Close()
			clients.Wait()
			return err
		}
		if err := transport.CheckPeer(c); err != nil {
			s.Log.Warn("a connection is refused", "error", err)
			_ = c.Close()
			continue
		}
		if !s.admit(c) {
			_ = c.Close()
			continue
		}
		clients.Go(func() {
			defer s.dismiss(c)
			s.client(c.(*net.UnixConn)) // CheckPeer accepts nothing else
		})
	}
}

// admit counts a connection until dismiss.
func (s *Supervisor) admit(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.pending) >= maxPending {
		s.Log.Warn("a connection is refused", "waiting", len(s.pending))
		return false
	}
	s.pending[c] = struct{}{}
	return true
}

func (s *Supervisor) dismiss(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pending, c)
}

// Close ends Serve and all sessions. It returns when no process runs.
func (s *Supervisor) Close() {
	s.Begin()
	s.mu.Lock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for c := range s.pending {
		_ = c.Close()
	}
	var processes []*process
	for p := range s.live {
		_ = p.cmd.Process.Kill()
		processes = append(processes, p)
	}
	s.mu.Unlock()
	for _, p := range processes {
		<-p.done
	}
}

// client routes a connection by its first frame.
func (s *Supervisor) client(c *net.UnixConn) {
	_ = c.SetReadDeadline(time.Now().Add(helloWait))
	first, err := transport.Peek(c)
	if err != nil {
		s.Log.Warn("a connection has ended before its first frame", "error", err)
		return
	}
	if first == transport.Ended {
		s.answerEnded(c)
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	p, err := s.process()
	if err == nil {
		err = p.give(c)
	}
	if err != nil {
		s.Log.Error("a client has no process", "error", err)
		refuse(transport.New(c), 0, "The worker cannot start a process for the session: "+err.Error()+".")
	}
}

var errFull = errors.New("it has as many sessions as it may have")

// process returns a process without a client.
func (s *Supervisor) process() (*process, error) {
	s.mu.Lock()
	p, full := s.spare, len(s.live) >= maxSessions
	s.spare = nil
	s.mu.Unlock()
	if p == nil {
		if full {
			return nil, errFull
		}
		var err error
		if p, err = s.launch(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	p.given = true
	s.mu.Unlock()
	return p, nil
}

// answerEnded answers a client that asks how the process of its session has ended.
func (s *Supervisor) answerEnded(nc net.Conn) {
	c := transport.New(nc)
	var m proto.Ended
	h, err := c.Next()
	if err == nil {
		err = c.Meta(&m)
	}
	if err == nil {
		err = c.Send(transport.EndedReply, h.Seq, s.end(m.Pid), nil)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		s.Log.Warn("a question for the end of a session has no answer", "error", err)
	}
}

// end returns how a process has ended. It waits for the end of a process that still runs. pid 0 is any process with a
// client: a client that has had no Hello does not know the number of its process.
func (s *Supervisor) end(pid uint64) *proto.EndedReply {
	s.mu.Lock()
	var running *process
	for p := range s.live {
		if p.given && (p.pid() == pid || pid == 0) {
			running = p
		}
	}
	s.mu.Unlock()
	if running != nil {
		if e := running.ended(endWait); e != nil {
			return e
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := len(s.ended) - 1; i >= 0; i-- {
		if e := s.ended[i]; pid == 0 || e.Pid == pid {
			return e
		}
	}
	return &proto.EndedReply{}
}
