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
	cuts     [catalogue.NumCuts]atomic.Uint64
	compiled atomic.Uint64 // programs
	trips    [numTrips]atomic.Uint64
	foreseen atomic.Uint64 // trips saved: reads that had come along with another one
	sent     atomic.Uint64 // bytes, uploads included
	uploaded atomic.Uint64 // bytes of tensors, in shared memory or not
	received atomic.Uint64 // bytes
	stalls   atomic.Uint64 // waits that did not end at once
	stalled  atomic.Int64  // nanoseconds
	Worked   atomic.Uint64 // nanoseconds that the worker took for the place's steps, as far as calls were timed
}

// Trip is the reason for a round trip.
type Trip int

// Reasons.
const (
	TripNew        Trip = iota // the first read after a program was sent
	TripUnforeseen             // a further read, which did not follow the last calls of the program
	TripLarge                  // a further read, of more bytes than come along with the first one
	TripWait                   // no read
	numTrips
)

var tripNames = [numTrips]string{"new", "unforeseen", "large", "wait"}

// Saved are the round trips that reads at a place have not made. It has the layout of myc_saved.
type Saved struct {
	At    trace.Place
	Known uint64 // the client knew the values
	Ahead uint64 // of tensors of a state dict, which were read with others
	Later uint64 // the program did not wait for them
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
	all := []*atomic.Uint64{&c.compiled, &c.foreseen, &c.sent, &c.uploaded, &c.received, &c.stalls, &c.Worked}
	for i := range c.cuts {
		all = append(all, &c.cuts[i])
	}
	for i := range c.trips {
		all = append(all, &c.trips[i])
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
	Trips        map[string]uint64 `json:"trips_made"`  // round trips by reason
	TripsSaved   map[string]uint64 `json:"trips_saved"` // by what has saved them
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

// Lines is the bill: lines with the longest stalls first, then lines with the most bytes. saved is what the client
// library does not know.
func (b *bill) Lines(names Names, saved []Saved) []*Line {
	b.mu.Lock()
	places := make(map[trace.Place]*Charge, len(b.by))
	for p, c := range b.by {
		if !c.empty() {
			places[p] = c
		}
	}
	b.mu.Unlock()
	lines := map[ir.Origin]*Line{}
	at := func(p trace.Place, stalled float64) *Line {
		o := names.Origin(p[0], p[1])
		l := lines[o]
		if l == nil {
			l = &Line{File: o.File, Line: o.Line, Cuts: map[string]uint64{}, Trips: map[string]uint64{},
				TripsSaved: map[string]uint64{}, Callers: map[string]float64{}, Origin: o}
			lines[o] = l
		}
		if caller := names.Caller(p[0]).Full(); caller != "" {
			l.Callers[caller] += stalled
		}
		return l
	}
	for p, c := range places {
		at(p, time.Duration(c.stalled.Load()).Seconds()).add(c)
	}
	for _, s := range saved {
		at(s.At, 0).save(s)
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
		count(l.Cuts, catalogue.Cuts[i].Name, c.cuts[i].Load())
	}
	l.Compiled += c.compiled.Load()
	for i := range c.trips {
		n := c.trips[i].Load()
		l.RoundTrips += n
		count(l.Trips, tripNames[i], n)
	}
	count(l.TripsSaved, "foreseen", c.foreseen.Load())
	l.Sent += c.sent.Load()
	l.Uploaded += c.uploaded.Load()
	l.Received += c.received.Load()
	l.Stalls += c.stalls.Load()
	l.StallSeconds += time.Duration(c.stalled.Load()).Seconds()
	l.WorkerSeconds += time.Duration(c.Worked.Load()).Seconds()
}

func (l *Line) save(s Saved) {
	count(l.TripsSaved, "known", s.Known)
	count(l.TripsSaved, "ahead", s.Ahead)
	count(l.TripsSaved, "later", s.Later)
}

// count adds to the counter of a name; a counter of 0 is absent.
func count(counters map[string]uint64, name string, n uint64) {
	if n > 0 {
		counters[name] += n
	}
}
