// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"fmt"
	"math"
	"strings"
)

// maxTimed bounds the calls and steps whose times a run lists, to about 20 MB.
const maxTimed = 500_000

// Call is a call that a worker has computed. Times are nanoseconds on the worker's clock.
type Call struct {
	Device  int
	Program int
	Place   string // of the program: "train.py:41"
	Began   int64
	Took    int64
	Steps   []Step
}

// Step is a step of a call.
type Step struct {
	Number int
	Began  int64 // since the call has begun
	Took   int64
}

// Times reports whether calls are wanted.
func (d *Dumper) Times() bool { return d != nil && d.spec.Times }

// Call reports a call. names returns the names and the places of its program's steps, by number; a step without a name
// is not listed. It is called for the first call of a program.
func (d *Dumper) Call(c Call, names func() (names, places []string)) {
	if !d.Times() || !strings.Contains(c.Place, d.spec.Only) {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed > maxTimed {
		return
	}
	if d.timed += 1 + len(c.Steps); d.timed > maxTimed {
		d.event(enoughEvent{"enough", fmt.Sprintf("Only the first %d times are listed.", maxTimed)})
		return
	}
	if d.epoch == 0 {
		d.epoch = c.Began
	}
	program := [2]int{c.Device, c.Program}
	if _, known := d.named[program]; !known {
		e := stepsEvent{Event: "steps", Device: c.Device, Program: c.Program}
		e.Names, e.Places = names()
		d.named[program] = e.Names
		d.event(e)
	}
	e := callEvent{"call", c.Device, c.Program, seconds(c.Began - d.epoch), seconds(c.Took), [][3]float64{}}
	for _, s := range c.Steps {
		if d.named[program][s.Number] != "" {
			e.Steps = append(e.Steps, [3]float64{float64(s.Number), seconds(s.Began), seconds(s.Took)})
		}
	}
	d.event(e)
}

// Line is what a line of the program has cost beside the worker's time.
type Line struct {
	Place        string   `json:"place"`   // with its whole path, "" if it is not known
	Callers      []string `json:"callers"` // the lines that have led to it, if it is one of a library
	RoundTrips   uint64   `json:"round_trips"`
	Stalls       uint64   `json:"stalls"`
	StallSeconds float64  `json:"stall_seconds"`
}

// Bill reports all lines that have waited. It replaces what was reported under the same number.
func (d *Dumper) Bill(number int, lines []Line) {
	if !d.Times() {
		return
	}
	e := billEvent{"bill", number, nil}
	for _, l := range lines {
		if strings.Contains(l.Place, d.spec.Only) {
			e.Lines = append(e.Lines, l)
		}
	}
	if len(e.Lines) == 0 {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.event(e)
}

// seconds is a time in seconds, rounded to a tenth of a microsecond, so that the number is short.
func seconds(ns int64) float64 { return math.Round(float64(ns)/100) / 1e7 }
