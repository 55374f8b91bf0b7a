// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package report

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// Charge is the cost of one place since the last reset. A nil charge stands for no place in particular.
type Charge struct {
	cuts       [catalogue.NumCuts]atomic.Uint64
	compiled   atomic.Uint64 // programs
	RoundTrips atomic.Uint64
	sent       atomic.Uint64 // bytes, uploads included
	uploaded   atomic.Uint64 // bytes of tensors, in shared memory or not
	received   atomic.Uint64 // bytes
	stalls     atomic.Uint64 // waits that did not end at once
	stalled    atomic.Int64  // nanoseconds
	Worked     atomic.Uint64 // nanoseconds that the worker took for the place's steps, as far as calls were timed
}

// bill holds the charges by place.
type bill struct {
	mu     sync.Mutex
	by     map[trace.Place]*Charge
	resets int
}

func (b *bill) At(p trace.Place) *Charge {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.by[p]
	if c == nil {
		if b.by == nil {
			b.by = map[trace.Place]*Charge{}
		}
		c = new(Charge)
		b.by[p] = c
	}
	return c
}

// reset sets all charges to 0, and keeps them: frames under way are charged to them when they arrive.
func (b *bill) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.resets++
	for _, c := range b.by {
		for _, n := range c.counters() {
			n.Store(0)
		}
		c.stalled.Store(0)
	}
}

// Number counts the bills: a reset begins another one.
func (b *bill) Number() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.resets
}

func (c *Charge) counters() []*atomic.Uint64 {
	all := []*atomic.Uint64{&c.compiled, &c.RoundTrips, &c.sent, &c.uploaded, &c.received, &c.stalls, &c.Worked}
	for i := range c.cuts {
		all = append(all, &c.cuts[i])
	}
	return all
}

// empty reports whether nothing has been charged.
func (c *Charge) empty() bool {
	return !slices.ContainsFunc(c.counters(), func(n *atomic.Uint64) bool { return n.Load() != 0 })
}

// Line is one entry of the bill: the cost of one line of the program.
type Line struct {
	File         string            `json:"file"` // "" if it isn't known
	Line         int               `json:"line"`
	Cuts         map[string]uint64 `json:"cuts"`
	Compiled     uint64            `json:"programs_compiled"`
	RoundTrips   uint64            `json:"round_trips"`
	Sent         uint64            `json:"bytes_sent"`
	Uploaded     uint64            `json:"upload_bytes"`
	Received     uint64            `json:"bytes_received"`
	Stalls       uint64            `json:"stalls"`
	StallSeconds float64           `json:"stall_seconds"`
	// Of what a profile or a dump has measured.
	WorkerSeconds float64 `json:"worker_seconds"`
	// If the line is one of a library: the lines of the program that have led to it, with the seconds of its stalls.
	Callers map[string]float64 `json:"callers"`

	Origin ir.Origin `json:"-"`
}

// Names are the lines of the user's program by place.
type Names interface {
	Origin(code, offset uint32) ir.Origin
	// Caller is the line that has led to a place of a library; empty if none is noted.
	Caller(code uint32) ir.Origin
}

// Lines is the bill: lines with the longest stalls first, then lines with the most bytes.
func (b *bill) Lines(names Names) []*Line {
	b.mu.Lock()
	places := make(map[trace.Place]*Charge, len(b.by))
	for p, c := range b.by {
		if !c.empty() {
			places[p] = c
		}
	}
	b.mu.Unlock()
	lines := map[ir.Origin]*Line{}
	for p, c := range places {
		o := names.Origin(p[0], p[1])
		l := lines[o]
		if l == nil {
			l = &Line{File: o.File, Line: o.Line, Cuts: map[string]uint64{}, Callers: map[string]float64{}, Origin: o}
			lines[o] = l
		}
		l.add(c)
		if caller := names.Caller(p[0]).Full(); caller != "" {
			l.Callers[caller] += time.Duration(c.stalled.Load()).Seconds()
		}
	}
	out := make([]*Line, 0, len(lines))
	for _, l := range lines {
		out = append(out, l)
	}
	sent := func(l *Line) uint64 { return l.Sent + l.Received }
	slices.SortFunc(out, func(a, b *Line) int {
		return cmp.Or(cmp.Compare(b.StallSeconds, a.StallSeconds), cmp.Compare(sent(b), sent(a)),
			cmp.Compare(b.WorkerSeconds, a.WorkerSeconds), cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	return out
}

func (l *Line) add(c *Charge) {
	for i := range c.cuts {
		if n := c.cuts[i].Load(); n > 0 {
			l.Cuts[catalogue.Cuts[i].Name] += n
		}
	}
	l.Compiled += c.compiled.Load()
	l.RoundTrips += c.RoundTrips.Load()
	l.Sent += c.sent.Load()
	l.Uploaded += c.uploaded.Load()
	l.Received += c.received.Load()
	l.Stalls += c.stalls.Load()
	l.StallSeconds += time.Duration(c.stalled.Load()).Seconds()
	l.WorkerSeconds += time.Duration(c.Worked.Load()).Seconds()
}
