// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compile

import (
	"cmp"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/runtime/dump"
	"github.com/mycelya/mycelya/trace"
)

// Reports of a session to a dump. Without a dump these functions do nothing.

// showCut reports a trace that a program computes. Only the sender calls it, so cuts are reported in their order.
func (c *Compiler) showCut(t *trace.Trace, program int, isNew bool) {
	if c.Settings.Dump == nil {
		return
	}
	why := catalogue.CutOf(t.Reason)
	c.Settings.Dump.Cut(dump.Cut{Device: c.index, Place: c.cutAt(t), Reason: why.Name, Why: why.Why,
		Ops: len(t.Origins) / 2, Program: program, New: isNew})
}

// show begins to show a program; nil if the program is not shown.
func (c *Compiler) show(t *trace.Trace, v *Variant) *dump.Program {
	if c.Settings.Dump == nil {
		return nil
	}
	return c.Settings.Dump.Program(dump.Of{Device: c.index, Number: v.Account.Number, Place: c.cutAt(t),
		Reason: catalogue.CutOf(t.Reason).Name, Key: v.Key[:], Torch: c.torch, Params: t.Params})
}

// cutAt is where a trace was cut, such as "train.py:41": the place that caused the cut, or the last record with a known
// place. Capture names the graph after it, in one word.
func (c *Compiler) cutAt(t *trace.Trace) string {
	o := c.Frontend.Origin(t.ReasonOrigin[0], t.ReasonOrigin[1])
	for i := len(t.Origins) - 2; i >= 0 && o == (ir.Origin{}); i -= 2 {
		o = c.Frontend.Origin(t.Origins[i], t.Origins[i+1])
	}
	return cmp.Or(o.Short(), "?")
}
