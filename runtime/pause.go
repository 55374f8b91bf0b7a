// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"fmt"
	"time"

	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/provider"
)

// logWait is how long a provider may take to return a log, which may lie behind a network.
const logWait = 30 * time.Second

// killWait is how long a provider may take to end a worker, and installWait how long to install packages.
const (
	killWait    = 30 * time.Second
	installWait = 30 * time.Minute
)

// pause ends the worker after a checkpoint of all that was submitted. Until resume, the session has no worker and the
// sender waits in restart: to the core, the worker is lost and another one starts slowly. What is submitted meanwhile
// stays in the queue. The caller lets no more in.
func (s *session) pause(t *Ticket) error {
	keeper, ok := s.provider.(provider.Keeper)
	if !ok {
		return &Error{Kind: KindNotImplemented, Text: fmt.Sprintf("%s cannot pause: what a worker of its provider keeps "+
			"ends with the worker. Save what you need (machine.save), and stop() the machine.", s.device())}
	}
	if err := keeper.Keeps(s.paths.Request.Spec); err != nil {
		return &Error{Kind: KindNotImplemented, Text: fmt.Sprintf("%s cannot pause: %v", s.device(), err)}
	}
	if s.paused() != nil {
		t.tryEnd(nil)
		return nil
	}
	kept := s.ticket(t.by)
	s.submit(core.Checkpoint{Ticket: kept})
	go func() {
		<-kept.done
		if kept.err == nil {
			s.endWorker()
		}
		t.tryEnd(kept.err)
	}()
	return nil
}

// endWorker ends the worker of a session that pauses.
func (s *session) endWorker() {
	s.mu.Lock()
	if s.core.Gone() == nil && s.resumed == nil {
		s.resumed = make(chan struct{})
	}
	instance := s.instance
	s.mu.Unlock()
	stop(instance)
}

// resume lets a paused session go on, with another worker.
func (s *session) resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.resumed != nil {
		close(s.resumed)
		s.resumed = nil
	}
}

// paused returns what is closed when the session goes on; nil: it is not paused.
func (s *session) paused() chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.resumed
}

// kill ends the worker at once, whatever it does.
func (s *session) kill(t *Ticket) {
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	if instance == nil {
		t.tryEnd(nil)
		return
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), killWait)
		defer cancel()
		var err error
		if err = instance.Stop(ctx, 0); err != nil {
			err = &Error{Kind: KindRuntime, Text: err.Error()}
		}
		t.tryEnd(err)
	}()
}

// install installs Python packages on the worker's host.
func (s *session) install(t *Ticket, packages []string) error {
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	installer, ok := instance.(provider.Installer)
	if !ok {
		return &Error{Kind: KindNotImplemented, Text: s.device() + " cannot install Python packages while it runs: its " +
			"provider has no way to. Install them on its host, or give packages= to a new RemoteMachine."}
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), installWait)
		defer cancel()
		var err error
		if t.log, err = installer.Install(ctx, packages); err != nil {
			err = &Error{Kind: KindRuntime, Text: err.Error()}
		}
		t.tryEnd(err)
	}()
	return nil
}

// readLog begins to read the worker's log, also after the worker's end.
func (s *session) readLog(t *Ticket) error {
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	logger, ok := instance.(provider.Logger)
	switch {
	case instance == nil:
		return &Error{Kind: KindRuntime, Text: s.device() + " has no log yet: its worker has not started."}
	case !ok:
		return &Error{Kind: KindNotImplemented, Text: s.device() + " has no log that can be read: its provider keeps none."}
	}
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), logWait)
		defer cancel()
		var err error
		if t.log, err = logger.Logs(ctx); err != nil {
			err = &Error{Kind: KindRuntime, Text: fmt.Sprintf("The log of %s cannot be read: %v", s.device(), err)}
		}
		t.tryEnd(err)
	}()
	return nil
}

// askReport begins to ask the worker for its metrics, on a connection of its own: the question waits for no call.
func (s *session) askReport(t *Ticket) error {
	s.mu.Lock()
	instance := s.instance
	s.mu.Unlock()
	if instance == nil {
		return &Error{Kind: KindRuntime, Text: s.device() + " does not report: its worker has not started."}
	}
	go func() {
		var err error
		if t.log, err = provider.Metrics(s.ctx, instance); err != nil {
			err = &Error{Kind: KindRuntime, Text: fmt.Sprintf("%s cannot be asked what it does: %v", s.device(), err)}
		}
		t.tryEnd(err)
	}()
	return nil
}
