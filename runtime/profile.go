// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/runtime/dump"
	"github.com/mycelya/mycelya/trace"
)

// profile is what the last profile has noted. The recorder decides which traces are profiled: those with times.
type profile struct {
	on atomic.Int64 // the number of the profile that runs; 0: none

	mu      sync.Mutex
	number  int64 // of the last one
	calls   []*profiled
	frames  []profiledFrame
	events  int // that they will be
	dropped int
	text    string // of the last profile that has ended
}

// maxProfiled bounds the events of a profile: some 200 MB of text.
const maxProfiled = 1 << 20

// profiled is a call of a profiled trace. Times without a remark are the client's, nanoseconds since 1970.
type profiled struct {
	session       *session
	life          int // the number of the worker that has answered
	call          *call
	callers       []uint64 // by record
	began, closed int64    // the recording
	found, ready  int64    // the sender's work: it finds or compiles the program, and binds the call
	compiled      bool
	seq           uint64
	sent          int64
	answered      int64
	times         *proto.Times // on the worker's clock
}

// profiledFrame is a frame that was sent, or the body of one that was received.
type profiledFrame struct {
	device       int
	received     bool
	what         transport.Type
	bytes        uint64
	began, ended int64 // ended 0: it is still being sent or received
}

func now() int64 { return time.Now().UnixNano() }

// Profile begins a profile, or ends it. Calls without an answer are then left out.
func (r *Runtime) Profile(on bool) {
	p := &r.profile
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = ""
	if on {
		p.number++
		p.on.Store(p.number)
	} else {
		p.on.Store(0)
		p.text = p.write()
	}
	p.calls, p.frames, p.events, p.dropped = nil, nil, 0, 0
}

// Profiled returns the events of the last profile that has ended.
func (r *Runtime) Profiled() string {
	r.profile.mu.Lock()
	defer r.profile.mu.Unlock()
	return r.profile.text
}

// profiled makes the notes of a trace's call; nil if the trace is not profiled.
func (s *session) profiled(t *closedTrace, found int64, compiled bool) *profiled {
	if t.Began == 0 && !s.settings.Dump.Times() {
		return nil
	}
	return &profiled{session: s, callers: slices.Clone(t.Callers), began: t.Began, closed: t.Closed,
		found: found, ready: now(), compiled: compiled}
}

// sends notes that a call is sent.
func (p *profile) sends(c *profiled, seq uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	c.seq, c.sent = seq, now()
}

// answer notes the end of a call, by the worker of a life.
func (p *profile) answer(c *profiled, life int, times *proto.Times) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.began == 0 || p.on.Load() == 0 || c.times != nil { // a call that a new worker repeats has its times
		return
	}
	c.life, c.answered, c.times = life, now(), times
	n := 4 + len(times.Steps)/2
	if p.events += n; p.events > maxProfiled {
		p.dropped += n
		return
	}
	p.calls = append(p.calls, c)
}

// frame notes a frame that is about to be sent or received, and returns a function that notes that it was. The answer
// to a frame, and with it the end of the profile, may come before its sender goes on.
func (p *profile) frame(device int, received bool, what transport.Type, bytes uint64) func() {
	number := p.on.Load()
	if number == 0 {
		return func() {}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on.Load() != number {
		return func() {}
	}
	if p.events++; p.events > maxProfiled {
		p.dropped++
		return func() {}
	}
	at := len(p.frames)
	f := profiledFrame{device: device, received: received, what: what, bytes: bytes, began: now()}
	p.frames = append(p.frames, f)
	return func() {
		ended := now()
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.on.Load() == number {
			p.frames[at].ended = ended
		}
	}
}

// write lists the events of the profile on the client's clock, one per line, with tabs between
//
//	track device begin end caller call program name place
//
// begin and end are nanoseconds since 1970. caller is what PyTorch's profiler calls the op that recorded the first
// record of the event, or 0; call the call's number, and program that of explain(), both 0 if there is none. name and
// place ("file:line", or "") are texts. Tracks: "record", from the first op of a trace to its cut; "compile", where the
// sender finds or compiles the program; "send" and "receive", frames; "worker", from the arrival of a call to its end;
// "op", a step of it. The last line is "dropped" and the number of events that were too many.
func (p *profile) write() string {
	w := &events{}
	ahead := clocks(p.calls)
	for _, c := range p.calls {
		w.call(c, ahead[clockOf{c.session, c.life}])
	}
	for _, f := range p.frames {
		track, name := "send", fmt.Sprintf("%v of %s", f.what, compile.Size(f.bytes))
		if f.received {
			track = "receive"
		}
		w.line(track, f.device, f.began, cmp.Or(f.ended, now()), 0, 0, 0, name, "")
	}
	fmt.Fprintf(&w.b, "dropped\t%d\n", p.dropped)
	return w.b.String()
}

// clockOf is a worker, which has a clock.
type clockOf struct {
	session *session
	life    int
}

// clocks is by how many nanoseconds the workers' clocks are ahead of this one. A call begins after it was sent, and
// its answer arrives after it ended: each call bounds the difference on both sides. Clocks that may agree do.
func clocks(calls []*profiled) map[clockOf]int64 {
	low, high := map[clockOf]int64{}, map[clockOf]int64{}
	for _, c := range calls {
		k := clockOf{c.session, c.life}
		if _, known := low[k]; !known {
			low[k], high[k] = math.MinInt64, math.MaxInt64
		}
		low[k] = max(low[k], int64(c.times.Ended)-c.answered)
		high[k] = min(high[k], int64(c.times.Began)-c.sent)
	}
	for k, l := range low {
		if h := high[k]; l <= 0 && 0 <= h {
			low[k] = 0
		} else {
			low[k] = l + (h-l)/2
		}
	}
	return low
}

// events is the text of a profile.
type events struct {
	b strings.Builder
}

func (w *events) line(track string, device int, began, ended int64, caller, call uint64, program int,
	name, place string) {
	clean := strings.NewReplacer("\t", " ", "\n", " ").Replace
	fmt.Fprintf(&w.b, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%s\n", track, device, began, max(began, ended), caller, call,
		program, clean(name), clean(place))
}

// call writes the events of a call.
func (w *events) call(c *profiled, ahead int64) {
	s, of := c.session, c.call
	program := of.variant.Account.Number
	ops := compile.Count(uint64(len(of.origins)/2), "op")
	line := func(track string, began, ended int64, name, place string) {
		w.line(track, s.index, began, ended, 0, c.seq, program, name, place)
	}
	cut := s.place(of, len(of.origins)/2-1)
	line("record", c.began, c.closed, ops, cut)
	how := "find"
	if c.compiled {
		how = "compile"
	}
	line("compile", c.found, c.ready, fmt.Sprintf("%s program %d of %s", how, program, ops), cut)
	began := int64(c.times.Began) - ahead
	line("worker", began, int64(c.times.Ended)-ahead, fmt.Sprintf("program %d, %s", program, ops), cut)
	for i, name := range of.names() {
		after, took, ran := step(c.times, i)
		if !ran || name == "" {
			continue
		}
		record, caller := of.variant.Compiled.Program.Record(i), uint64(0)
		if record >= 0 && record < len(c.callers) {
			caller = c.callers[record]
		}
		from := began + after
		w.line("op", s.index, from, from+took, caller, c.seq, program, name, s.place(of, record))
	}
}

// step is when a step of a call began, since the call has begun, and the time that it took, in nanoseconds.
func step(t *proto.Times, number int) (after, took int64, ran bool) {
	if 2*number+1 >= len(t.Steps) || t.Steps[2*number] == 0 {
		return 0, 0, false
	}
	return int64(t.Steps[2*number]) - 1, int64(t.Steps[2*number+1]), true
}

// bill charges the lines of a timed call with the times of their steps.
func (s *session) bill(of *call, times *proto.Times) {
	for i, name := range of.names() {
		_, took, ran := step(times, i)
		if !ran || name == "" {
			continue
		}
		at := trace.Place{}
		if r := of.variant.Compiled.Program.Record(i); r >= 0 && 2*r+1 < len(of.origins) {
			at = trace.Place{of.origins[2*r], of.origins[2*r+1]}
		}
		s.metrics.Bill.At(at).Worked.Add(uint64(took))
	}
}

// showCall reports a timed call to a dump.
func (s *session) showCall(of *call, times *proto.Times) {
	if !s.settings.Dump.Times() {
		return
	}
	v := of.variant
	c := dump.Call{Device: s.index, Program: v.Account.Number, Place: v.Account.Place, Began: int64(times.Began),
		Took: int64(times.Ended - times.Began)}
	p := v.Compiled.Program
	for i := range p.Steps {
		if after, took, ran := step(times, i); ran {
			c.Steps = append(c.Steps, dump.Step{Number: i, Began: after, Took: took})
		}
	}
	s.settings.Dump.Call(c, func() (names, places []string) {
		places = make([]string, len(p.Steps))
		for i := range places {
			places[i] = s.place(of, p.Record(i))
		}
		return of.names(), places
	})
}

// place is the place of a call's record as "file:line"; "" if it is not known.
func (s *session) place(of *call, record int) string {
	if record < 0 || 2*record+1 >= len(of.origins) {
		return ""
	}
	return s.compiler.Frontend.Origin(of.origins[2*record], of.origins[2*record+1]).Full()
}

// wrongKernels is the warning about a group whose kernels do not give what its operators give.
func (s *session) wrongKernels(of *call, k *proto.Kernels) string {
	name, where := "a group", ""
	compiled := of.variant.Compiled
	var f *program.Fused
	if steps := compiled.Program.Steps; int(k.WrongStep) < len(steps) {
		f, _ = steps[k.WrongStep].(*program.Fused)
	}
	if f != nil {
		plain := int(k.WrongStep+1) + int(f.Kernels)
		name = of.names()[plain-1]
		for i := plain; i < plain+int(f.Plain) && where == ""; i++ {
			where = s.place(of, compiled.Program.Record(i))
		}
	}
	return fmt.Sprintf("The kernels of %s (%s, program #%d) do not give what its operators give: %s. The call has the "+
		"operators' results, and the group runs as operators from now on. Please report this.", name,
		cmp.Or(where, "line unknown"), of.variant.Account.Number, k.WrongText)
}

// names are those of the steps of a call's program.
func (c *call) names() []string {
	v := c.variant
	v.Naming.Do(func() { v.Names = stepNames(c) })
	return v.Names
}

// stepNames names the steps of a call's program that take time: ops by their names without the namespace aten and the
// overload, kernels by their ops.
func stepNames(of *call) []string {
	compiled := of.variant.Compiled
	steps := compiled.Program.Steps
	out := make([]string, len(steps))
	op := func(i int) string {
		if r := compiled.Program.Record(i); r >= 0 && r < len(of.entry.Ops) {
			return short(of.entry.Ops[r])
		}
		return "copy"
	}
	for i := 0; i < len(steps); i++ {
		switch k := steps[i].(type) {
		case *program.Call:
			out[i] = short(k.Op)
		case *program.Copy, *program.Clone, *program.Resize:
			out[i] = op(i)
		case *program.Fused:
			first := i + 1
			plain := first + int(k.Kernels)
			name := "fused " + opsOf(steps, plain, plain+int(k.Plain), op)
			for j := first; j < plain; j++ {
				switch kernel := steps[j].(type) {
				case *program.Kernel:
					out[j] = name
				case *program.Call:
					out[j] = short(kernel.Op)
				}
			}
			i = plain - 1
		}
	}
	return out
}

// opsOf lists the ops of some steps: "mul, add ×3, relu".
func opsOf(steps []program.Step, from, to int, op func(int) string) string {
	const most = 6
	var names []string
	times := map[string]int{}
	for i := from; i < to; i++ {
		switch steps[i].(type) {
		case *program.Call, *program.Copy:
		default:
			continue
		}
		name := op(i)
		if times[name]++; times[name] == 1 {
			names = append(names, name)
		}
	}
	left := len(names) - most
	names = names[:min(len(names), most)]
	for i, name := range names {
		if n := times[name]; n > 1 {
			names[i] = fmt.Sprintf("%s ×%d", name, n)
		}
	}
	if left > 0 {
		names = append(names, fmt.Sprintf("%d more", left))
	}
	return strings.Join(names, ", ")
}

// short is an op's name without the namespace aten and the overload.
func short(op string) string {
	op = strings.TrimPrefix(op, "aten::")
	if dot := strings.IndexByte(op, '.'); dot > 0 {
		op = op[:dot]
	}
	return op
}
