// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compile

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/trace"
)

// Account is the part of explain about one program.
type Account struct {
	Number int // from 1, in the order of compilation
	Place  string
	reason uint32
	ops    int
	failed bool
	took   time.Duration
	why    string // why no existing program fitted: whole sentences
	calls  atomic.Uint64

	memory  string   // that a call takes: a sentence
	of      *Variant // nil: it could not be compiled
	Names   []string // of its records' ops
	origins []uint32 // of the trace that it was compiled for

	// How many of the operators compute something, how many of them the program leaves out, and the record of the first
	// one of these.
	Computing, Skipped, FirstSkipped int
}

// history is what a session keeps for explain. Its size is bounded.
type history struct {
	mu       sync.Mutex
	compiled int
	took     time.Duration
	calls    atomic.Uint64
	accounts []*Account // the last ones
	known    []known    // the last skeletons
}

// known is a skeleton that later skeletons are compared with.
type known struct {
	number int // of its program
	ops    []string
	trace  *trace.Trace
}

const (
	maxAccounts   = 32
	maxKnown      = 32
	maxKnownWords = 4 << 20 // 32 MiB
)

// upcoming is the number of the next program.
func (h *history) upcoming() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.compiled + 1
}

// note adds a program. If ops is not nil, later traces are compared with its trace, too.
func (h *history) note(a *Account, t *trace.Trace, ops []string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.compiled++
	h.took += a.took
	h.accounts = append(h.accounts, a)
	if len(h.accounts) > maxAccounts {
		h.accounts = slices.Delete(h.accounts, 0, 1)
	}
	if ops == nil {
		return
	}
	h.known = append(h.known, known{a.Number, ops, &trace.Trace{Skeleton: slices.Clone(t.Skeleton),
		Params: slices.Clone(t.Params), Bindings: slices.Clone(t.Bindings), Alive: slices.Clone(t.Alive),
		Origins: slices.Clone(t.Origins)}})
	words := 0
	for i := len(h.known) - 1; i >= 0; i-- {
		k := h.known[i].trace
		words += len(k.Skeleton) + len(k.Params) + len(k.Bindings)
		if len(h.known)-i > maxKnown || words > maxKnownWords {
			h.known = slices.Delete(h.known, 0, i+1)
			break
		}
	}
}

// nearest is the known skeleton that shares the most leading and trailing ops with these ops, and among equals the
// most words. It is nil if none shares a tenth of the ops.
func (h *history) nearest(ops []string, skeleton []uint64) *known {
	var best *known
	var most, mostWords int
	for i := range h.known {
		k := &h.known[i]
		n, words := common(ops, k.ops), common(skeleton, k.trace.Skeleton)
		if 10*n > len(ops) && (n > most || n == most && words >= mostWords) {
			best, most, mostWords = k, n, words
		}
	}
	return best
}

// common is the number of leading and trailing elements that two slices share.
func common[T comparable](a, b []T) int {
	n := min(len(a), len(b))
	head := 0
	for head < n && a[head] == b[head] {
		head++
	}
	tail := 0
	for tail < n-head && a[len(a)-1-tail] == b[len(b)-1-tail] {
		tail++
	}
	return head + tail
}

// note records that a trace was compiled, or why it could not be. captured is nil if capture failed.
func (c *Compiler) note(v *Variant, took time.Duration, t *trace.Trace, captured *trace.Captured, e *Entry,
	collision bool, failed error) {
	a := v.Account
	a.took, a.Place = took, c.cutAt(t)
	var ops []string
	if captured != nil {
		a.ops = len(captured.Ops)
	}
	if failed != nil {
		a.why = failed.Error()
	} else {
		a.why = c.whyCompiled(t, captured.Ops, e, v.kernels, collision)
		if e == nil {
			ops = captured.Ops
		}
	}
	a.failed = failed != nil
	c.history.note(a, t, ops)
}

// whyCompiled returns the reason why a trace needed a new program. ops are the ops of its records, e is the entry of
// its skeleton or nil. kernels says whether the program has them. With collision, another skeleton has the same hash.
func (c *Compiler) whyCompiled(t *trace.Trace, ops []string, e *Entry, kernels, collision bool) string {
	switch {
	case c.Settings.Fresh:
		return "MYCELYA_REPLAY is off."
	case e != nil:
		last := e.last(kernels)
		if last == nil && kernels {
			return fmt.Sprintf("The ops are those of #%d, which was compiled without kernels, in eager().",
				e.variants[0].Account.Number)
		}
		if last == nil {
			return fmt.Sprintf("The ops are those of #%d, which has kernels, and eager() has none.",
				e.variants[0].Account.Number)
		}
		if broken := last.Compiled.Broken(t.Params); broken != "" {
			return fmt.Sprintf("The ops are those of #%d, but that program requires %s.",
				last.Account.Number, broken)
		}
		for i, need := range e.needs(t) {
			if need && !last.wanted[i] {
				return fmt.Sprintf("The ops are those of #%d, which does not keep what is still held here: %s.",
					last.Account.Number, c.Frontend.Maker(t, i))
			}
		}
		return fmt.Sprintf("The ops are those of #%d, which keeps other results.", last.Account.Number)
	case collision:
		return "Another program has the same hash by chance."
	case len(c.history.known) == 0:
		return "It is the first one."
	}
	k := c.history.nearest(ops, t.Skeleton)
	if k == nil {
		return "No program before it is like it."
	}
	d, err := c.compare(t, k.trace)
	switch {
	case err != nil:
		return fmt.Sprintf("It could not be compared with #%d: %v.", k.number, err)
	case d == nil:
		return fmt.Sprintf("It is #%d again, which had been forgotten: there are more programs than are kept.", k.number)
	}
	switch d.Record {
	case len(ops):
		return fmt.Sprintf("#%d begins with all of it, and goes on with %s.", k.number, d.There)
	case len(k.ops):
		return fmt.Sprintf("It begins with all of #%d, and goes on with %s.", k.number, d.Here)
	}
	return fmt.Sprintf("Record %d of %d is the first that differs from #%d: %s.\n  here:  %s\n  in #%d: %s",
		d.Record+1, len(ops), k.number, d.What, d.Here, k.number, d.There)
}

// compare is the frontend's Compare. A bug in it must not end the program, since the result is only an explanation.
func (c *Compiler) compare(here, there *trace.Trace) (_ *trace.Difference, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("BUG: %v. Please report this", r)
		}
	}()
	return c.Frontend.Compare(here, there)
}

// text is the text of explain.
func (h *history) text(index int) string {
	h.mu.Lock()
	defer h.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "mycelya:%d has compiled %s in %.1f ms and called them %s.\n", index,
		Count(uint64(h.compiled), "program"), float64(h.took.Microseconds())/1e3, Count(h.calls.Load(), "time"))
	if n := h.compiled - len(h.accounts); n > 0 {
		fmt.Fprintf(&b, "The last %d:\n", len(h.accounts))
	}
	for _, a := range h.accounts {
		fmt.Fprintf(&b, "\n#%d %s: ", a.Number, a.Place)
		if a.failed {
			b.WriteString("it could not be compiled")
		} else {
			fmt.Fprintf(&b, "%s, compiled in %.1f ms, called %s", Count(uint64(a.ops), "op"),
				float64(a.took.Microseconds())/1e3, Count(a.calls.Load(), "time"))
		}
		fmt.Fprintf(&b, "\n  Cut because %s.\n  %s\n", catalogue.CutOf(a.reason).Why, strings.ReplaceAll(a.why, "\n", "\n  "))
		if a.memory != "" {
			fmt.Fprintf(&b, "  %s\n", a.memory)
		}
	}
	return b.String()
}

func Count(n uint64, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// needed is a graph without the nodes that its outputs do not need. A program also keeps draws of random numbers,
// effects, and operators that may fail, for what comes after them.
func needed(g *ir.Graph) *ir.Graph {
	live := make([]bool, len(g.Nodes))
	for _, o := range g.Outputs {
		live[g.Def[o.Value]] = true
	}
	var order []ir.NodeID
	draws := false // a needed node that comes later uses the state of a generator
	for i := len(g.Nodes) - 1; i >= 0; i-- {
		id, random := ir.NodeID(i), g.Nodes[i].Flags&ir.FlagRNG != 0
		if g.Nodes[i].Flags&ir.FlagEffect != 0 {
			switch g.CallName(id) {
			case "mycelya::manual_seed", "mycelya::get_rng_state", "mycelya::set_rng_state":
				random = true
			case "mycelya::set_flag", "mycelya::set_default_dtype":
				live[i] = live[i] || len(order) > 0
			}
		}
		if !live[i] && !(random && draws) {
			continue
		}
		draws = draws || random
		order = append(order, id)
		for _, v := range g.Operands(id) {
			live[g.Def[v]] = true
		}
	}
	slices.Reverse(order)
	out := *g
	out.Versions = nil // what a failing node would leave behind
	return out.Rewrite(order, nil)
}

// Pending is the optimised graph of the content that a storage, by its local number, will have after a trace has run.
func (c *Compiler) Pending(t *trace.Trace, local int) (string, error) {
	wanted := make([]bool, len(t.Bindings))
	wanted[local] = true
	captured, err := c.Frontend.Build(t, wanted, t.Params, false)
	if err != nil {
		return "", err
	}
	g, err := passes.Run(needed(captured.Graph), passes.Options{Spec: c.Settings.Spec})
	if err != nil {
		return "", err
	}
	return g.String(), nil
}

// Explain lists the programs with the reasons why each was compiled.
func (c *Compiler) Explain() string { return c.history.text(c.index) }
