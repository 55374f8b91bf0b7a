// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"fmt"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/hostile/peer"
	"github.com/mycelya/mycelya/tests/remote"
)

// honest is the session beside the hostile ones.
type honest struct {
	w     *remote.Worker
	delay time.Duration

	checks, sessions int
	longest          time.Duration
}

const (
	// pause lies between two computations.
	pause = 20 * time.Millisecond
	// perSession is the number of computations of one session: a new one must also find its place.
	perSession = 500
)

// run computes until over is closed.
func (h *honest) run(over <-chan struct{}) error {
	for {
		more, err := h.session(over)
		if err != nil {
			return fmt.Errorf("the honest session, after %d computations: %w", h.checks, err)
		}
		if !more {
			return nil
		}
	}
}

// session is one session. more: over is not closed.
func (h *honest) session(over <-chan struct{}) (more bool, err error) {
	stream, err := h.w.Link(transport.NewSessionName(), nil)
	if err != nil {
		return false, err
	}
	defer func() { _ = stream.Close() }()
	_ = stream.SetDeadline(time.Now().Add(2 * h.delay))
	s, err := peer.Greet(transport.New(stream))
	if err != nil {
		return false, err
	}
	if err := s.Prepare(); err != nil {
		return false, err
	}
	h.sessions++
	for range perSession {
		_ = stream.SetDeadline(time.Now().Add(2 * h.delay))
		began := time.Now()
		if err := s.Check(uint32(h.checks)); err != nil {
			return false, err
		}
		took := time.Since(began)
		if h.longest = max(h.longest, took); took > h.delay {
			return false, fmt.Errorf("a computation took %v, at most %v are allowed", took, h.delay)
		}
		h.checks++
		select {
		case <-over:
			return false, nil
		case <-time.After(pause):
		}
	}
	return true, nil
}
