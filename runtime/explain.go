// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	"slices"
	"time"

	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/trace"
)

// explainWait is how long explain waits for submitted traces to be compiled.
const explainWait = 2 * time.Second

// explainPrograms lists the programs with the reasons why each was compiled.
func (s *session) explainPrograms() string {
	s.mu.Lock()
	started := s.core.Started()
	s.mu.Unlock()
	if started {
		t := s.ticket(nil)
		t.told = func(err error) {
			if err == nil { // so this is the sender
				s.compiler.Measure()
			}
		}
		s.submit(core.Mark{Ticket: t})
		select {
		case <-t.done:
		case <-time.After(explainWait): // explain what there is so far
		}
	}
	return s.compiler.Explain()
}

// pendingGraph is the optimised graph of the content that a storage will have after a trace has run.
func (s *session) pendingGraph(t *trace.Trace, storage uint64) (string, error) {
	local := slices.Index(t.Bindings, storage)
	if local < 0 {
		text := fmt.Sprintf("BUG: storage %d is not in the trace that it is pending in.", storage)
		return "", &Error{Kind: KindRuntime, Text: text}
	}
	return s.compiler.Pending(t, local)
}
