// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"cmp"
	"encoding/json"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/trace"
)

// charge is the cost of one place since the last reset. A nil charge stands for no place in particular.
type charge struct {
	cuts       [catalogue.NumCuts]atomic.Uint64
	compiled   atomic.Uint64 // programs
	roundTrips atomic.Uint64
	sent       atomic.Uint64 // bytes, uploads included
	uploaded   atomic.Uint64 // bytes of tensors, in shared memory or not
	received   atomic.Uint64 // bytes
	stalls     atomic.Uint64 // waits that did not end at once
	stalled    atomic.Int64  // nanoseconds
}

// bill holds the charges by place.
type bill struct {
	mu sync.Mutex
	by map[trace.Place]*charge
}

func (b *bill) at(p trace.Place) *charge {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := b.by[p]
	if c == nil {
		if b.by == nil {
			b.by = map[trace.Place]*charge{}
		}
		c = new(charge)
		b.by[p] = c
	}
	return c
}

// reset sets all charges to 0, and keeps them: frames under way are charged to them when they arrive.
func (b *bill) reset() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, c := range b.by {
		for _, n := range c.counters() {
			n.Store(0)
		}
		c.stalled.Store(0)
	}
}

func (c *charge) counters() []*atomic.Uint64 {
	all := []*atomic.Uint64{&c.compiled, &c.roundTrips, &c.sent, &c.uploaded, &c.received, &c.stalls}
	for i := range c.cuts {
		all = append(all, &c.cuts[i])
	}
	return all
}

// empty reports whether nothing has been charged.
func (c *charge) empty() bool {
	return !slices.ContainsFunc(c.counters(), func(n *atomic.Uint64) bool { return n.Load() != 0 })
}

// line is one entry of the bill: the cost of one line of the program.
type line struct {
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
}

// JSON is the bill as an array: lines with the longest stalls first, then lines with the most bytes.
func (b *bill) JSON(origin func(code, offset uint32) ir.Origin) []byte {
	b.mu.Lock()
	places := make(map[trace.Place]*charge, len(b.by))
	for p, c := range b.by {
		if !c.empty() {
			places[p] = c
		}
	}
	b.mu.Unlock()
	lines := map[ir.Origin]*line{}
	for p, c := range places {
		o := origin(p[0], p[1])
		l := lines[o]
		if l == nil {
			l = &line{File: o.File, Line: o.Line, Cuts: map[string]uint64{}}
			lines[o] = l
		}
		l.add(c)
	}
	out := make([]*line, 0, len(lines))
	for _, l := range lines {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b *line) int {
		return cmp.Or(cmp.Compare(b.StallSeconds, a.StallSeconds), cmp.Compare(b.Sent+b.Received, a.Sent+a.Received),
			cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line))
	})
	text, err := json.Marshal(out)
	if err != nil {
		panic("BUG: the bill doesn't encode: " + err.Error())
	}
	return text
}

func (l *line) add(c *charge) {
	for i := range c.cuts {
		if n := c.cuts[i].Load(); n > 0 {
			l.Cuts[catalogue.Cuts[i].Name] += n
		}
	}
	l.Compiled += c.compiled.Load()
	l.RoundTrips += c.roundTrips.Load()
	l.Sent += c.sent.Load()
	l.Uploaded += c.uploaded.Load()
	l.Received += c.received.Load()
	l.Stalls += c.stalls.Load()
	l.StallSeconds += time.Duration(c.stalled.Load()).Seconds()
}
