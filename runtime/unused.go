// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// unused counts the operators of a session since its last wait for all work, and those of them that were not computed
// because nothing used their results, or an equal operator had them. Who times a loop that drops its results would
// measure the loop without them.
type unused struct {
	mu        sync.Mutex
	said      bool
	skipped   int
	operators int
	first     func() string // the first one that was skipped, and its line
}

// skipped tells which operators of a trace compute something, and which of these the program leaves out. first is the
// record of the first one of those, -1 if there is none.
func skipped(captured *trace.Captured, compiled *codegen.Compiled) (count, of, first int) {
	const (
		passive = iota
		computes
		computed
	)
	records := make([]uint8, len(captured.Ops))
	for i := range captured.Graph.Nodes {
		n := &captured.Graph.Nodes[i]
		if kind := ir.Info(n.Op).Kind; n.Record >= 0 && kind != catalogue.KindLeaf && kind != catalogue.KindMemory {
			records[n.Record] = computes
		}
	}
	for i := range compiled.Program.Steps {
		if r := compiled.Program.Record(i); r >= 0 && records[r] == computes {
			records[r] = computed
		}
	}
	first = -1
	for r, state := range records {
		if state != passive {
			of++
		}
		if state == computes {
			count++
			if first < 0 {
				first = r
			}
		}
	}
	return count, of, first
}

// countUnused adds a trace whose program is that of the account.
func (s *session) countUnused(a *account, t *trace.Trace) {
	u := &s.unused
	u.mu.Lock()
	defer u.mu.Unlock()
	u.operators += a.computing
	if u.skipped += a.skipped; a.skipped > 0 && u.first == nil && !u.said {
		origin := [2]uint32{t.Origins[2*a.firstSkipped], t.Origins[2*a.firstSkipped+1]}
		name := short(a.names[a.firstSkipped])
		u.first = func() string {
			where := ""
			if o := s.compiler.frontend.Origin(origin[0], origin[1]); o.File != "" {
				where = fmt.Sprintf("%s:%d", o.File, o.Line)
			}
			return fmt.Sprintf("%s at %s", name, cmp.Or(where, "an unknown line"))
		}
	}
}

// waitedForAll is called when all work has been done that was submitted before a wait. The first wait before which half
// of the operators were skipped says so.
func (s *session) waitedForAll(err error) {
	u := &s.unused
	u.mu.Lock()
	defer u.mu.Unlock()
	if err == nil && !u.said && u.first != nil && u.skipped > 1 && 2*u.skipped >= u.operators {
		u.said = true
		s.log.Warn(fmt.Sprintf("%d of %d operators before this wait were not computed, the first one %s: nothing used their "+
			"results, or an equal operator had them. A time that is measured here is not theirs. Keep results that differ "+
			"until after the wait, or compute in a block `with torch.mycelya.eager():`.", u.skipped, u.operators, u.first()))
	}
	u.skipped, u.operators, u.first = 0, 0, nil
}
