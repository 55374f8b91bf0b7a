// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/core"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/trace"
)

// closedTrace is a trace that waits for its program, or is being given one.
type closedTrace struct {
	*trace.Trace
	event     core.TraceClosed
	by        *report.Charge
	releaseIt func()
}

// release gives the arrays back to the recorder.
func (t *closedTrace) release() { t.releaseIt() }

// callBytes is about what a call takes beside its lists.
const callBytes = 512

// call is a Call whose Done has not come, and what is needed to send it again or to explain its errors.
type call struct {
	meta    *proto.Call
	variant *compile.Variant
	entry   *compile.Entry
	origins []uint32 // of the trace
	by      *report.Charge
	notes   *profiled // nil: it is not profiled
}

// closed counts a cut.
func (s *session) closed(t *trace.Trace, release func()) *closedTrace {
	by := s.metrics.Bill.At(t.ReasonOrigin)
	if len(t.Origins) > 0 {
		s.metrics.Cut(t.Reason, by)
	}
	c := &closedTrace{Trace: t, by: by, releaseIt: release}
	c.event.Trace, c.event.At = c, time.Since(s.began)
	return c
}

// prepare is what happens at a cut, on the sender. A mistake of ours ends the session; the trace is released all the
// same.
func (s *session) prepare(a core.Prepare) {
	t, r := a.Trace.(*closedTrace), &s.report
	*r = core.Prepared{Trace: t}
	defer func() {
		if p := recover(); p != nil {
			s.do(core.WorkerLost{Err: bug(p), Final: true})
			*r = core.Prepared{Trace: t}
		}
	}()
	r.Storages, r.Alive, r.Frees, r.Unused = t.Bindings, t.Alive, t.Frees, t.Frees
	if len(t.Origins) == 0 { // only frees
		return
	}
	found := now()
	e, v, first := s.compiler.Find(t.Trace)
	known := v != nil
	var err error
	if v != nil {
		err = s.compiler.Hit(t.Trace, v)
	} else {
		e, v, r.Changed, err = s.compiler.Compile(t.Trace, t.by, e, first)
	}
	if e != nil {
		r.Inputs, r.Changed = e.Inputs, e.Changed
	}
	var m *proto.Call
	if err == nil {
		s.countUnused(v.Account, t.Trace)
		m, err = bind(e, v, t.Trace)
	}
	switch {
	case err != nil:
		r.Err = s.uncompiled(t, err)
	case len(v.Compiled.Program.Steps) == 0 && len(m.Outputs) == 0:
		r.Unused = m.Frees
	default:
		m.Busy = s.busy(v, t.Trace, a.SinceRead)
		r.Program, r.Bytes = v.Number(), 8*uint64(len(m.Params)+len(m.Inputs)+len(m.Outputs)+len(m.Frees))+callBytes
		r.Call = &call{meta: m, variant: v, entry: e, origins: slices.Clone(t.Origins), by: t.by,
			notes: s.profiled(t, found, !known)}
		if c := r.Call.(*call); c.notes != nil {
			c.notes.call, m.Timed = c, true
		}
	}
}

// uncompiled is the error of a trace that has no program.
func (s *session) uncompiled(t *closedTrace, err error) *Error {
	s.metrics.Errors.Add(1)
	o := s.compiler.Frontend.Origin(t.ReasonOrigin[0], t.ReasonOrigin[1])
	where := ""
	if o.File != "" {
		where = fmt.Sprintf(" before %s:%d", o.File, o.Line)
	}
	return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: mycelya could not compile the %d ops recorded%s: %v.\n"+
		"Their results are lost; please report this.", len(t.Origins)/2, where, err)}
}

// bind makes the call of a program for one trace.
func bind(e *compile.Entry, v *compile.Variant, t *trace.Trace) (*proto.Call, error) {
	params, err := v.Compiled.Params(t.Params)
	if err != nil {
		return nil, err
	}
	m := &proto.Call{Key: v.Key[:], Params: params, Inputs: make([]uint64, len(v.Compiled.Inputs)),
		Outputs: make([]uint64, len(v.Compiled.Outputs))}
	for i, slot := range v.Compiled.Inputs {
		m.Inputs[i] = t.Bindings[slot]
	}
	for i, slot := range v.Compiled.Outputs {
		if t.Alive[slot] != 0 {
			m.Outputs[i] = t.Bindings[slot]
		}
	}
	m.Frees = slices.Clone(t.Frees)
	for i, in := range e.Inputs { // the worker never had a storage that the trace made and no tensor holds
		if in && t.Alive[i] == 0 {
			m.Frees = append(m.Frees, t.Bindings[i])
		}
	}
	return m, nil
}

// busy is how many of the worker's cores the client uses while a program runs. It is 1, for the recording thread, if
// client and worker share a processor and the program is so light that recording the next one takes longer. Then the
// worker's idle threads would take the client's core. Never decide from measured time or from reads: the thread count
// changes the reduction order and so the bits. Heavy programs use all cores, as in PyTorch.
//
// If the loop also reads what each of its rounds has made, its thread may look for the answer before it sleeps.
func (s *session) busy(v *compile.Variant, t *trace.Trace, sinceRead int) uint32 {
	out, hurry := uint32(0), int64(0)
	if v.Weight != nil {
		time := v.Weight.Nanoseconds(t.Params)
		if time < float64(len(t.Origins)/2)*recording {
			out = 1
		}
		if sinceRead < lately && time < float64(len(t.Origins)/2)*reading {
			hurry = 1
		}
	}
	if goruntime.NumCPU() > 1 { // otherwise a client that looks for the answer takes the worker's core
		s.credits.Hurry.Store(hurry)
	}
	return out
}

// lately is how many traces there are at most between two reads of such a loop.
const lately = 8

const (
	// recording is about twice what recording an op takes, with the Python code around it, in nanoseconds. A program that
	// is a little heavier than its recording gains little from a second thread, which then looks for work for
	// milliseconds.
	recording = 25_000
	// reading is how long a round may take per op, in nanoseconds, so that its reader does not sleep.
	reading = 30_000
)
