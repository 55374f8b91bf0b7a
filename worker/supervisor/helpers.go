// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"sync"

	"github.com/mycelya/mycelya/worker/session"
)

// HelperFD is the descriptor of a helper process that is its end of the socket that it shares with a session.
const HelperFD = 3

// helpers are the processes that fetch weights for one session's process. The supervisor starts them, passes the
// session its end of their socket, and reads nothing of what they say.
type helpers struct {
	s *Supervisor

	mu     sync.Mutex
	live   map[*exec.Cmd]struct{}
	closed bool
	ended  sync.WaitGroup // of live
}

// newHelpers is nil if the supervisor has no helpers.
func (s *Supervisor) newHelpers() *helpers {
	if s.Helper == nil {
		return nil
	}
	return &helpers{s: s, live: map[*exec.Cmd]struct{}{}}
}

// start starts a helper and returns the session's end of its socket.
func (h *helpers) start() (*os.File, error) {
	if h == nil {
		return nil, errors.New("this worker was started without a folder for weights (--weights)")
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed || len(h.live) >= session.MaxFetches+session.SourceHelpers {
		return nil, fmt.Errorf("a session has at most %d helpers at once", session.MaxFetches+session.SourceHelpers)
	}
	control, theirs, err := controlPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	mine, err := control.File()
	_ = control.Close()
	if err != nil {
		return nil, err
	}
	cmd := h.s.Helper()
	cmd.ExtraFiles, cmd.Stderr = []*os.File{theirs}, h.s.Output
	r := start{cmd: cmd, helper: true, reply: make(chan started, 1)}
	h.s.starts <- r
	if out := <-r.reply; out.err != nil {
		_ = mine.Close()
		return nil, out.err
	}
	h.live[cmd] = struct{}{}
	h.ended.Go(func() {
		err := cmd.Wait()
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.live, cmd)
		if err != nil && !h.closed {
			h.s.Log.Warn("a process that fetches weights has failed", "error", err)
		}
	})
	return mine, nil
}

// close ends all helpers, because their session has ended. It returns when none runs: they write into the cache.
func (h *helpers) close() {
	if h == nil {
		return
	}
	h.mu.Lock()
	h.closed = true
	for cmd := range h.live {
		_ = cmd.Process.Kill()
	}
	h.mu.Unlock()
	h.ended.Wait()
}

// ServeHelper serves the session whose socket this process has got.
func ServeHelper(serve func(c *net.UnixConn) error) error {
	c, err := socketOf(os.NewFile(HelperFD, "session"))
	if err != nil {
		return fmt.Errorf("this program fetches weights for one session, and only mycelya-worker starts it: %w", err)
	}
	return serve(c)
}
