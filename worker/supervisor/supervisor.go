// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package supervisor accepts clients and starts a process for each session. It has what these processes may not have:
// files, sockets and other processes. An error of one client never affects another.
package supervisor

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os/exec"
	goruntime "runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/session"
)

// Supervisor accepts clients on a listener and passes each connection to a process of its own, which serves the
// session. It never loads PyTorch, never reads a client's frames but for the first header, and never ends with a
// session. Set the fields, then call Serve once.
type Supervisor struct {
	// Command makes the command of a session's process, which calls OpenChannel.
	Command func() *exec.Cmd
	Log     *slog.Logger
	Output  io.Writer // gets the output of the processes
	// Credentials let clients in that prove who they are; nil: all clients come over a unix socket, and have this user.
	Credentials *transport.Credentials
	Clocks      Clocks
	// Single: one client at a time. A new one ends the sessions of the last, once they have done what has arrived.
	Single bool
	Kept   *kept.Folder // for what sessions keep; nil: they keep nothing
	// Helper makes the command of a process that fetches weights: it serves the socket that is its descriptor HelperFD.
	// nil: nothing is fetched.
	Helper func() *exec.Cmd
	// Threads is how many threads one operator uses on the CPU, for Report.
	Threads int
	// GPUs tells about the GPUs of this host, for Report; nil: nothing is told.
	GPUs func() []GPU
	// Crashes is a folder that keeps what is needed to study crashes; "": nothing is kept.
	Crashes string

	events events
	once   sync.Once
	code   atomic.Int32 // what ExitCode returns
	starts chan start   // served by the thread that starts all processes
	lender *lender      // of memory for what sessions pass to each other

	starting sync.Mutex
	entering sync.Mutex // held while a client takes the place of others: two would wait for each other
	dumping  sync.Mutex // held while a crash is written down

	mu       sync.Mutex
	closed   bool
	draining bool // no client gets a session any more
	listener net.Listener
	spare    *process // without a client yet
	live     map[*process]struct{}
	sessions map[string]*process // by the name that a client over TCP has proved to own
	ended    []end               // newest last
	pending  []net.Conn          // connections whose first bytes have not come, oldest first
	started  time.Time           // when Begin was called
	began    time.Time           // when the clocks have begun
	used     time.Time           // when there was a session last, as the clocks know it
}

type start struct {
	cmd    *exec.Cmd
	helper bool // it is no session's process
	reply  chan started
}

type started struct {
	p   *process
	err error
}

// end describes a process that has ended.
type end struct {
	names   []string // the session names that clients have asked it for
	session string   // the session name that a client has proved to own; "" if none has
	reply   *proto.EndedReply
}

const (
	// maxPending limits the connections that have not sent their first bytes yet. When one more arrives, the supervisor
	// closes the oldest of them, so that silent connections cannot keep clients out. They may use at most one in
	// descriptorShare of the file descriptors of the process.
	maxPending      = 64
	descriptorShare = 4
	// maxNames limits the session names that a process notes for clients that have not proved who they are.
	maxNames = 64
	// Ends that are kept for clients that ask.
	maxEnds = 64
	// After an Accept that has failed for lack of descriptors, the next one comes so much later.
	scarcePause = 20 * time.Millisecond
	// How long an answer to Ended waits for the end of a process whose connection has ended, and how much longer if the
	// process does end, because it has let go of its socket: a busy host takes its time for that and for the folder of
	// the crash.
	endWait   = 1500 * time.Millisecond
	leaveWait = 4 * time.Second
)

// Begin starts the process of the first client, which loads PyTorch while the client connects. Serve calls it
// otherwise.
func (s *Supervisor) Begin() {
	s.once.Do(func() {
		now := time.Now()
		s.note(now, now) // the first client may ask before the clocks run
		s.mu.Lock()
		s.started = now
		s.mu.Unlock()
		s.starts = make(chan start)
		s.live, s.sessions = map[*process]struct{}{}, map[string]*process{}
		s.events = newEvents()
		s.lender = newLender()
		if s.Kept != nil {
			s.Kept.Clear()
		}
		go s.startAll()
		p, err := s.newProcess()
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
		if r.helper {
			dieWithParent(r.cmd)
			r.reply <- started{nil, r.cmd.Start()}
			continue
		}
		var secret []byte
		var err error
		if s.Credentials != nil {
			secret, err = s.Credentials.Encode()
		}
		var p *process
		if err == nil {
			p, err = startProcess(r.cmd, secret, s.Output, s.crashed())
		}
		r.reply <- started{p, err}
	}
}

// newProcess starts a process.
func (s *Supervisor) newProcess() (*process, error) {
	r := start{cmd: s.Command(), reply: make(chan started, 1)}
	s.starts <- r
	out := <-r.reply
	if out.err != nil {
		return nil, out.err
	}
	s.mu.Lock()
	s.live[out.p] = struct{}{}
	s.lender.join(out.p.pid())
	closed := s.closed
	s.mu.Unlock()
	go s.bury(out.p)
	go out.p.listen(s, s.newHelpers())
	if closed { // Close does not know of it
		_ = out.p.cmd.Process.Kill()
		out.p.awaitEnd()
	}
	return out.p, nil
}

// claimed notes the session of a process. The process is not a spare one any more.
func (s *Supervisor) claimed(p *process, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, lives := s.live[p]; lives {
		s.sessions[name] = p
	}
	s.give(p)
	p.session, p.names = name, []string{name}
	if s.spare == p {
		s.spare = nil
	}
}

// give notes that a process has its client. The caller holds the lock.
func (s *Supervisor) give(p *process) {
	if !p.given {
		p.given = true
		s.events.sessions.Inc()
	}
}

// bury keeps the end of a process.
func (s *Supervisor) bury(p *process) {
	p.awaitEnd() // and its helpers, which work on its requests
	s.lender.leave(p.pid())
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.live, p)
	if s.spare == p {
		s.spare = nil
	}
	for _, name := range p.names {
		if s.sessions[name] == p {
			delete(s.sessions, name)
		}
	}
	if s.ended = append(s.ended, end{p.names, p.session, p.end}); len(s.ended) > maxEnds {
		s.ended = append(s.ended[:0], s.ended[1:]...)
	}
	how := "done"
	if p.end.Signal != "" {
		how = "signal"
	} else if p.end.Code != 0 {
		how = "code"
	}
	s.events.ends.WithLabelValues(how).Inc()
	if !s.closed && (p.end.Code != 0 || p.end.Signal != "") {
		s.Log.Error("a session's process has ended", "pid", p.end.Pid, "code", p.end.Code, "signal", p.end.Signal,
			"call", p.end.Call, "step", int64(p.end.Step)-1, "kept", p.end.Dump)
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
	go s.watch()
	var clients sync.WaitGroup
	for {
		c, err := l.Accept()
		if scarce(err) {
			s.makeRoom(err)
			continue
		}
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				err = nil
			}
			s.Close()
			clients.Wait()
			return err
		}
		serve := s.clientOf(c)
		if serve == nil || !s.admit(c) {
			_ = c.Close()
			continue
		}
		clients.Go(func() {
			defer s.dismiss(c)
			serve()
		})
	}
}

// clientOf returns the function that serves a connection; nil: the connection is refused.
func (s *Supervisor) clientOf(c net.Conn) func() {
	if tcp, ok := c.(*net.TCPConn); ok && s.Credentials != nil {
		return func() { s.remoteClient(tcp) }
	}
	if err := transport.CheckPeer(c); err != nil {
		s.refused("error", err)
		return nil
	}
	u := c.(*net.UnixConn) // CheckPeer accepts nothing else
	if s.Credentials != nil {
		return func() { s.remoteClient(u) } // a relay, whose client is on another host
	}
	return func() { s.client(u) }
}

// refused notes a connection that gets no session.
func (s *Supervisor) refused(why ...any) {
	s.events.refused.Inc()
	s.Log.Warn("a connection is refused", why...)
}

// admit counts a connection until dismiss.
func (s *Supervisor) admit(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	if len(s.pending) >= mostPending() {
		s.Log.Warn("a connection is closed: others wait", "from", s.pending[0].RemoteAddr())
		_ = s.pending[0].Close()
		s.pending = s.pending[1:]
	}
	s.pending = append(s.pending, c)
	return true
}

// mostPending is maxPending, or less for a process that may have few descriptors.
func mostPending() int {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return maxPending
	}
	return int(max(1, min(maxPending, limit.Cur/descriptorShare)))
}

// scarce says whether an error of Accept passes: the process or the host lacks descriptors or memory for a connection,
// or the client has gone.
func scarce(err error) bool {
	return slices.ContainsFunc([]error{syscall.EMFILE, syscall.ENFILE, syscall.ENOBUFS, syscall.ENOMEM,
		syscall.ECONNABORTED}, func(e error) bool { return errors.Is(err, e) })
}

// makeRoom closes the oldest of the connections whose first bytes have not come, and waits a moment.
func (s *Supervisor) makeRoom(why error) {
	s.mu.Lock()
	if len(s.pending) > 0 {
		_ = s.pending[0].Close()
		s.pending = s.pending[1:]
	}
	s.mu.Unlock()
	s.Log.Warn("a connection cannot be accepted yet", "error", why)
	time.Sleep(scarcePause)
}

func (s *Supervisor) dismiss(c net.Conn) {
	_ = c.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pending = remove(s.pending, c)
}

// Close ends Serve and all sessions. It returns when no process runs.
func (s *Supervisor) Close() {
	s.Begin()
	s.mu.Lock()
	s.closed = true
	if s.listener != nil {
		_ = s.listener.Close()
	}
	for _, c := range s.pending {
		_ = c.Close()
	}
	var processes []*process
	for p := range s.live {
		_ = p.cmd.Process.Kill()
		processes = append(processes, p)
	}
	s.mu.Unlock()
	for _, p := range processes {
		p.awaitEnd()
	}
}

// client routes a connection by its first frame.
func (s *Supervisor) client(c *net.UnixConn) {
	_ = c.SetReadDeadline(time.Now().Add(session.HelloWait))
	first, err := transport.PeekType(c)
	if err != nil {
		s.refused("error", fmt.Errorf("it has ended before its first frame: %w", err))
		return
	}
	if first == transport.Ended || first == transport.Report {
		s.answer(transport.New(c), "")
		return
	}
	_ = c.SetReadDeadline(time.Time{})
	err = s.serveLocal(c)
	if errors.Is(err, errStopping) {
		session.Refuse(transport.New(c), 0, stopText)
		return
	}
	if err != nil {
		s.Log.Error("a client has no process", "error", err)
		session.Refuse(transport.New(c), 0, cannotStart(err))
	}
}

// remoteClient routes a connection by the name in its TLS handshake, which the session's process makes. Nobody has
// proved anything yet.
func (s *Supervisor) remoteClient(c transport.Socket) {
	_ = c.SetDeadline(time.Now().Add(session.HelloWait))
	name, err := transport.PeekName(c)
	if err != nil {
		s.refused("from", c.RemoteAddr(), "error", err)
		return
	}
	if session, end := transport.SessionOf(name); end {
		s.remoteQuestion(c, session)
		return
	}
	if s.hasEnded(name) {
		s.refuse(c, link.Unknown)
		return
	}
	if s.refuseNew(c, name) {
		return
	}
	p, err := s.processOf(name)
	if err != nil {
		s.Log.Error("a client has no process", "from", c.RemoteAddr(), "error", err)
		s.refuse(c, link.Full)
		return
	}
	_ = c.SetDeadline(time.Time{})
	if err := p.give(c); err != nil {
		s.Log.Error("a client does not reach its process", "from", c.RemoteAddr(), "error", err)
	}
}

// hasEnded says whether the process of a session has ended.
func (s *Supervisor) hasEnded(session string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.ended, func(e end) bool { return e.session == session })
}

// refuse tells a client why it gets no session, once it has proved who it is.
func (s *Supervisor) refuse(nc net.Conn, why link.Verdict) {
	c := s.Credentials.WorkerSide(nc)
	err := c.Handshake()
	if err == nil {
		_, err = link.ReadHello(c)
	}
	if err == nil {
		err = link.Refuse(c, why)
	}
	if err != nil {
		s.refused("from", nc.RemoteAddr(), "error", err)
	}
}

// processOf returns the process of a session, or one that may become it.
func (s *Supervisor) processOf(name string) (*process, error) {
	s.mu.Lock()
	p := s.sessions[name]
	s.mu.Unlock()
	if p != nil {
		return p, nil
	}
	p, err := s.process(false)
	if err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.names = append(p.names, name); len(p.names) > maxNames {
		p.names = p.names[1:]
	}
	return p, nil
}

// remoteQuestion answers a client that asks over TCP, once it has proved that it may ask.
func (s *Supervisor) remoteQuestion(nc net.Conn, session string) {
	c := s.Credentials.WorkerSide(nc)
	if err := c.Handshake(); err != nil {
		s.refused("from", nc.RemoteAddr(), "error", err)
		return
	}
	s.answer(transport.New(c), session)
	_ = c.Close()
}

var errFull = errors.New("it has as many sessions as it may have")

// process returns a process without a client. given: its client is known.
func (s *Supervisor) process(given bool) (*process, error) {
	s.starting.Lock() // one process is enough for clients who have not proved who they are
	defer s.starting.Unlock()
	s.mu.Lock()
	p, full, draining := s.spare, len(s.live) >= session.MaxSessions, s.draining
	if given {
		s.spare = nil
	}
	s.mu.Unlock()
	if draining {
		return nil, errStopping
	}
	if p == nil {
		if full {
			return nil, errFull
		}
		var err error
		if p, err = s.newProcess(); err != nil {
			return nil, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.draining {
		return nil, errStopping
	}
	if given {
		s.give(p)
	} else if !p.given {
		s.spare = p
	}
	return p, nil
}

// answer answers a client that asks how the process of its session has ended, or how the worker does. session is the
// name of the session; "": the question has the number of the process.
func (s *Supervisor) answer(c *transport.Conn, session string) {
	h, err := c.Next()
	switch {
	case err != nil:
	case h.Type == transport.Ended:
		var m proto.Ended
		if err = c.Meta(&m); err == nil {
			err = c.Send(transport.EndedReply, h.Seq, s.endOf(m.Pid, session), nil)
		}
	case h.Type == transport.Report:
		var reply proto.Reported
		if err = c.Meta(new(proto.Report)); err == nil {
			reply.Metrics, err = s.report()
		}
		if err == nil {
			err = c.Send(transport.Reported, h.Seq, &reply, nil)
		}
	default:
		err = fmt.Errorf("the question is a %v", h.Type)
	}
	if err != nil && !errors.Is(err, syscall.EPIPE) {
		s.Log.Warn("a question has no answer", "error", err)
	}
}

// endOf returns how a process has ended. It waits for the end of a process that still runs. Without a session, pid 0 is
// any process with a client: a client that has had no Hello does not know the number of its process.
func (s *Supervisor) endOf(pid uint64, session string) *proto.EndedReply {
	is := func(of uint64, names []string) bool {
		if session != "" {
			return slices.Contains(names, session)
		}
		return pid == 0 || of == pid
	}
	s.mu.Lock()
	var running *process
	for p := range s.live {
		if (p.given || session != "") && is(p.pid(), p.names) {
			running = p
		}
	}
	s.mu.Unlock()
	if running != nil {
		e := running.ended(endWait)
		if e == nil && running.leaves() {
			e = running.ended(leaveWait)
		}
		if e != nil {
			return e
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, e := range slices.Backward(s.ended) {
		if is(e.reply.Pid, e.names) {
			return e.reply
		}
	}
	return &proto.EndedReply{}
}
