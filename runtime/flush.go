// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"fmt"
	goruntime "runtime"
	"slices"
	"time"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/passes"
	pb "github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compare"
	"github.com/mycelya/mycelya/runtime/dump"
	"google.golang.org/protobuf/proto"
)

// call is a Call whose Done has not come, and what is needed to send it again or to explain its errors.
type call struct {
	seq     uint64
	meta    *pb.Call
	variant *variant
	entry   *entry
	origins []uint32 // of the trace
	by      *charge
}

// flush takes a closed trace and returns before anything is compiled or sent; release is called once when its arrays are no
// longer used. ErrPending: it was taken, but more traces are on their way than the credits allow.
func (s *session) flush(t *Trace, release func()) error {
	behind := s.credits.OnWay.Add(1) >= s.credits.Allowed.Load()
	err := s.enqueue(nil, always, s.job(t, release))
	switch {
	case err != nil:
		s.credits.OnWay.Add(-1)
		release()
	case behind:
		return ErrPending
	}
	return err
}

// job is the sender's part of flush.
func (s *session) job(t *Trace, release func()) func() {
	by := s.metrics.bill.at(t.ReasonOrigin)
	if len(t.Origins) > 0 {
		s.metrics.cut(t.Reason, by)
	}
	return func() {
		defer release()
		if !s.alive() {
			return
		}
		if called, changed, err := s.submit(t, by); !called {
			s.credit()
			if err != nil {
				s.poison(t, changed, err)
			}
		}
	}
}

// room begins a wait until fewer traces are on their way than the credits allow.
func (s *session) room(by *charge) (*Ticket, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone != nil {
		return nil, s.gone
	}
	t := newTicket(s.metrics, by, nil)
	s.roomLocked(t)
	return t, nil
}

// roomLocked ends a ticket when there is room. The lock is held.
func (s *session) roomLocked(t *Ticket) {
	if s.gone != nil {
		t.end(s.gone)
		return
	}
	s.waiting = append(s.waiting, t)
	s.admit()
}

// pace is how fast the worker answers calls.
type pace struct {
	last     time.Time
	interval time.Duration // between two answers, on average; 0: not known
}

func (p *pace) done() {
	now := time.Now()
	if !p.last.IsZero() {
		if took := min(now.Sub(p.last), aheadTime); p.interval == 0 {
			p.interval = took
		} else {
			p.interval += (took - p.interval) / 16
		}
	}
	p.last = now
}

// ahead is how many traces may be on their way. Steps of a millisecond need more of them than long ones, so that the worker
// has some left when the client, or the network, takes a break.
func (p *pace) ahead() int {
	if p.interval <= 0 {
		return maxCalls
	}
	return int(min(max(aheadTime/p.interval, maxCalls), mostCalls))
}

// admit ends the waits for room if there is some. The lock is held.
func (s *session) admit() {
	if s.credits.OnWay.Load() < s.credits.Allowed.Load() {
		for _, t := range s.waiting {
			t.end(nil)
		}
		s.waiting = nil
	}
}

// submit brings one trace to the worker: key, look up, passes, codegen, send, bind. called: a Done will come. changed
// says, as far as that got known before an error, which storages the trace should have made or written.
func (s *session) submit(t *Trace, by *charge) (called bool, changed []bool, err error) {
	if len(t.Origins) == 0 { // only frees
		s.free(t.Frees, by)
		return false, nil, nil
	}
	var e, first *entry
	if !s.settings.Fresh {
		e, first = s.programs.find(t)
	}
	var v *variant
	if e != nil {
		v = e.fits(t)
	}
	if v != nil {
		s.metrics.programHits.Add(1)
		s.showCut(t, v.account.number, false)
		if s.settings.Check >= 2 {
			if err := s.recheck(t, v); err != nil {
				return false, e.changed, err
			}
		}
	} else {
		if e, v, changed, err = s.compile(t, e, first, by); err != nil {
			return false, changed, err
		}
	}
	if why := s.inheritPoison(e, t); why != nil {
		return false, e.changed, why
	}
	m, err := bind(e, v, t, s.busy(v, t))
	if err != nil {
		return false, e.changed, err
	}
	if len(v.compiled.Program.Steps) == 0 && len(m.Outputs) == 0 {
		s.free(m.Frees, by)
		return false, nil, nil
	}
	s.seq++
	v.account.calls.Add(1)
	s.history.calls.Add(1)
	if !v.sent {
		if s.sendProgram(s.seq, v, by) != nil {
			return true, nil, nil // the session has ended; so has the credit
		}
		v.sent = true
	}
	s.mu.Lock()
	if s.gone == nil {
		s.pending[s.seq] = &call{seq: s.seq, meta: m, variant: v, entry: e, origins: slices.Clone(t.Origins), by: by}
	}
	s.mu.Unlock()
	_, _ = s.write(by, transport.Call, s.seq, v.differing(s.seq, m), nil)
	return true, nil, nil
}

// differing is the message of a call: all of it, or how it differs from the last one of the program. A worker that has
// forgotten the program is sent all of it.
func (v *variant) differing(seq uint64, m *pb.Call) *pb.Call {
	send := m
	if v.last != nil {
		if delta, ok := pb.AppendDelta(nil, v.last, m); ok {
			send = &pb.Call{Key: m.Key, Base: v.lastSeq, Delta: delta, Busy: m.Busy}
		}
	}
	v.last, v.lastSeq = m, seq
	return send
}

// compile makes a program for a trace that none fits: of a new skeleton, or of a known one with more outputs. It notes why.
func (s *session) compile(t *Trace, e, first *entry, by *charge) (_ *entry, _ *variant, changed []bool, err error) {
	began := time.Now()
	v := &variant{key: s.programs.newKey(t), account: &account{number: s.history.upcoming(), reason: t.Reason}}
	s.showCut(t, v.account.number, true)
	shown := s.show(t, v)
	c, err := s.build(t, e, v, shown)
	took := time.Since(began)
	s.metrics.compiled(took, by)
	if err == nil {
		a := v.account
		a.of, a.names, a.origins = v, c.Ops, slices.Clone(t.Origins)
		if params, err := v.compiled.Params(t.Params); err == nil {
			a.planned = s.planned(v.compiled, params, a.names, a.origins)
		}
	}
	s.note(v.account, took, t, c, e, first != nil, err)
	shown.End(v.account.ops, v.account.why, took)
	if c != nil {
		changed = c.Changed
	}
	if err != nil {
		return nil, nil, changed, err
	}
	if s.device() == "cpu" { // elsewhere the worker compiles them, and says how many
		s.metrics.kernelsCompiled.Add(uint64(s.programs.newKernels(v.compiled.Program)))
	}
	if e != nil && e.otherSizes(t) {
		s.metrics.sizeMisses.Add(1)
	}
	if e == nil {
		if first != nil {
			s.metrics.hashCollisions.Add(1)
		}
		e = &entry{skeleton: slices.Clone(t.Skeleton), inputs: c.Inputs, changed: c.Changed, ops: c.Ops, next: first}
		first = e
	}
	e.variants = append(e.variants, v)
	s.programs.store(t, first)
	s.log.Debug("compiled", "graph", c.Graph.Name, "reason", c.Graph.Reason, "records", len(c.Ops), "steps", len(v.compiled.Program.Steps), "took", took)
	return e, v, changed, nil
}

// recheck compiles a trace again that a program was found for: the call of the one must be the call of the other.
func (s *session) recheck(t *Trace, v *variant) error {
	_, fresh, err := s.lower(t, v, nil)
	if err != nil {
		return err
	}
	want, err := fresh.Params(t.Params)
	if err != nil {
		return err
	}
	got, err := v.compiled.Params(t.Params)
	switch {
	case err != nil:
		return err
	case !proto.Equal(fresh.Program, v.compiled.Program):
		return fmt.Errorf("program #%d was found for it, but it compiles to another one", v.account.number)
	case !slices.Equal(got, want), !slices.Equal(fresh.Inputs, v.compiled.Inputs), !slices.Equal(fresh.Outputs, v.compiled.Outputs):
		return fmt.Errorf("program #%d was found for it, but is called in another way", v.account.number)
	}
	return nil
}

// build makes the program of a variant, which a dump may show. What it knows of the trace is returned with an error too.
func (s *session) build(t *Trace, e *entry, v *variant, shown *dump.Program) (c *Captured, err error) {
	v.wanted = make([]bool, len(t.Alive))
	for i, a := range t.Alive {
		v.wanted[i] = a != 0
	}
	if e != nil {
		v.wanted = e.union(t)
	}
	if s.settings.Check >= 2 {
		v.first = slices.Clone(t.Params)
	}
	c, v.compiled, err = s.lower(t, v, shown)
	return c, err
}

// lower takes a trace through capture, passes and codegen; shown, unless it is nil, sees it. The sizes first seen are those with which
// the variant was made: what it requires depends on them.
func (s *session) lower(t *Trace, v *variant, shown *dump.Program) (*Captured, *codegen.Compiled, error) {
	c, err := s.frontend.Build(t, v.wanted)
	if err != nil {
		return nil, nil, err
	}
	for i := range c.Graph.Syms {
		if sym := &c.Graph.Syms[i]; v.first != nil {
			sym.First = int64(v.first[sym.Slot])
		}
	}
	g, err := passes.Run(c.Graph, s.settings.passes(shown))
	if err != nil {
		return c, nil, err
	}
	if s.shares() {
		v.weight = cost.WeightOf(g)
	}
	if s.settings.Check >= 3 {
		g = compare.Graph(c.Graph, g)
		err = ir.Verify(g)
	}
	var compiled *codegen.Compiled
	if err == nil {
		compiled, err = codegen.Compile(g, options(c, s.kernels(), s.device()))
	}
	if err == nil {
		compiled.Program.Key = v.key[:]
		err = acceptable(compiled.Program) // here it is one trace's error, at the worker the session's
	}
	if err != nil {
		shown.Failed(err)
		return c, nil, err
	}
	shown.Plan(g, compiled)
	return c, compiled, nil
}

// kernels says whether the worker computes groups: one on a CPU does unless it shall not, another if it shall.
func (s *session) kernels() bool {
	return s.settings.Kernels || !s.settings.NoKernels && s.device() == "cpu"
}

// busy is how many cores of the worker's the client uses while a program runs: the one of its thread, where they share a processor, in a
// loop that reads what each of its rounds has made, if its rounds are light. Then client and worker are at work at the same time, and
// threads that look for work are in their way. What is computed never tells by the clock: how sums are split depends on the number of
// threads. Operators by themselves are to compute as PyTorch does, on all of them.
func (s *session) busy(v *variant, t *Trace) uint32 {
	out := uint32(0)
	if s.reads < lately && v.weight != nil && v.light(t) {
		out = 1
	}
	s.reads++
	if goruntime.NumCPU() > 1 { // else the worker needs the core of who looks
		s.credits.Hurry.Store(int64(out))
	}
	return out
}

// lately is how many traces there are at most between the reads of such a loop.
const lately = 8

// shares says whether client and worker compute on the processor of one host, kernels too.
func (s *session) shares() bool {
	s.mu.Lock()
	near := s.hello.GetBlocks() > 0 && s.hello.GetDevice() == "cpu"
	s.mu.Unlock()
	return near && s.kernels()
}

// light says whether a call takes a core not much longer than recording it took.
func (v *variant) light(t *Trace) bool {
	return v.weight.Nanoseconds(t.Params) < float64(len(t.Origins)/2)*recording
}

// recording is some three times what an op takes to be recorded, with the Python around it, in nanoseconds.
const recording = 30_000

// device is the worker's: "cpu", "cuda:0".
func (s *session) device() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hello.GetDevice()
}

// acceptable says whether a worker will take a program.
func acceptable(p *pb.Program) error {
	const small = 1 << 15 // so many steps and windows never reach the limit of bytes, and sizing them costs
	if len(p.Steps)+len(p.Tensors) > small {
		if n := proto.Size(p); n > pb.MaxProgramBytes {
			return fmt.Errorf("the program has %d bytes, at most %d are allowed", n, pb.MaxProgramBytes)
		}
	}
	return pb.Validate(p)
}

// bind makes the call of a program for one trace.
func bind(e *entry, v *variant, t *Trace, busy uint32) (*pb.Call, error) {
	params, err := v.compiled.Params(t.Params)
	if err != nil {
		return nil, err
	}
	m := &pb.Call{Key: v.key[:], Params: params, Inputs: make([]uint64, len(v.compiled.Inputs)), Outputs: make([]uint64, len(v.compiled.Outputs))}
	for i, slot := range v.compiled.Inputs {
		m.Inputs[i] = t.Bindings[slot]
	}
	for i, slot := range v.compiled.Outputs {
		if t.Alive[slot] != 0 {
			m.Outputs[i] = t.Bindings[slot]
		}
	}
	m.Busy = busy
	m.Frees = slices.Clone(t.Frees)
	for i, in := range e.inputs { // a storage that was made here and died never got to the worker
		if in && t.Alive[i] == 0 {
			m.Frees = append(m.Frees, t.Bindings[i])
		}
	}
	return m, nil
}

func (s *session) sendProgram(seq uint64, v *variant, by *charge) error {
	n, err := s.write(by, transport.Program, seq, v.compiled.Program, nil)
	s.metrics.programBytes.Add(n)
	return err
}

// free tells the worker of storages that nobody holds.
func (s *session) free(ids []uint64, by *charge) {
	for _, id := range ids {
		delete(s.poisoned, id)
	}
	if len(ids) > 0 {
		s.seq++
		_, _ = s.write(by, transport.Free, s.seq, &pb.FreeStorages{Storages: ids}, nil)
	}
}

// credit gives back the room of a trace for which no Done will come.
func (s *session) credit() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.gone == nil {
		s.credits.OnWay.Add(-1)
	}
	s.admit()
}

// poison remembers that a trace got no program: reads of what it should have made or written say why. changed nil: it
// isn't known what that is, so it is everything the trace touched.
func (s *session) poison(t *Trace, changed []bool, err error) {
	why, ok := err.(*Error)
	if !ok {
		o := s.frontend.Origin(t.ReasonOrigin[0], t.ReasonOrigin[1])
		where := ""
		if o.File != "" {
			where = fmt.Sprintf(" before %s:%d", o.File, o.Line)
		}
		why = &Error{KindRuntime, fmt.Sprintf("BUG: mycelya could not compile the %d ops recorded%s: %v.\nTheir results are lost; please report this.",
			len(t.Origins)/2, where, err)}
		s.metrics.errors.Add(1)
		s.failures.add(why)
	}
	dead := slices.Clone(t.Frees)
	for i, id := range t.Bindings {
		switch {
		case t.Alive[i] == 0:
			dead = append(dead, id) // the worker may never have had it; then freeing it does nothing
		case changed == nil || changed[i]:
			s.poisoned[id] = why
		}
	}
	s.free(dead, nil)
}

// inheritPoison says whether a trace reads what a trace without a program should have made.
func (s *session) inheritPoison(e *entry, t *Trace) error {
	if len(s.poisoned) > 0 {
		for i, in := range e.inputs {
			if why := s.poisoned[t.Bindings[i]]; in && why != nil {
				return why
			}
		}
	}
	for _, id := range t.Frees {
		delete(s.poisoned, id)
	}
	return nil
}
