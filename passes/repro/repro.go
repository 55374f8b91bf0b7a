// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package repro holds the run of the passes on one program in one file, and repeats it. The file has the captured
// graph, the passes that ran, and their result: a graph or a crash. It never holds values of tensors, host names or
// times. The package never runs anything but passes.
//
// The file is a txtar archive. A | is a choice, [ ] at most once:
//
//	file     = header capture ( out | crash )
//	header   = lines "key: words", each key once; all other lines are prose
//	capture  = "-- capture.ir --" graph            input of the first pass; the text form of ir/grammar.txt
//	out      = "-- out.ir --" graph                result of the last pass
//	crash    = "-- crash.txt --" line              the first line of the error of the last pass
//
//	program: train.py:41 read                      where and why the trace was cut
//	passes: views cse simplify dce                 the passes that ran, in order; with a crash, the last one crashed
//	[mycelya: 0.1.0]  [torch: 2.15.0]              versions of the client and of its worker
//	[words: -NegOfNeg,until=dce]                   MYCELYA_PASSES
//	[check: 2]                                     MYCELYA_CHECK
package repro

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
)

// Repro is the content of the file. Graphs are texts, so that the file can hold a graph that no longer parses.
type Repro struct {
	Program string   // "train.py:41 read"
	Mycelya string   // version
	Torch   string   // version, "" if unknown
	Passes  []string // that ran
	Words   string   // MYCELYA_PASSES
	Check   int      // MYCELYA_CHECK
	Capture string   // the graph before the passes
	Out     string   // the graph after the passes, if none crashed
	Crash   string   // the first line of the error of the last pass, if it crashed
}

// Error is a mistake in a file. Line and Col (in bytes) count from 1.
type Error struct {
	File      string
	Line, Col int
	Msg       string
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Col, e.Msg) }

const (
	captureFile = "capture.ir"
	outFile     = "out.ir"
	crashFile   = "crash.txt"
)

// FirstPass stands for the pass if the captured graph is invalid, so that no pass could run.
const FirstPass = "capture"

const prose = `The passes that ran on one program, and their result: a graph or a crash. To repeat the run:

    go run ./passes/cmd/mycopt -repro repro.txtar

`

// Format is the file.
func (r *Repro) Format() []byte {
	var b strings.Builder
	b.WriteString(prose)
	for _, h := range []struct{ key, words string }{
		{"program", r.Program}, {"mycelya", r.Mycelya}, {"torch", r.Torch},
		{"passes", strings.Join(r.Passes, " ")}, {"words", r.Words},
	} {
		if h.words != "" || h.key == "passes" {
			b.WriteString(strings.TrimSpace(h.key+": "+h.words) + "\n")
		}
	}
	if r.Check != 0 {
		fmt.Fprintf(&b, "check: %d\n", r.Check)
	}
	a := &txtar.Archive{Comment: []byte(b.String()), Files: []txtar.File{{Name: captureFile, Data: []byte(r.Capture)}}}
	if r.Crash != "" {
		a.Files = append(a.Files, txtar.File{Name: crashFile, Data: []byte(FirstLine(r.Crash) + "\n")})
	} else {
		a.Files = append(a.Files, txtar.File{Name: outFile, Data: []byte(r.Out)})
	}
	return txtar.Format(a)
}

// FirstLine is the first line of an error. It is the same each time, while later lines hold addresses.
func FirstLine(text string) string {
	line, _, _ := strings.Cut(text, "\n")
	return line
}

// parser reads a file; it fails by panic with an *Error.
type parser struct {
	name  string
	lines []string // of the whole file
	r     *Repro
	at    map[string]int // line of each header and file
}

func (p *parser) fail(line, col int, format string, args ...any) {
	panic(&Error{p.name, line, col, fmt.Sprintf(format, args...)})
}

// Parse reads a file. An error has the form name:line:column, with the text that was expected there.
func Parse(name string, data []byte) (r *Repro, err error) {
	defer func() {
		if why := recover(); why != nil {
			e, ok := why.(*Error)
			if !ok {
				panic(why)
			}
			r, err = nil, e
		}
	}()
	p := &parser{name: name, lines: strings.Split(string(data), "\n"), r: &Repro{}, at: map[string]int{}}
	archive := txtar.Parse(data)
	p.header(strings.Split(string(archive.Comment), "\n"))
	p.files(archive)
	p.check()
	return p.r, nil
}

// header reads lines "key: words". Prose with a colon has a space before the colon, and a key has none.
func (p *parser) header(lines []string) {
	for i, line := range lines {
		key, words, ok := strings.Cut(line, ":")
		if !ok || key == "" || strings.ContainsAny(key, " \t") {
			continue
		}
		if p.at[key+":"] != 0 {
			p.fail(i+1, 1, "expected %s: once, found it again", key)
		}
		p.at[key+":"] = i + 1
		words = strings.TrimSpace(words)
		switch key {
		case "program":
			p.r.Program = words
		case "mycelya":
			p.r.Mycelya = words
		case "torch":
			p.r.Torch = words
		case "passes":
			p.r.Passes = strings.Fields(words)
		case "words":
			p.r.Words = words
		case "check":
			n, err := strconv.Atoi(words)
			if err != nil || n < 0 {
				p.fail(i+1, len(key)+3, "expected a level like 2, found %q", words)
			}
			p.r.Check = n
		default:
			p.fail(i+1, 1, "expected program, mycelya, torch, passes, words or check, found %q", key)
		}
	}
}

func (p *parser) files(archive *txtar.Archive) {
	line := 1 + strings.Count(string(archive.Comment), "\n") // of the first marker
	for _, f := range archive.Files {
		if p.at[f.Name] != 0 {
			p.fail(line, 1, "expected %s once, found it again", f.Name)
		}
		p.at[f.Name] = line
		switch f.Name {
		case captureFile:
			p.r.Capture = string(f.Data)
		case outFile:
			p.r.Out = string(f.Data)
		case crashFile:
			if p.r.Crash = strings.TrimSpace(string(f.Data)); p.r.Crash == "" {
				p.fail(line+1, 1, "expected the first line of an error, found nothing")
			}
		default:
			p.fail(line, 1, "expected %s, %s or %s, found %q", captureFile, outFile, crashFile, f.Name)
		}
		line += 1 + strings.Count(string(f.Data), "\n")
	}
	end := len(p.lines)
	switch {
	case p.at["passes:"] == 0:
		p.fail(1, 1, "expected a line with the passes that ran, as in \"passes: cse dce\", found none")
	case p.at[captureFile] == 0:
		p.fail(end, 1, "expected -- %s --, found the end of the file", captureFile)
	case p.at[outFile] == 0 && p.at[crashFile] == 0:
		p.fail(end, 1, "expected -- %s -- or -- %s --, found the end of the file", outFile, crashFile)
	case p.at[outFile] != 0 && p.at[crashFile] != 0:
		p.fail(max(p.at[outFile], p.at[crashFile]), 1, "expected %s or %s, found both", outFile, crashFile)
	}
}

// check reads the graphs and the names of passes, so that a mistake in them is not reported as a crash of a pass.
func (p *parser) check() {
	line := p.at["passes:"]
	for i, name := range p.r.Passes {
		known := slices.ContainsFunc(passes.Pipeline(), func(q passes.Pass) bool { return q.Name == name })
		if known || name == FirstPass && i == len(p.r.Passes)-1 && p.r.Crash != "" {
			continue
		}
		var names []string
		for _, q := range passes.Pipeline() {
			names = append(names, q.Name)
		}
		col := 1 + strings.Index(p.lines[line-1], name)
		p.fail(line, col, "expected a pass (%s), found %q", strings.Join(names, ", "), name)
	}
	if _, err := passes.ParseSpec(p.r.Words); err != nil {
		p.fail(p.at["words:"], len("words: ")+1, "expected words of MYCELYA_PASSES: %v", err)
	}
	g := p.graph(captureFile, p.r.Capture)
	if p.r.Crash != "" {
		return // an invalid graph may be the cause of the crash
	}
	if err := passes.Verify(g); err != nil {
		at := &ir.PositionError{Line: 1, Col: 1}
		errors.As(err, &at)
		p.fail(p.at[captureFile]+at.Line, at.Col, "expected a valid graph: %v", err)
	}
	p.graph(outFile, p.r.Out)
}

func (p *parser) graph(name, text string) *ir.Graph {
	g, err := ir.Parse(text)
	if e, ok := err.(*ir.SyntaxError); ok {
		p.fail(p.at[name]+e.Line, e.Col, "%s", e.Msg)
	} else if err != nil {
		p.fail(p.at[name]+1, 1, "%v", err)
	}
	return g
}
