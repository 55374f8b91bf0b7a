// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package passes makes a graph better and keeps its meaning. A pass is a function from graph to graph. The driver alone
// times, verifies, switches off and reports. The package never reads the environment, never writes files, and never
// depends on the values of sizes and numbers.
package passes

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"runtime/debug"
	"time"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
)

// Observer sees what the driver does. Graphs are shared: an observer only reads them, and only during the call. They
// have one lineage.
type Observer interface {
	// Begin gets the graph before the first pass.
	Begin(g *ir.Graph)
	// After is called after each pass that ran, with the result and the rules that fired, in order.
	After(pass string, changed bool, fired []Firing, g *ir.Graph, d time.Duration)
	// Crash is called when a pass panics or breaks the graph it was given.
	Crash(pass string, g *ir.Graph, err error)
}

// Explainer is an observer that also gets the groups that a pass decided against.
type Explainer interface {
	// Refused is called before After, if there are refusals.
	Refused(pass string, all []Refusal)
}

// Options of a run. The zero value runs everything and checks nothing.
type Options struct {
	Check    int      // 1: verify around each pass; 2 and more: also round-trip the text and shuffle the nodes
	Spec     *Spec    // which passes run; nil: all
	Only     []string // these passes in this order in place of the pipeline's
	Observer Observer // may be nil

	unguarded string // the rule whose guard is taken to be true, set by tests only
}

// Error names the pass that failed. Graph is the graph that the pass was given.
type Error struct {
	Pass  string
	Graph *ir.Graph
	Err   error
}

func (e *Error) Error() string { return fmt.Sprintf("passes: %s: %v", e.Pass, e.Err) }
func (e *Error) Unwrap() error { return e.Err }

// Run runs the passes on a graph and returns the last result. The graph given is left as it is.
func Run(g *ir.Graph, opt Options) (*ir.Graph, error) {
	selected, err := selectPasses(opt)
	if err != nil {
		return nil, err
	}
	fail := func(pass string, given *ir.Graph, err error) (*ir.Graph, error) {
		if opt.Observer != nil {
			opt.Observer.Crash(pass, given, err)
		}
		return nil, &Error{pass, given, err}
	}
	checks := checker{level: opt.Check}
	if err := checks.accept(g); err != nil {
		return fail("capture", g, err)
	}
	if opt.Observer != nil || opt.Check > 0 { // without them, no name is printed
		g, err = checks.guarded(Pass{Name: "capture", run: without(prepare)}, nil, g)
		if err != nil {
			return fail("capture", g, err)
		}
	}
	if opt.Observer != nil {
		g = g.Followed()
		opt.Observer.Begin(g)
	}
	if opt.Check >= 2 && len(g.Groups) == 0 { // a graph from a file may have groups, whose nodes stay together
		g = shuffle(g)
	}
	for _, p := range selected {
		start := time.Now()
		r := newRules(p, opt)
		explainer, _ := opt.Observer.(Explainer)
		r.explain = explainer != nil
		out, err := checks.guarded(p, r, g)
		took := time.Since(start)
		if err == nil {
			err = checks.accept(out)
		}
		if err != nil {
			return fail(p.Name, g, err)
		}
		if out != g && len(p.Rules) == 0 && !opt.Spec.allows(p.Name, "", firstOrigin(g)) {
			out = g
		}
		if len(r.refused) > 0 {
			explainer.Refused(p.Name, r.refused)
		}
		if opt.Observer != nil {
			opt.Observer.After(p.Name, out != g, r.fired, out, took)
		}
		g = out
	}
	return g, nil
}

// firstOrigin is the place of the first node that has one.
func firstOrigin(g *ir.Graph) ir.Origin {
	for i := range g.Nodes {
		if at := g.Nodes[i].Origin; at.File != "" {
			return at
		}
	}
	return ir.Origin{}
}

func selectPasses(opt Options) ([]Pass, error) {
	all := pipeline()
	if err := checkPipeline(all, orders()); err != nil {
		return nil, err
	}
	if opt.Only != nil {
		all = nil
		for _, name := range opt.Only {
			p, ok := find(name)
			if !ok {
				return nil, fmt.Errorf("passes: no pass %q; the passes are %v", name, names())
			}
			all = append(all, p)
		}
	}
	return opt.Spec.selects(all), nil
}

// prepare makes the graph that the passes work on. Its symbols have names, so that each dump calls a size the same.
func prepare(g *ir.Graph) *ir.Graph {
	g = g.Clone()
	g.NameSymbols()
	return g
}

// Verify returns what is wrong with a graph or with its groups, nil if nothing is.
func Verify(g *ir.Graph) error {
	if err := ir.Verify(g); err != nil {
		return err
	}
	return fusion.Verify(g)
}

// checker checks the graphs of one run. Printing takes most of its time, so it keeps the text of the last graph.
type checker struct {
	level int
	graph *ir.Graph
	text  string // of graph, at level 2
}

// current makes g the graph that the next pass is given.
func (c *checker) current(g *ir.Graph) {
	if c.level >= 2 && c.graph != g {
		c.graph, c.text = g, g.String()
	}
}

// guarded turns a panic of a pass into an error. At level 2 it also finds a pass that changes the graph it was given.
// After an error it returns that graph.
func (c *checker) guarded(p Pass, r *rules, g *ir.Graph) (out *ir.Graph, err error) {
	defer func() {
		if why := recover(); why != nil {
			out, err = g, fmt.Errorf("panic: %v\n%s", why, debug.Stack())
		}
	}()
	c.current(g)
	out = p.run(g, r)
	if c.level >= 2 && g.String() != c.text {
		return g, fmt.Errorf("it changed the graph it was given")
	}
	return out, nil
}

// accept verifies a graph and, at level 2, that its text parses back into the same text. A graph that a pass has
// returned unchanged needs no second parse.
func (c *checker) accept(g *ir.Graph) error {
	if c.level < 1 {
		return nil
	}
	if err := Verify(g); err != nil || c.level < 2 || c.graph == g {
		return err
	}
	c.current(g)
	parsed, err := ir.Parse(c.text)
	if err != nil {
		return fmt.Errorf("the text does not parse: %w\n%s", err, c.text)
	}
	if err := Verify(parsed); err != nil {
		return fmt.Errorf("the parsed text does not verify: %w\n%s", err, c.text)
	}
	if again := parsed.String(); again != c.text {
		return fmt.Errorf("the text changes when it is parsed:\n%s\nbecomes\n%s", c.text, again)
	}
	return nil
}

// shuffle puts the nodes in another order that respects operands and flags. Nodes with flags keep their order, and no
// node crosses an effect, which may change the default dtype. The order is random, but equal for all graphs with these
// ops: the program of a trace must not depend on sizes and numbers.
func shuffle(g *ir.Graph) *ir.Graph {
	h := fnv.New64a()
	for i := range g.Nodes {
		h.Write([]byte{byte(g.Nodes[i].Op), byte(g.Nodes[i].Name), byte(g.Nodes[i].Name >> 8)})
	}
	random := rand.New(rand.NewPCG(h.Sum64(), 1))

	waits := make([]int, len(g.Nodes)) // nodes that must come first
	next := make([][]ir.NodeID, len(g.Nodes))
	after := func(first, then ir.NodeID) {
		next[first] = append(next[first], then)
		waits[then]++
	}
	last, effect := -1, -1
	for i := range g.Nodes {
		id := ir.NodeID(i)
		for _, v := range g.Operands(id) {
			after(g.Def[v], id)
		}
		if effect >= 0 {
			after(ir.NodeID(effect), id)
		}
		if g.Nodes[i].Flags&ir.FlagEffect != 0 {
			for j := effect + 1; j < i; j++ {
				after(ir.NodeID(j), id)
			}
			effect = i
		}
		if g.Nodes[i].Flags != 0 {
			if last >= 0 {
				after(ir.NodeID(last), id)
			}
			last = i
		}
	}
	var ready, order []ir.NodeID
	for i, n := range waits {
		if n == 0 {
			ready = append(ready, ir.NodeID(i))
		}
	}
	for len(ready) > 0 {
		i := random.IntN(len(ready))
		id := ready[i]
		ready[i] = ready[len(ready)-1]
		ready = ready[:len(ready)-1]
		order = append(order, id)
		for _, then := range next[id] {
			if waits[then]--; waits[then] == 0 {
				ready = append(ready, then)
			}
		}
	}
	return g.Rewrite(order, nil)
}
