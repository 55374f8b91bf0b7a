// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package compile finds or makes the programs of a session's traces, and says why each was made.
package compile

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

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compare"
	"github.com/mycelya/mycelya/runtime/dump"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/runtime/settings"
	"github.com/mycelya/mycelya/trace"
)

// Frontend turns traces into graphs, and their origins into places. Its methods may be called at the same time.
type Frontend interface {
	// Build makes a graph. Its outputs are the changed storages that are set in wanted. Views of one storage that have
	// equal sizes in guess, parameters of t's skeleton, are equal in all calls that the graph serves. If numbers is set,
	// the graph says which numbers guess has.
	Build(t *trace.Trace, wanted []bool, guess []uint64, numbers bool) (*trace.Captured, error)
	report.Names
	// Compare finds the first record in which a trace differs from another; nil if there is none.
	Compare(here, there *trace.Trace) (*trace.Difference, error)
	// Maker returns the op of a trace that made or wrote a storage last.
	Maker(t *trace.Trace, local int) string
}

// Compiler finds or makes the programs of a session's traces. Except for explain and history, only the sender uses it.
type Compiler struct {
	index    int // of the device
	Settings *settings.Settings
	Frontend Frontend
	metrics  *report.Metrics
	log      *slog.Logger
	programs *programs
	history  history

	// Facts about the worker.
	Device string // "cpu", "cuda:0"
	torch  string // its version of PyTorch
	near   bool   // the worker runs on the client's host

	eager atomic.Int32 // how often eager() was entered and not left

	trim *time.Timer // runs trim when nothing was compiled for a while
}

const trimAfter = time.Second

// New makes a compiler for the session of a device index.
func New(index int, settings *settings.Settings, frontend Frontend, m *report.Metrics, log *slog.Logger) *Compiler {
	return &Compiler{index: index, Settings: settings, Frontend: frontend, metrics: m, log: log,
		programs: newPrograms(cacheBytes), trim: time.AfterFunc(math.MaxInt64, trim)}
}

// Close ends what runs in the background.
func (c *Compiler) Close() { c.trim.Stop() }

// Worker sets the worker that the programs are for.
func (c *Compiler) Worker(h *proto.Hello) {
	c.Device, c.torch, c.near = h.Device, h.Torch, h.Blocks > 0 || h.Host != "" && h.Host == transport.Host()
}

// Kernels reports whether the worker computes groups with kernels. A program in eager() computes each op with PyTorch's
// operator.
func (c *Compiler) Kernels() bool {
	return !c.Settings.Eager && c.eager.Load() == 0 && !c.Settings.NoKernels
}

// SetEager notes that eager() was entered or left. Any goroutine may call it.
func (c *Compiler) SetEager(on bool) {
	if on {
		c.eager.Add(1)
		return
	}
	for n := c.eager.Load(); n > 0 && !c.eager.CompareAndSwap(n, n-1); n = c.eager.Load() {
	}
}

// shares reports whether client and worker share the processor of one host, and the worker runs kernels on it.
func (c *Compiler) shares(kernels bool) bool { return c.near && c.Device == "cpu" && kernels }

// Find returns the entry of a trace's skeleton, a variant that fits the trace, and the first entry under its key. Each
// is nil if there is none.
func (c *Compiler) Find(t *trace.Trace) (e *Entry, v *Variant, first *Entry) {
	if c.Settings.Fresh {
		return nil, nil, nil
	}
	if e, first = c.programs.find(t); e != nil {
		v = e.fits(t, c.Kernels())
	}
	return e, v, first
}

// Hit notes that a variant fits a trace.
func (c *Compiler) Hit(t *trace.Trace, v *Variant) error {
	c.metrics.ProgramHits.Add(1)
	c.showCut(t, v.Account.Number, false)
	if c.Settings.Check >= 2 {
		return c.recheck(t, v)
	}
	return nil
}

// Called counts a call of a variant.
func (c *Compiler) Called(v *Variant) {
	v.Account.calls.Add(1)
	c.history.calls.Add(1)
}

// Compile makes a program for a trace that no variant fits: of a new skeleton (e is nil), or of a known one with more
// outputs. changed marks the storages that the trace makes or writes. After an error it is set only if capture has
// succeeded.
func (c *Compiler) Compile(t *trace.Trace, by *report.Charge, e, first *Entry,
) (_ *Entry, _ *Variant, changed []bool, err error) {
	began := time.Now()
	c.trim.Stop() // it would count what this compilation is using
	v := &Variant{Key: c.programs.newKey(t), kernels: c.Kernels(),
		Account: &Account{Number: c.history.upcoming(), reason: t.Reason}}
	c.showCut(t, v.Account.Number, true)
	shown := c.show(t, v)
	captured, err := c.build(t, e, v, shown)
	took := time.Since(began)
	c.metrics.Compiled(took, by)
	c.trim.Reset(trimAfter)
	if err == nil {
		a := v.Account
		a.of, a.Names, a.origins = v, captured.Ops, slices.Clone(t.Origins)
		a.Skipped, a.Computing, a.FirstSkipped = skipped(captured, v.Compiled)
		if params, err := v.Compiled.Params(t.Params); err == nil {
			a.memory = c.Peak(v.Compiled, params, a.Names, a.origins)
		}
	}
	c.note(v, took, t, captured, e, first != nil, err)
	shown.End(v.Account.ops, v.Account.why, took)
	if captured != nil {
		changed = captured.Changed
	}
	if err != nil {
		return nil, nil, changed, err
	}
	c.log.Debug("compiled", "graph", captured.Graph.Name, "reason", captured.Graph.Reason, "records", len(captured.Ops),
		"steps", len(v.Compiled.Program.Steps), "took", took)
	return c.keep(t, captured, v, e, first), v, changed, nil
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
func (c *Compiler) keep(t *trace.Trace, captured *trace.Captured, v *Variant, e, first *Entry) *Entry {
	if c.Device == "cpu" { // another worker compiles the kernels, and reports how many
		c.metrics.KernelsCompiled.Add(uint64(c.programs.newKernels(v.Compiled.Program)))
	}
	if e != nil && e.otherSizes(t) {
		c.metrics.SizeMisses.Add(1)
	}
	if e == nil {
		if first != nil {
			c.metrics.HashCollisions.Add(1)
		}
		e = &Entry{skeleton: slices.Clone(t.Skeleton), Inputs: captured.Inputs, Changed: captured.Changed,
			Ops: captured.Ops, next: first}
		first = e
	}
	v.bytes = v.measure()
	e.variants = append(e.variants, v)
	c.programs.store(t, first)
	return e
}

// recheck compiles a trace that a variant fits: the two calls must be equal. It does so once for the same parameters in
// a row: the rest of what compiling depends on is in the skeleton and the variant.
func (c *Compiler) recheck(t *trace.Trace, v *Variant) error {
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
	got, err := v.Compiled.Params(t.Params)
	switch {
	case err != nil:
		return err
	case !bytes.Equal(packed, v.Packed):
		return fmt.Errorf("program #%d was found for it, but it compiles to another one", v.Account.Number)
	case !slices.Equal(got, want), !slices.Equal(fresh.Inputs, v.Compiled.Inputs),
		!slices.Equal(fresh.Outputs, v.Compiled.Outputs):
		return fmt.Errorf("program #%d was found for it, but is called in another way", v.Account.Number)
	}
	v.checked, v.checkedWith = true, append(v.checkedWith[:0], t.Params...)
	return nil
}

// maxGuesses is the number of variants in which sizes that are equal are taken to be equal in further calls. A trace
// whose views are equal in other ways in each step then gets a variant that serves all of them. Only the first variant
// relies on numbers: one that changes costs one variant.
const maxGuesses = 4

// build makes the program of a variant, which a dump may show. It returns the result of capture with an error, too.
func (c *Compiler) build(t *trace.Trace, e *Entry, v *Variant, shown *dump.Program,
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
	if c.Settings.Check >= 2 {
		v.first = slices.Clone(t.Params)
	}
	captured, v.Compiled, v.Packed, err = c.lower(t, v, shown)
	return captured, err
}

// lower takes a trace through capture, passes and codegen, and shows the stages in shown unless it is nil. The sizes
// first seen are those with which the variant was made: what the variant requires depends on them. packed is the
// program as the worker gets it.
func (c *Compiler) lower(t *trace.Trace, v *Variant, shown *dump.Program,
) (captured *trace.Captured, compiled *codegen.Compiled, packed []byte, err error) {
	var guess []uint64
	if v.guesses {
		guess = t.Params
		if v.first != nil {
			guess = v.first
		}
	}
	captured, err = c.Frontend.Build(t, v.wanted, guess, v.numbers)
	if err != nil {
		return nil, nil, nil, err
	}
	for i := range captured.Graph.Syms {
		if sym := &captured.Graph.Syms[i]; v.first != nil {
			sym.First = int64(v.first[sym.Slot])
		}
	}
	g, err := passes.Run(captured.Graph, c.Settings.Passes(shown))
	if err != nil {
		return captured, nil, nil, err
	}
	if c.shares(v.kernels) {
		v.Weight = cost.WeightOf(g)
	}
	if c.Settings.Check >= 3 {
		g = compare.Graph(captured.Graph, g)
		err = ir.Verify(g)
	}
	if err == nil {
		compiled, err = codegen.Compile(g, options(captured, v.kernels, c.Device))
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

// skipped tells which operators of a trace compute something, and which of these the program leaves out. first is the
// record of the first one of those, -1 if there is none.
func skipped(captured *trace.Captured, compiled *codegen.Compiled) (count, of, first int) {
	const (
		passive = iota
		computes
		computed
	)
	records := make([]uint8, len(captured.Ops))
	for i := range captured.Graph.Nodes {
		n := &captured.Graph.Nodes[i]
		if kind := ir.Info(n.Op).Kind; n.Record >= 0 && kind != catalogue.KindLeaf && kind != catalogue.KindMemory {
			records[n.Record] = computes
		}
	}
	for i := range compiled.Program.Steps {
		if r := compiled.Program.Record(i); r >= 0 && records[r] == computes {
			records[r] = computed
		}
	}
	first = -1
	for r, state := range records {
		if state != passive {
			of++
		}
		if state == computes {
			count++
			if first < 0 {
				first = r
			}
		}
	}
	return count, of, first
}

// options are codegen's options for a captured trace and a device. Kernels draw dropout masks in the order of
// PyTorch's CPU generator; CUDA's generator draws in another order and from another number of steps.
func options(c *trace.Captured, kernels bool, device string) codegen.Options {
	scratch := make([]bool, len(c.Changed))
	for i := range scratch {
		scratch[i] = c.Changed[i] && c.Inputs[i]
	}
	return codegen.Options{Scratch: scratch, Kernels: kernels, Undrawn: device != "cpu", Copies: device == "cpu"}
}
