// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/runtime/settings"
	"github.com/mycelya/mycelya/trace"
)

// session is the loop around one device's core: it has the goroutines, the connection and the memory, which the core
// does not have. Callers, the sender and the receiver step the core with events, and each performs the actions of its
// events. The sender starts the worker, prepares traces and sends all frames of submissions; the receiver takes the
// answers.
//
// A session ends once: by close, or because its worker or the connection is gone. From then on every ticket has failed
// and every submission ends without work.
type session struct {
	index    int
	name     string // in TLS handshakes
	paths    Paths
	settings *settings.Settings
	metrics  *report.Metrics
	profile  *profile
	log      *slog.Logger
	provider provider.Provider
	first    *session // of the machine's first device; nil: this is the first
	find     func(index int32) (*session, error)
	mailbox  Mailbox
	credits  *Credits
	ctx      context.Context // ends with the session
	cancel   context.CancelFunc
	began    time.Time

	// Used by the sender only.
	compiler *compile.Compiler
	report   core.Prepared // of the trace that was prepared last, until the core has it
	worker   int           // the life of the worker that it uses
	pace     pace
	lent     lentWorker    // of the first device
	folder   string        // temporary, for what the workers keep; "": none
	ended    chan struct{} // closed when the sender exits
	// Of large uploads over a link. linkRate is the last rate that an upload has measured, in bytes per second; 0: none.
	compressor transport.Compressor
	hashes     chan struct{} // has room for the upload that is hashed
	linkRate   float64
	uploading  uploading

	downloading downloading
	unused      unused

	mappings mappings
	frames   atomic.Uint64 // that were sent
	answered core.Answer   // used by the receiver only
	tickets  *tickets
	takes    takes

	taking sync.Mutex // held while items are taken from the mailbox and submitted, so that they keep their order

	mu       sync.Mutex // guards what follows
	core     *core.State
	instance provider.Instance
	ends     bool // the worker of a detached machine ends with the session
	life     int  // workers that were lost and replaced
	conn     *transport.Conn
	hello    *proto.Hello
	ending   string        // why the session is lost, as a sentence; "" if it is not
	received chan struct{} // closed when the connection has no reader any more
	timer    *time.Timer   // of checkpoints

	fetches     map[uint64]*fetch // that were not ended by an unfetch
	fetchNumber uint64            // of the last one
	resumed     chan struct{}     // closed when a paused session goes on; nil: it is not paused
}

func newSession(index int, paths Paths, settings *settings.Settings, frontend compile.Frontend, m *report.Metrics,
	notes *profile, p provider.Provider, mailbox Mailbox, tickets *tickets) *session {
	log := settings.Log.With("device", index)
	c := compile.New(index, settings, frontend, m, log)
	ctx, cancel := context.WithCancel(context.Background())
	s := &session{index: index, name: transport.NewSessionName(), paths: paths, settings: settings, metrics: m,
		profile: notes,
		log:     log, provider: p, mailbox: mailbox, tickets: tickets,
		credits: mailbox.Credits(), ctx: ctx, cancel: cancel, began: time.Now(), compiler: c, ended: make(chan struct{}),
		hashes: make(chan struct{}, 1)}
	s.core = core.New(s.explain)
	s.credits.OnWay.Store(0)
	s.credits.Allowed.Store(core.MaxCalls)
	return s
}

// open has the mailbox take items, and begins the sender.
func (s *session) open() {
	s.mailbox.Open()
	go s.send()
}

// step gives the core one event, and returns the actions after those of out.
func (s *session) step(ev core.Event, out []core.Action) []core.Action {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.core.Step(ev, out)
}

// do gives the core one event and performs the actions.
func (s *session) do(ev core.Event) { s.performAll(s.step(ev, nil)) }

// submit is do for a submission, which comes after all items in the mailbox.
func (s *session) submit(ev core.Event) {
	var few [4]core.Action
	s.performAll(s.step(ev, s.takeMailbox(few[:0])))
}

// takeMailbox submits the items in the mailbox.
func (s *session) takeMailbox(out []core.Action) []core.Action {
	s.taking.Lock()
	defer s.taking.Unlock()
	for item := s.mailbox.Take(); item != nil; item = s.mailbox.Take() {
		ev, err := s.submission(item)
		if err != nil {
			out = append(out, core.Complete{Ticket: ev.(core.Read).Ticket, Err: err})
			continue
		}
		out = s.step(ev, out)
	}
	return out
}

// collect submits the items in the mailbox, and counts the waits that the mailbox has counted.
func (s *session) collect() {
	s.mailbox.Stalls(func(at trace.Place, waits uint64, took time.Duration) {
		s.metrics.Waited(waits, took, s.metrics.Bill.At(at))
	})
	s.performAll(s.takeMailbox(nil))
}

// raise returns the error that no caller has raised, after all items in the mailbox; nil if there is none. The caller
// raises it. What was submitted before has no effect.
func (s *session) raise() error {
	actions := s.takeMailbox(nil)
	s.mu.Lock()
	err := s.core.Failure()
	actions = s.core.Step(core.Raise{}, actions)
	s.mu.Unlock()
	s.performAll(actions)
	return err
}

func (s *session) performAll(actions []core.Action) {
	for _, a := range actions {
		s.perform(a)
	}
}

// perform performs an action of the core, on any goroutine.
func (s *session) perform(action core.Action) {
	switch a := action.(type) {
	case core.Wake:
		s.mailbox.Wake()
	case core.Send:
		s.sendFrame(a)
	case core.Complete:
		a.Ticket.(*Ticket).end(a.Err)
	case core.Give:
		t := a.Ticket.(*Ticket)
		s.metrics.Foreseen(t.by)
		copy(t.dst, a.Data)
		t.end(nil)
	case core.Release:
		a.Ref.(interface{ release() }).release()
	case core.Credit:
		s.credits.OnWay.Add(-1)
	case core.Allow:
		s.credits.Allowed.Store(int64(a.Traces))
	case core.Failing:
		failing := int64(0)
		if a.Yes {
			failing = 1
		}
		s.credits.Failing.Store(failing)
	case core.Replace:
		s.replace(a.Err)
	case core.NotKept:
		s.notKept(a)
	case core.End:
		s.end(a.Err)
	default:
		panic(fmt.Sprintf("BUG: nothing performs %T here", action))
	}
}

// send is the sender.
func (s *session) send() {
	defer close(s.ended)
	var actions []core.Action
	for {
		actions = s.next(actions[:0])
		if len(actions) == 0 {
			s.flushHeld()
			s.pace.rest(s.mailbox)
			stepAside(&s.credits.Core)
			continue
		}
		for _, a := range actions {
			if _, exit := a.(core.Exit); exit {
				return
			}
			s.performSending(a)
		}
		clear(actions)
	}
}

// next reports the trace that was prepared last, submits the items in the mailbox, and asks for the next submission.
func (s *session) next(out []core.Action) []core.Action {
	if s.report.Trace != nil {
		out = s.step(&s.report, out)
		s.report = core.Prepared{}
	}
	return s.step(core.Next{}, s.takeMailbox(out))
}

// performSending is perform on the sender. A panic ends the session, not the process.
func (s *session) performSending(action core.Action) {
	defer s.guard()
	switch a := action.(type) {
	case core.Wake: // the sender is awake
	case core.Complete:
		if a.Ticket.(*Ticket).sends { // all before it has to be sent
			s.flushHeld()
		}
		s.perform(a)
	case core.Prepare:
		s.pace.traces++
		s.prepare(a)
	case core.Send:
		s.pace.asked = s.pace.asked || a.Type == transport.Read || a.Type == transport.Sync
		s.perform(a)
	case core.Start:
		s.start()
	case core.Restart:
		s.restart()
	default:
		s.perform(action)
	}
}

// guard ends the session if its caller panics.
func (s *session) guard() {
	if r := recover(); r != nil {
		s.do(core.WorkerLost{Err: bug(r), Final: true})
	}
}

// lose tells the core that the worker of a life is lost, with an error for the user. Only the first call for a life
// counts. what is the reason as a sentence, for a session that has ended.
func (s *session) lose(life int, why *Error, what string) { s.loseFor(life, why, what, false) }

// loseFor is lose. final: no other worker replaces this one.
func (s *session) loseFor(life int, why *Error, what string, final bool) {
	s.mu.Lock()
	if life != s.life || s.core.Gone() != nil {
		s.mu.Unlock()
		return
	}
	actions := s.core.Step(core.WorkerLost{Err: why, Final: final}, nil)
	if s.core.Gone() != nil {
		s.ending = what
	} else {
		s.life++ // another worker will replace it
	}
	s.mu.Unlock()
	s.performAll(actions)
}

// end performs core.End.
func (s *session) end(why error) {
	s.mailbox.Close(why)
	s.mailbox.Wake() // for what is in it
	s.credits.OnWay.Store(0)
	s.uploading.end()
	s.cancel()
	s.mu.Lock()
	if s.timer != nil {
		s.timer.Stop()
	}
	s.mu.Unlock()
	s.disconnect()
	s.log.Debug("session ended", "why", why)
}

// disconnect closes the connection, also during a read or a write.
func (s *session) disconnect() {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		conn.Close()
	}
}

// close ends the session and its worker, and returns when both have ended.
func (s *session) close() {
	s.do(core.Close{Err: &Error{Kind: KindStopped, Text: s.device() + " has been stopped. Its tensors are lost."}})
	s.mailbox.Wake()
	<-s.ended
	s.compiler.Close()
	s.mu.Lock()
	instance, ends := s.instance, s.ends
	s.mu.Unlock()
	if instance != nil && s.first == nil && (ends || !s.detached()) {
		stop(instance)
		if d, ok := instance.(interface{ Remove() }); ok {
			d.Remove()
		}
	} else if d, ok := instance.(interface{ Release() }); ok && s.first == nil {
		d.Release()
	}
	s.removeKept()
}
