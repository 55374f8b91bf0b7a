// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/runtime/provider"
)

// A connection that is back so soon is no news for the user.
const quietLoss = 2 * time.Second

// linkWatch follows the connections of a session's link.
type linkWatch struct {
	s        *session
	instance provider.Instance

	mu     sync.Mutex
	link   *link.Stream       // nil until the first connection is up
	stop   context.CancelFunc // ends the wait for the worker's end; nil while there is a connection
	gone   bool               // the worker has ended
	warned bool
}

// stream notes the session's stream, if it is a link.
func (w *linkWatch) stream(c net.Conn) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.link, _ = c.(*link.Stream)
	w.end()
}

// notice takes news of the link. While there is no connection, the end of the worker ends the link at once.
func (w *linkWatch) notice(n link.Notice) {
	w.mu.Lock()
	defer w.mu.Unlock()
	log := w.s.log
	switch {
	case n.Up:
		w.s.metrics.Reconnects.Add(1)
		if w.stop != nil {
			w.stop()
			w.stop = nil
		}
		if w.warned {
			log.Warn("the connection to the worker is back; nothing was lost", "after", n.Down.Round(time.Second/10))
		}
		w.warned = false
		log.Info("connected again", "attempts", n.Attempt, "after", n.Down)
	case n.Attempt == 0:
		log.Info("the connection to the worker has ended; connecting again")
		var ctx context.Context
		ctx, w.stop = context.WithCancel(w.s.ctx)
		go w.awaitEnd(ctx)
	case n.Down > quietLoss && !w.warned:
		w.warned = true
		log.Warn("the connection to the worker is lost; connecting again", "for at most", link.Default.Grace, "error", n.Err)
	}
}

// awaitEnd ends the link when the worker has ended: nobody can connect to it again.
func (w *linkWatch) awaitEnd(ctx context.Context) {
	if _, err := w.instance.Wait(ctx); err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = true
	w.end()
}

// end ends the link of a worker that has ended.
func (w *linkWatch) end() {
	if w.gone && w.link != nil {
		w.link.End(io.EOF)
	}
}

// link is the session's link; nil if it has none.
func (s *session) link() *link.Stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn == nil {
		return nil
	}
	l, _ := s.conn.Net().(*link.Stream)
	return l
}

// measured is what the session's link knows of its network, for the metrics; nil if the session has no link.
func (s *session) measured() any {
	l := s.link()
	if l == nil {
		return nil
	}
	m := l.Measured()
	return map[string]any{"rtt_seconds": m.RTT, "bytes_per_second": m.Rate, "connections": m.Connections}
}
