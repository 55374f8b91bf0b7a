// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	pb "github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// session is one device's connection to its worker. Callers put jobs into one queue; the sender goroutine runs them in
// order, the receiver goroutine takes the answers. The worker is started by the first job.
//
// A session ends once: by close, or because its worker or the connection is gone. From then on every ticket has failed,
// every job ends without work, and nobody waits.
type session struct {
	index    int
	paths    Paths
	settings *Settings
	frontend Frontend
	metrics  *metrics
	log      *slog.Logger
	provider provider.Provider
	inbox    Inbox
	credits  *Credits
	ctx      context.Context // ends with the session
	cancel   context.CancelFunc

	// Of the sender alone.
	programs *programs
	seq      uint64
	poisoned map[uint64]*Error // storages that a trace without a program should have made
	reads    int               // traces since the last read

	mu       sync.Mutex
	changed  *sync.Cond // something below has
	started  bool
	queue    []func()
	pace     pace
	waiting  []*Ticket // for calls to get fewer
	uploads  uint64    // bytes copied and not sent, or shared and not read
	gone     *Error    // why the session has ended
	closing  bool
	ended    chan struct{} // closed when the sender is through
	instance provider.Instance
	conn     *transport.Conn
	hello    *pb.Hello
	pending  map[uint64]*call   // by sequence number, until Done
	tickets  map[uint64]*Ticket // by sequence number, until the answer
	left     left
	shared   sharing
	failures failures
	history  history
}

func newSession(index int, paths Paths, settings *Settings, frontend Frontend, m *metrics, p provider.Provider, inbox Inbox) (*session, error) {
	programs, err := newPrograms()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{index: index, paths: paths, settings: settings, frontend: frontend, metrics: m, provider: p, programs: programs,
		inbox: inbox, credits: inbox.Credits(), reads: lately,
		ctx: ctx, cancel: cancel, log: settings.Log.With("device", index), poisoned: map[uint64]*Error{}, ended: make(chan struct{}),
		pending: map[uint64]*call{}, tickets: map[uint64]*Ticket{}, failures: newFailures(),
		shared: sharing{blocks: map[uint64]struct{}{}, reading: map[uint64]func(){}}}
	s.credits.OnWay.Store(0)
	s.credits.Allowed.Store(int64(s.pace.ahead()))
	s.changed = sync.NewCond(&s.mu)
	return s, nil
}

// enqueue gives the sender a job once ready says that there is room; ready is called with the lock held and takes the
// room, for whose sake by waits. It fails when the session has ended; a job that is in the queue always runs.
func (s *session) enqueue(by *charge, ready func() bool, job func()) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var waiting time.Time
	for s.gone == nil && !ready() {
		if waiting.IsZero() {
			waiting = time.Now()
			s.metrics.stall(by)
		}
		s.changed.Wait()
	}
	if !waiting.IsZero() {
		s.metrics.stalled(waiting, by)
	}
	if s.gone != nil {
		return s.gone
	}
	s.collectLocked()
	s.queue = append(s.queue, job)
	if !s.started {
		s.started = true
		go s.send()
	}
	s.inbox.Ring()
	return nil
}

// collect takes what lies in the inbox into the queue.
func (s *session) collect() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inbox.Stalls(func(at Place, waits uint64, took time.Duration) { s.metrics.waited(waits, took, s.metrics.bill.at(at)) })
	if s.collectLocked() {
		s.inbox.Ring()
	}
}

// collectLocked is collect with the lock held, without waking the sender. It says whether there was anything.
func (s *session) collectLocked() (found bool) {
	for l := s.inbox.Take(); l != nil; l = s.inbox.Take() {
		if job := s.opened(l); job != nil {
			s.queue = append(s.queue, job)
			found = true
		}
	}
	return found
}

func always() bool { return true }

// send is the sender goroutine.
func (s *session) send() {
	defer close(s.ended)
	s.mu.Lock()
	s.inbox.Open(s.gone == nil)
	s.mu.Unlock()
	s.start()
	for job := s.nextJob(); job != nil; job = s.nextJob() {
		s.run(job)
	}
}

// nextJob waits for the next job; nil when the session is closing and there are no more.
func (s *session) nextJob() func() {
	for {
		s.mu.Lock()
		s.collectLocked()
		if len(s.queue) > 0 {
			job := s.queue[0]
			s.queue[0] = nil
			s.queue = s.queue[1:]
			s.mu.Unlock()
			return job
		}
		closing := s.closing
		s.mu.Unlock()
		if closing {
			return nil
		}
		s.inbox.Wait()
		stepAside(&s.credits.Core)
	}
}

// run keeps a mistake of ours inside the session it happened in.
func (s *session) run(job func()) {
	defer func() {
		if r := recover(); r != nil {
			s.lose(bug(r))
		}
	}()
	job()
}

// start starts the worker and greets it.
func (s *session) start() {
	began := time.Now()
	var instance provider.Instance
	var err error
	onAllCores(func() { instance, err = s.provider.Start(s.ctx, provider.Spec{Device: s.paths.Device}) })
	if err != nil {
		s.lose(&Error{KindRuntime, fmt.Sprintf("mycelya:%d could not start its worker: %v", s.index, err)})
		return
	}
	s.mu.Lock()
	s.instance = instance
	s.mu.Unlock()
	conn, hello, err := greet(s.ctx, instance)
	if err != nil {
		s.lost(err)
		return
	}
	s.mu.Lock()
	gone := s.gone != nil
	if !gone {
		s.conn, s.hello = conn, hello
	}
	s.changed.Broadcast()
	s.mu.Unlock()
	if gone {
		conn.Close()
		return
	}
	s.log.Debug("worker started", "pid", hello.Pid, "device", hello.Device, "torch", hello.Torch, "took", time.Since(began))
	conn.Sleep()
	go s.receive(conn)
}

// info returns the worker's Hello once there is one.
func (s *session) info() (*pb.Hello, error) {
	if err := s.enqueue(nil, always, func() {}); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.gone == nil && s.hello == nil {
		s.changed.Wait()
	}
	if s.gone != nil {
		return nil, s.gone
	}
	return s.hello, nil
}

// alive says whether the session can still send.
func (s *session) alive() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone == nil
}

// write sends a frame and counts and returns its bytes. An error has ended the session.
func (s *session) write(by *charge, t transport.Type, seq uint64, meta message, body []byte) (uint64, error) {
	n := frameBytes(meta, body)
	// Before there can be an answer: who has it finds this told and counted.
	s.settings.Dump.Frame(s.index, true, t, seq, n)
	s.metrics.sent(n, by)
	if err := s.conn.Send(t, seq, meta, body); err != nil {
		s.lost(fmt.Errorf("sending %v: %w", t, err))
		return 0, err
	}
	return n, nil
}

// lose ends the session for a reason that the user is to see. Only the first call counts.
func (s *session) lose(why *Error) {
	s.mu.Lock()
	if s.gone != nil {
		s.mu.Unlock()
		return
	}
	s.gone = why
	tickets, waiting, reading := s.tickets, s.waiting, s.shared.reading
	s.shared.reading = map[uint64]func(){}
	s.tickets, s.waiting, s.pending = map[uint64]*Ticket{}, nil, map[uint64]*call{}
	s.credits.OnWay.Store(0)
	s.inbox.Open(false)
	conn := s.conn
	s.changed.Broadcast()
	s.mu.Unlock()
	s.cancel()
	if conn != nil {
		conn.Close()
	}
	for _, end := range reading {
		end()
	}
	for _, t := range tickets {
		t.end(why)
	}
	for _, t := range waiting {
		t.end(why)
	}
	s.log.Debug("session ended", "why", why.Text)
}

// close ends the session and its worker, and returns when both are through.
func (s *session) close() {
	s.lose(&Error{KindRuntime, fmt.Sprintf("mycelya:%d has been closed.", s.index)})
	s.mu.Lock()
	s.closing = true
	started := s.started
	s.inbox.Ring()
	s.mu.Unlock()
	if started {
		<-s.ended
	}
	s.programs.close()
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	if instance != nil {
		stop(instance)
	}
}
