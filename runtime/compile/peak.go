// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compile

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/program"
)

// Peak describes the memory that a call of a program takes, and the op that reaches the peak. It returns "" if the peak
// is not known. It walks the program, so only compile, explain and errors of memory call it.
func (c *Compiler) Peak(of *codegen.Compiled, params []uint64, ops []string, origins []uint32) string {
	peak, err := of.Peak(params)
	switch {
	case err != nil:
		return ""
	case peak.Step < 0:
		return fmt.Sprintf("It takes no memory of its own, beside storages of %s.", Size(peak.Storages))
	}
	what := "a copy"
	if call, ok := of.Program.Steps[peak.Step].(*program.Call); ok {
		what = call.Op
	}
	record := of.Program.Record(peak.Step)
	if record >= 0 && record < len(ops) {
		what = ops[record]
	}
	if record >= 0 && 2*record+1 < len(origins) {
		if o := c.Frontend.Origin(origins[2*record], origins[2*record+1]); o.File != "" {
			what += fmt.Sprintf(" at %s:%d", o.File, o.Line)
		}
	}
	return fmt.Sprintf("It takes at most %s of its own at once, in step %d of %d, %s, beside storages of %s.",
		Size(peak.Bytes), peak.Step, len(of.Program.Steps), what, Size(peak.Storages))
}

// Size is a number of bytes as text.
func Size(n uint64) string {
	if n < 1000 {
		return Count(n, "byte")
	}
	f, units := float64(n), []string{"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"}
	for i, unit := range units {
		if f /= 1024; f < 1000 || i == len(units)-1 {
			return fmt.Sprintf("%.1f %s", f, unit)
		}
	}
	panic("BUG: there is a last unit")
}

// Measure brings the peaks of the explained programs up to date with their last calls, whose sizes may differ. Only the
// sender calls it.
func (c *Compiler) Measure() {
	h := &c.history
	h.mu.Lock()
	accounts := slices.Clone(h.accounts)
	h.mu.Unlock()
	for _, a := range accounts {
		if v := a.of; v != nil && v.Last != nil {
			memory := c.Peak(v.Compiled, v.Last.Params, a.Names, a.origins)
			h.mu.Lock()
			a.memory = memory
			h.mu.Unlock()
		}
	}
}
