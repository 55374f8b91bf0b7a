// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/passes/repro"
	"github.com/mycelya/mycelya/program"
)

// Of identifies a program.
type Of struct {
	Device, Number int // as explain() numbers them
	Place, Reason  string
	Key            []byte
	Torch          string   // the worker's version
	Params         []uint64 // of the trace; only read during the compilation
}

// Program shows the stages of one program in the compiler; it is the Observer of its passes. A nil Program shows
// nothing. One goroutine uses it: the passes call Begin, After and Crash, then comes Plan or Failed, then End.
type Program struct {
	d      *Dumper
	of     Of
	event  compileEvent
	shown  bool   // its graphs are shown
	dir    string // "" on stderr
	made   bool   // dir exists, with files of this run only
	repro  repro.Repro
	last   string // text of the last graph
	stages []stage
	same   *ir.Lineage
	rules  strings.Builder
	apart  strings.Builder // which nodes are not computed together, and why
	plan   string
	groups string            // the groups that kernels compute
	source map[string]string // CUDA text by file
	data   string            // numbers
	ok     bool              // there is a plan
	err    string            // why there is no plan
}

// stage is a graph as it is shown.
type stage struct {
	number int
	name   string
	lines  []line
	names  []int // of the graph's values in the lineage
	nodes  int
	hidden bool // it is as the one before
	rules  []passes.Firing
}

// Program begins a program; nil if it is not shown.
func (d *Dumper) Program(of Of) *Program {
	if d == nil || !strings.Contains(of.Place, d.spec.Only) {
		return nil
	}
	p := &Program{d: d, of: of, event: compileEvent{Event: "compile", Device: of.Device, Program: of.Number,
		Place: of.Place, Reason: of.Reason, Key: fmt.Sprintf("%x", of.Key)}}
	p.repro = repro.Repro{Program: of.Place + " " + of.Reason, Mycelya: d.about.Mycelya, Torch: of.Torch,
		Words: d.about.Passes, Check: d.about.Check}
	d.mu.Lock()
	defer d.mu.Unlock()
	if p.shown = d.spec.Max == 0 || d.shown < d.spec.Max; p.shown {
		d.shown++
	}
	if p.shown && d.spec.To != "-" {
		p.event.Folder = fmt.Sprintf("%03d-%s-%.8s", of.Number, fileName(of.Place), p.event.Key)
		if of.Device != 0 {
			p.event.Folder = fmt.Sprintf("%d.%s", of.Device, p.event.Folder)
		}
		p.dir = filepath.Join(d.spec.To, p.event.Folder)
	}
	return p
}

// Begin shows the graph before the first pass.
func (p *Program) Begin(g *ir.Graph) {
	p.repro.Capture = p.stage("capture", g, nil)
}

// After shows the graph after a pass.
func (p *Program) After(pass string, changed bool, fired []passes.Firing, g *ir.Graph, took time.Duration) {
	for _, f := range fired {
		fmt.Fprintf(&p.rules, "%02d-%-10s %-16s %s\n", len(p.stages), pass, f.Rule, place(f.Origin))
	}
	p.repro.Passes = append(p.repro.Passes, pass)
	p.repro.Out = p.stage(pass, g, fired)
	e := passEvent{"pass", p.of.Device, p.of.Number, pass, changed, len(g.Nodes), map[string]int{}, took.Seconds()}
	for _, f := range fired {
		e.Rules[f.Rule]++
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.event(e)
}

// Refused notes a rewrite that a pass has refused.
func (p *Program) Refused(_ string, all []passes.Refusal) {
	for _, r := range all {
		fmt.Fprintf(&p.apart, "%s\n%s\n\n", place(r.Origin), r)
	}
}

// place is an origin as a text.
func place(o ir.Origin) string {
	if o.File == "" {
		return "?"
	}
	return fmt.Sprintf("%s:%d", o.File, o.Line)
}

// stage shows a graph, unless it equals the one before, and returns its text.
func (p *Program) stage(name string, g *ir.Graph, fired []passes.Firing) string {
	if !p.shown {
		return ""
	}
	text := g.String()
	changed := text != p.last || len(p.stages) == 0
	p.last = text
	s := stage{number: len(p.stages), name: name, nodes: len(g.Nodes), rules: fired, hidden: !changed && !p.d.spec.All}
	if p.dir != "" && !s.hidden {
		s.lines, s.names, p.same = split(text), g.Names(), g.Lineage()
	}
	p.stages = append(p.stages, s)
	switch {
	case s.hidden:
	case p.dir != "":
		p.file(fmt.Sprintf("%02d-%s.ir", s.number, fileName(name)), text)
	case p.d.spec.Passes:
		p.print("after "+name, text)
	}
	return text
}

// Crash ends a program in which a pass has crashed; g is the graph that the pass was given.
func (p *Program) Crash(pass string, g *ir.Graph, err error) {
	text := printed(g)
	if p.repro.Capture == "" {
		p.repro.Capture = text
	}
	p.repro.Passes = append(p.repro.Passes, pass)
	p.repro.Crash = err.Error()
	if p.dir != "" {
		p.file("crash.ir", text)
	}
	p.Failed(fmt.Errorf("pass %s: %w", pass, err))
}

// printed is the text of a graph that may be invalid.
func printed(g *ir.Graph) (text string) {
	defer func() {
		if why := recover(); why != nil {
			text = fmt.Sprintf("# the graph can't be printed: %v\n", why)
		}
	}()
	return g.String()
}

// addresses match the parts of a panic's stack that differ in each run.
var addresses = regexp.MustCompile(`goroutine \d+|0x[0-9a-f]+\??`)

// Failed ends a program that could not be compiled.
func (p *Program) Failed(err error) {
	if p == nil {
		return
	}
	p.err = addresses.ReplaceAllString(err.Error(), "…")
	switch {
	case p.dir != "":
		p.file("error.txt", p.err+"\n")
	case p.shown:
		p.print("failed: "+strings.ReplaceAll(p.err, "\n", "\n# "), p.last)
	}
}

// Plan shows the program that was made from the last graph.
func (p *Program) Plan(g *ir.Graph, c *codegen.Compiled) {
	if p == nil {
		return
	}
	e := &p.event
	e.Nodes, e.Steps = len(g.Nodes), len(c.Program.Steps)
	e.Buffers, e.Params = int(c.Program.Buffers), int(c.Program.Params)
	e.Inputs, e.Outputs = len(c.Inputs), len(c.Outputs)
	p.plan, p.ok = c.Text(), true
	params, err := c.FirstSeen(g)
	if err == nil {
		p.plan += c.MemoryText(params)
	}
	if p.shown {
		planned := 0
		for _, s := range c.Program.Steps {
			if _, ok := s.(*program.Kernel); ok {
				planned++
			}
		}
		p.groups = kernels(g, planned) + code(c)
		if err == nil && p.dir != "" {
			p.source = source(c, params)
		}
		if p.d.spec.Data {
			p.data = numbers(g, p.of.Params)
		}
	}
	if len(p.repro.Passes) == 0 {
		p.repro.Out = printed(g) // as a check has shuffled it
	}
	if p.dir != "" || !p.shown {
		return
	}
	if !p.d.spec.Passes {
		p.print("", p.last)
	}
	if p.d.spec.Rules && p.rules.Len() > 0 {
		p.print("rules", p.rules.String())
	}
	if p.d.spec.Rules && p.apart.Len() > 0 {
		p.print("not fused", p.apart.String())
	}
	if p.d.spec.Kernels && p.groups != "" {
		p.print("kernels", p.groups)
	}
	if p.d.spec.Plan {
		p.print("plan", p.plan)
	}
	if p.data != "" {
		p.print("data", p.data)
	}
}

// End writes what is known at the end: the number of ops, and why no known program fitted, or why this one failed.
func (p *Program) End(ops int, why string, took time.Duration) {
	if p == nil {
		return
	}
	e := &p.event
	e.Ops, e.Why, e.Seconds = ops, why, took.Seconds()
	said := why
	if !p.ok {
		e.Why, e.Error = "", repro.FirstLine(addresses.ReplaceAllString(why, "…"))
		said = "could not be compiled: " + e.Error
	}
	if len(p.stages) == 0 && p.repro.Crash == "" {
		e.Folder, p.dir = "", ""
	}
	p.folder()
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.why(fmt.Sprintf("  #%d: %s\n", p.of.Number, strings.ReplaceAll(said, "\n", "\n  ")))
	p.d.event(e)
	if p.ok {
		said = strings.Join([]string{count(e.Ops, "op"), count(e.Nodes, "node"), count(e.Steps, "step"),
			count(e.Buffers, "buffer"),
			count(e.Params, "parameter"), count(e.Inputs, "input"), count(e.Outputs, "output")}, ", ")
	}
	if p.d.spec.To != "-" {
		p.d.write("summary.txt", fmt.Sprintf("%03d%s  %-24s %-7s key %s  %s\n", e.Program, of(e.Device), e.Place,
			e.Reason, e.Key, said))
	}
}

// folder writes the files that need all stages.
func (p *Program) folder() {
	if p.dir == "" {
		return
	}
	if p.rules.Len() > 0 {
		p.file("rules.txt", p.rules.String())
	}
	if p.apart.Len() > 0 {
		p.file("unfused.txt", p.apart.String())
	}
	for name, text := range map[string]string{"kernels.txt": p.groups, "plan.txt": p.plan, "data.txt": p.data} {
		if text != "" {
			p.file(name, text)
		}
	}
	for name, text := range p.source {
		p.file(name, text)
	}
	if p.repro.Out == "" {
		p.repro.Out = p.repro.Capture
	}
	p.file("repro.txtar", string(p.repro.Format()))
	p.file("graph.html", p.html())
}

func (p *Program) print(what, text string) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if what != "" {
		what = ", " + what
	}
	p.d.print(fmt.Sprintf("# program %d%s, key %s%s\n%s", p.of.Number, of(p.of.Device), p.event.Key, what, text))
}

func (p *Program) file(name, text string) {
	var err error
	if !p.made {
		err = makeEmpty(p.dir)
		p.made = true
	}
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644)
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.warn(err)
}
