// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"cmp"
	"fmt"
	"sync"

	"github.com/mycelya/mycelya/runtime/compile"
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

// countUnused adds a trace whose program is that of the account.
func (s *session) countUnused(a *compile.Account, t *trace.Trace) {
	u := &s.unused
	u.mu.Lock()
	defer u.mu.Unlock()
	u.operators += a.Computing
	if u.skipped += a.Skipped; a.Skipped > 0 && u.first == nil && !u.said {
		origin := [2]uint32{t.Origins[2*a.FirstSkipped], t.Origins[2*a.FirstSkipped+1]}
		name := short(a.Names[a.FirstSkipped])
		u.first = func() string {
			where := ""
			if o := s.compiler.Frontend.Origin(origin[0], origin[1]); o.File != "" {
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
