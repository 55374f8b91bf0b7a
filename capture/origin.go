// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"sync"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// Table holds the names behind the numbers of traces: ops by hash, code objects by number. The recorder defines each
// name once; traces carry numbers only. Goroutines may call all methods at the same time.
type Table struct {
	mu    sync.RWMutex
	ops   map[uint64]string
	codes map[uint32]code
	calls map[uint32]call
}

// code is a code object. lines[i] is the line of the instruction at byte offset 2*i.
type code struct {
	file  string
	lines []int32
}

// call is a place of a library, and the place that has led to it.
type call struct{ place, caller trace.Place }

// NewTable returns a table without names.
func NewTable() *Table {
	return &Table{ops: map[uint64]string{}, codes: map[uint32]code{}, calls: map[uint32]call{}}
}

// DefineOp names the op with this hash.
func (t *Table) DefineOp(hash uint64, name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ops[hash] = name
}

// DefineCode names a code object; lines is kept.
func (t *Table) DefineCode(number uint32, file string, lines []int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.codes[number] = code{file, lines}
}

// DefineCall names the place {number, 0}: a line of a library, and the line that has led to it.
func (t *Table) DefineCall(number uint32, place, caller trace.Place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.calls[number] = call{place, caller}
}

// Op returns the full name of an op.
func (t *Table) Op(hash uint64) (string, bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	name, ok := t.ops[hash]
	return name, ok
}

// Origin returns the place of an instruction. File is "" if the place is unknown.
func (t *Table) Origin(number, offset uint32) ir.Origin {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if c, ok := t.calls[number]; ok {
		number, offset = c.place[0], c.place[1]
	}
	c, ok := t.codes[number]
	if !ok {
		return ir.Origin{}
	}
	o := ir.Origin{File: c.file}
	if i := int(offset / 2); i < len(c.lines) && c.lines[i] > 0 {
		o.Line = int(c.lines[i])
	} else if len(c.lines) > 0 && c.lines[0] > 0 {
		o.Line = int(c.lines[0])
	}
	return o
}

// Caller returns the place that has led to a place of a library; File is "" if none is noted.
func (t *Table) Caller(number uint32) ir.Origin {
	t.mu.RLock()
	caller := t.calls[number].caller
	t.mu.RUnlock()
	return t.Origin(caller[0], caller[1])
}

// name is the name of a trace's graph: the place that caused the cut, else the last known place of a record.
func (t *Table) name(tr *trace.Trace) string {
	if s := t.Origin(tr.ReasonOrigin[0], tr.ReasonOrigin[1]).Label(); s != "" {
		return s
	}
	for i := len(tr.Origins) - 2; i >= 0; i -= 2 {
		if s := t.Origin(tr.Origins[i], tr.Origins[i+1]).Label(); s != "" {
			return s
		}
	}
	return "graph"
}
