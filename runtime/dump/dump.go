// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
)

// Dumper writes what its Spec asks for. A nil one writes nothing. All methods may be called at the same time.
type Dumper struct {
	spec   Spec
	stderr io.Writer
	log    *slog.Logger

	mu     sync.Mutex
	seen   int // programs shown
	warned bool
}

// New returns the dumper of a spec, nil if that is nil.
func New(s *Spec, stderr io.Writer, log *slog.Logger) *Dumper {
	if s == nil {
		return nil
	}
	return &Dumper{spec: *s, stderr: stderr, log: log}
}

// Program is one program on its way through the compiler. A nil one isn't shown. It is used from one goroutine.
type Program struct {
	d      *Dumper
	number int
	name   string
	key    string
	dir    string
	stages int
	last   string // text of the last graph
	rules  strings.Builder
}

// Program begins a program, nil if it isn't to be shown; key is its key.
func (d *Dumper) Program(name string, key []byte) *Program {
	if d == nil || !strings.Contains(name, d.spec.Only) {
		return nil
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spec.Max > 0 && d.seen >= d.spec.Max {
		return nil
	}
	p := &Program{d: d, number: d.seen, name: name, key: fmt.Sprintf("%x", key)}
	d.seen++
	if d.spec.To != "-" {
		p.dir = filepath.Join(d.spec.To, fmt.Sprintf("%03d-%s-%.8s", p.number, fileName(name), p.key))
	}
	return p
}

// fileName keeps what every file system takes.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		if strings.ContainsRune(`/\<>"|?*`, r) || r < ' ' {
			return '_'
		}
		return r
	}, name)
}

// Stage shows the graph after a stage, "capture" first, then each pass.
func (p *Program) Stage(stage string, g *ir.Graph) {
	if p == nil {
		return
	}
	number := p.stages
	p.stages++
	text := g.String()
	changed := text != p.last
	p.last = text
	if !changed && !p.d.spec.All {
		return
	}
	switch {
	case p.dir != "":
		p.file(fmt.Sprintf("%02d-%s.ir", number, fileName(stage)), text)
	case p.d.spec.Passes:
		p.print("after "+stage, text)
	}
}

// Rule notes that a pass has applied a rule to a node of this origin. It comes before the pass's Stage.
func (p *Program) Rule(pass, rule string, at ir.Origin) {
	if p == nil {
		return
	}
	place := "?"
	if at.File != "" {
		place = fmt.Sprintf("%s:%d", at.File, at.Line)
	}
	fmt.Fprintf(&p.rules, "%02d-%-10s %-16s %s\n", p.stages, pass, rule, place)
}

// Plan ends the program.
func (p *Program) Plan(g *ir.Graph, c *codegen.Compiled) {
	if p == nil {
		return
	}
	plan := c.Text()
	if params, err := c.FirstSeen(g); err == nil {
		plan += c.MemoryText(params)
	}
	if p.dir == "" {
		if !p.d.spec.Passes {
			p.print("", g.String())
		}
		if p.d.spec.Rules && p.rules.Len() > 0 {
			p.print("rules", p.rules.String())
		}
		if p.d.spec.Plan {
			p.print("plan", plan)
		}
		return
	}
	if p.rules.Len() > 0 {
		p.file("rules.txt", p.rules.String())
	}
	p.file("plan.txt", plan)
	line := fmt.Sprintf("%03d  %-24s %-7s key %s  %d nodes, %d steps, %d buffers, %d parameters, %d inputs, %d outputs\n",
		p.number, g.Name, g.Reason, p.key, len(g.Nodes), len(c.Program.Steps), c.Program.Buffers, c.Program.Params, len(c.Inputs), len(c.Outputs))
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	f, err := os.OpenFile(filepath.Join(p.d.spec.To, "summary.txt"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = f.WriteString(line)
		if e := f.Close(); err == nil {
			err = e
		}
	}
	p.d.warn(err)
}

// Failed ends a program that the compiler gave up on.
func (p *Program) Failed(err error) {
	switch {
	case p == nil:
	case p.dir != "":
		p.file("error.txt", err.Error()+"\n")
	default:
		p.print("failed: "+err.Error(), p.last)
	}
}

func (p *Program) print(what, text string) {
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	if what != "" {
		what = ", " + what
	}
	_, err := fmt.Fprintf(p.d.stderr, "# program %d, key %s%s\n%s", p.number, p.key, what, text)
	p.d.warn(err)
}

func (p *Program) file(name, text string) {
	err := os.MkdirAll(p.dir, 0o755)
	if err == nil {
		err = os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o644)
	}
	p.d.mu.Lock()
	defer p.d.mu.Unlock()
	p.d.warn(err)
}

// warn tells of the first failure. The lock is held.
func (d *Dumper) warn(err error) {
	if err != nil && !d.warned {
		d.warned = true
		d.log.Warn("MYCELYA_DUMP can't be written", "error", err)
	}
}
