// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"bytes"
	"fmt"
	"log/slog"
	"math"
	"runtime/debug"
	gometrics "runtime/metrics"
	"slices"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compare"
	"github.com/mycelya/mycelya/runtime/dump"
	"github.com/mycelya/mycelya/trace"
)

// compiler finds or makes the programs of a session's traces. Except for explain and history, only the sender uses it.
type compiler struct {
	index    int // of the device
	settings *Settings
	frontend Frontend
	metrics  *metrics
	log      *slog.Logger
	programs *programs
	history  history

	// Facts about the worker.
	device string // "cpu", "cuda:0"
	torch  string // its version of PyTorch
	near   bool   // the worker runs on the client's host

	eager atomic.Int32 // how often eager() was entered and not left

	trim *time.Timer // runs trim when nothing was compiled for a while
}

const trimAfter = time.Second

func newCompiler(index int, settings *Settings, frontend Frontend, m *metrics, log *slog.Logger) *compiler {
	return &compiler{index: index, settings: settings, frontend: frontend, metrics: m, log: log,
		programs: newPrograms(cacheBytes), trim: time.AfterFunc(math.MaxInt64, trim)}
}

func (c *compiler) close() { c.trim.Stop() }

// worker sets the worker that the programs are for.
func (c *compiler) worker(h *proto.Hello) {
	c.device, c.torch, c.near = h.Device, h.Torch, h.Blocks > 0 || h.Host != "" && h.Host == transport.Host()
}

// kernels reports whether the worker computes groups with kernels. A program in eager() computes each op with PyTorch's
// operator.
func (c *compiler) kernels() bool {
	return !c.settings.Eager && c.eager.Load() == 0 && !c.settings.NoKernels
}

// setEager notes that eager() was entered or left. Any goroutine may call it.
func (c *compiler) setEager(on bool) {
	if on {
		c.eager.Add(1)
		return
	}
	for n := c.eager.Load(); n > 0 && !c.eager.CompareAndSwap(n, n-1); n = c.eager.Load() {
	}
}

// shares reports whether client and worker share the processor of one host, and the worker runs kernels on it.
func (c *compiler) shares(kernels bool) bool { return c.near && c.device == "cpu" && kernels }

// find returns the entry of a trace's skeleton, a variant that fits the trace, and the first entry under its key. Each
// is nil if there is none.
func (c *compiler) find(t *trace.Trace) (e *entry, v *variant, first *entry) {
	if c.settings.Fresh {
		return nil, nil, nil
	}
	if e, first = c.programs.find(t); e != nil {
		v = e.fits(t, c.kernels())
	}
	return e, v, first
}

// hit notes that a variant fits a trace.
func (c *compiler) hit(t *trace.Trace, v *variant) error {
	c.metrics.ProgramHits.Add(1)
	c.showCut(t, v.account.number, false)
	if c.settings.Check >= 2 {
		return c.recheck(t, v)
	}
	return nil
}

// called counts a call of a variant.
func (c *compiler) called(v *variant) {
	v.account.calls.Add(1)
	c.history.calls.Add(1)
}

// compile makes a program for a trace that no variant fits: of a new skeleton (e is nil), or of a known one with more
// outputs. changed marks the storages that the trace makes or writes. After an error it is set only if capture has
// succeeded.
func (c *compiler) compile(t *closedTrace, e, first *entry) (_ *entry, _ *variant, changed []bool, err error) {
	began := time.Now()
	c.trim.Stop() // it would count what this compilation is using
	v := &variant{key: c.programs.newKey(t.Trace), kernels: c.kernels(),
		account: &account{number: c.history.upcoming(), reason: t.Reason}}
	c.showCut(t.Trace, v.account.number, true)
	shown := c.show(t.Trace, v)
	captured, err := c.build(t.Trace, e, v, shown)
	took := time.Since(began)
	c.metrics.compiled(took, t.by)
	c.trim.Reset(trimAfter)
	if err == nil {
		a := v.account
		a.of, a.names, a.origins = v, captured.Ops, slices.Clone(t.Origins)
		a.skipped, a.computing, a.firstSkipped = skipped(captured, v.compiled)
		if params, err := v.compiled.Params(t.Params); err == nil {
			a.memory = c.peak(v.compiled, params, a.names, a.origins)
		}
	}
	c.note(v, took, t.Trace, captured, e, first != nil, err)
	shown.End(v.account.ops, v.account.why, took)
	if captured != nil {
		changed = captured.Changed
	}
	if err != nil {
		return nil, nil, changed, err
	}
	c.log.Debug("compiled", "graph", captured.Graph.Name, "reason", captured.Graph.Reason, "records", len(captured.Ops),
		"steps", len(v.compiled.Program.Steps), "took", took)
	return c.keep(t.Trace, captured, v, e, first), v, changed, nil
}

// trimmed is the heap's size after the last trim.
var trimmed atomic.Uint64

// trim returns garbage to the system if the heap has grown much since the last time. It runs some time after the last
// compilation, because a collection may take longer than a compilation.
func trim() {
	const much = 4 << 20
	heap := func() uint64 {
		read := []gometrics.Sample{
			{Name: "/memory/classes/heap/objects:bytes"}, // garbage included
			{Name: "/memory/classes/heap/free:bytes"},    // collected, but not returned
		}
		gometrics.Read(read)
		return read[0].Value.Uint64() + read[1].Value.Uint64()
	}
	if before := trimmed.Load(); heap() > before+before/4+much {
		debug.FreeOSMemory()
		trimmed.Store(heap())
	}
}

// keep adds a new variant to the cache, and returns its entry.
func (c *compiler) keep(t *trace.Trace, captured *trace.Captured, v *variant, e, first *entry) *entry {
	if c.device == "cpu" { // another worker compiles the kernels, and reports how many
		c.metrics.KernelsCompiled.Add(uint64(c.programs.newKernels(v.compiled.Program)))
	}
	if e != nil && e.otherSizes(t) {
		c.metrics.SizeMisses.Add(1)
	}
	if e == nil {
		if first != nil {
			c.metrics.HashCollisions.Add(1)
		}
		e = &entry{skeleton: slices.Clone(t.Skeleton), inputs: captured.Inputs, changed: captured.Changed,
			ops: captured.Ops, next: first}
		first = e
	}
	v.bytes = v.measure()
	e.variants = append(e.variants, v)
	c.programs.store(t, first)
	return e
}

// recheck compiles a trace that a variant fits: the two calls must be equal. It does so once for the same parameters in
// a row: the rest of what compiling depends on is in the skeleton and the variant.
func (c *compiler) recheck(t *trace.Trace, v *variant) error {
	if v.checked && slices.Equal(t.Params, v.checkedWith) {
		return nil
	}
	_, fresh, packed, err := c.lower(t, v, nil)
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
	case !bytes.Equal(packed, v.packed):
		return fmt.Errorf("program #%d was found for it, but it compiles to another one", v.account.number)
	case !slices.Equal(got, want), !slices.Equal(fresh.Inputs, v.compiled.Inputs),
		!slices.Equal(fresh.Outputs, v.compiled.Outputs):
		return fmt.Errorf("program #%d was found for it, but is called in another way", v.account.number)
	}
	v.checked, v.checkedWith = true, append(v.checkedWith[:0], t.Params...)
	return nil
}

// maxGuesses is the number of variants in which sizes that are equal are taken to be equal in further calls. A trace
// whose views are equal in other ways in each step then gets a variant that serves all of them. Only the first variant
// relies on numbers: one that changes costs one variant.
const maxGuesses = 4

// build makes the program of a variant, which a dump may show. It returns the result of capture with an error, too.
func (c *compiler) build(t *trace.Trace, e *entry, v *variant, shown *dump.Program,
) (captured *trace.Captured, err error) {
	v.wanted = make([]bool, len(t.Alive))
	for i, a := range t.Alive {
		v.wanted[i] = a != 0
	}
	if e != nil {
		v.wanted = e.union(t)
	}
	v.guesses = e == nil || len(e.variants) < maxGuesses
	v.numbers = e == nil || len(e.variants) == 0
	if c.settings.Check >= 2 {
		v.first = slices.Clone(t.Params)
	}
	captured, v.compiled, v.packed, err = c.lower(t, v, shown)
	return captured, err
}

// lower takes a trace through capture, passes and codegen, and shows the stages in shown unless it is nil. The sizes
// first seen are those with which the variant was made: what the variant requires depends on them. packed is the
// program as the worker gets it.
func (c *compiler) lower(t *trace.Trace, v *variant, shown *dump.Program,
) (captured *trace.Captured, compiled *codegen.Compiled, packed []byte, err error) {
	var guess []uint64
	if v.guesses {
		guess = t.Params
		if v.first != nil {
			guess = v.first
		}
	}
	captured, err = c.frontend.Build(t, v.wanted, guess, v.numbers)
	if err != nil {
		return nil, nil, nil, err
	}
	for i := range captured.Graph.Syms {
		if sym := &captured.Graph.Syms[i]; v.first != nil {
			sym.First = int64(v.first[sym.Slot])
		}
	}
	g, err := passes.Run(captured.Graph, c.settings.passes(shown))
	if err != nil {
		return captured, nil, nil, err
	}
	if c.shares(v.kernels) {
		v.weight = cost.WeightOf(g)
	}
	if c.settings.Check >= 3 {
		g = compare.Graph(captured.Graph, g)
		err = ir.Verify(g)
	}
	if err == nil {
		compiled, err = codegen.Compile(g, options(captured, v.kernels, c.device))
	}
	if err == nil {
		packed, err = pack(compiled.Program)
	}
	if err != nil {
		shown.Failed(err)
		return captured, nil, nil, err
	}
	shown.Plan(g, compiled)
	return captured, compiled, packed, nil
}

// pack returns a program as the worker gets it. A program that the worker would refuse is an error of the trace; at the
// worker it would end the session.
func pack(p *program.Program) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	packed := program.Pack(p.Words())
	if n := len(packed); n > program.MaxBytes {
		return nil, fmt.Errorf("the program has %d bytes, at most %d are allowed", n, program.MaxBytes)
	}
	return packed, nil
}
