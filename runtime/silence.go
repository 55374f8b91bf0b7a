// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
)

// watch ends the session if the worker is silent for too long: it sends nothing and takes nothing although an answer is
// due. Only time counts in which this process runs. received is closed when the connection has ended.
func (s *session) watch(conn *transport.Conn, life int, received <-chan struct{}) {
	limit := s.settings.Silence
	if limit == 0 {
		return
	}
	beat := time.NewTicker(limit / 16)
	defer beat.Stop()
	silent, last := 0, uint64(0)
	for {
		select {
		case <-received:
			return
		case <-beat.C:
		}
		now := s.frames.Load() + conn.Progress()
		s.mu.Lock()
		waits := s.core.Waits()
		s.mu.Unlock()
		if silent++; now != last || !waits {
			silent, last = 0, now
		}
		if silent >= 16 {
			s.lost(life, fmt.Errorf("it has been silent for %v although an answer is due; MYCELYA_TIMEOUT sets how long "+
				"that may last", limit))
			return
		}
	}
}
