// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Mycopt reads graphs in the text form, runs passes on them and prints the result. It tries a pass and replays a crash
// without a device.
//
//	mycopt [-passes=cse,dce] [-without=NegOfNeg] [-verify] [-print] [-rules] [-explain] [-time] [file.ir ...]
//	mycopt -repro=repro.txtar [-print] [-rules] [-time]
//
// Without files it reads standard input. With -repro it runs the passes of a dumped program again (passes/repro), and
// reports whether they give the same graph or the same crash. Mistakes are reported as file:line:column.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/passes/repro"
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run returns the exit status: 0, 1 for a bad graph or a failing pass, 2 for wrong arguments. With -repro, it returns 0
// for the result of the file, 1 for another result, and 2 if the file cannot be replayed.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("mycopt", flag.ContinueOnError)
	flags.SetOutput(stderr)
	list := flags.String("passes", "", "run these `names` in this order; empty: none; all: the whole pipeline")
	verify := flags.Bool("verify", false, "verify after every pass too; a graph that is read is always verified")
	stages := flags.Bool("print", false, "print the graph before the passes and after each pass that changed it")
	rules := flags.Bool("rules", false, "print the rules that were applied, and to which lines, on standard error")
	without := flags.String("without", "", "leave out these `names` of passes and rules")
	again := flags.String("repro", "", "replay this `file` of a dump, with the passes that it names")
	explain := flags.Bool("explain", false, "print which nodes are not fused, and why, on standard error")
	times := flags.Bool("time", false, "print the time of each pass on standard error")
	flags.Usage = func() {
		fmt.Fprintln(stderr, "usage: mycopt [flags] [file.ir ...]")
		fmt.Fprintln(stderr, "       mycopt -repro repro.txtar [-print] [-rules] [-time]")
		flags.PrintDefaults()
		fmt.Fprintln(stderr, "passes:")
		for _, p := range passes.Pipeline() {
			fmt.Fprintf(stderr, "  %-8s %s\n", p.Name, p.Doc)
			for i, r := range p.Rules {
				if i == 0 || r.Name != p.Rules[i-1].Name {
					fmt.Fprintf(stderr, "           %-15s %s\n", r.Name, r.Doc)
				}
			}
		}
	}
	if err := flags.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	w := &watcher{stdout: stdout, stderr: stderr, stages: *stages, rules: *rules, explain: *explain, times: *times}
	if *again != "" {
		if *list != "" || *without != "" || *verify || flags.NArg() > 0 {
			fmt.Fprintln(stderr, "mycopt: -repro takes the graph, the passes and the checks from its file; "+
				"leave out -passes, -without, -verify and other files")
			return 2
		}
		return w.replay(*again)
	}
	opt := passes.Options{Only: []string{}}
	switch {
	case *list == "all":
		opt.Only = nil
	case *list != "":
		opt.Only = strings.Split(*list, ",")
	}
	if *verify {
		opt.Check = 1
	}
	if *without != "" {
		spec, err := passes.ParseSpec("-" + strings.ReplaceAll(*without, ",", ",-"))
		if err != nil {
			fmt.Fprintf(stderr, "mycopt: %v\n", err)
			return 2
		}
		opt.Spec = spec
	}
	opt.Observer = w

	files := flags.Args()
	if len(files) == 0 {
		files = []string{"-"}
	}
	for _, name := range files {
		if err := w.file(name, stdin, opt); err != nil {
			fmt.Fprintf(stderr, "mycopt: %v\n", err)
			return 1
		}
	}
	return 0
}

// watcher prints what the driver reports.
type watcher struct {
	stdout, stderr                io.Writer
	stages, rules, explain, times bool
}

func (w *watcher) file(name string, stdin io.Reader, opt passes.Options) error {
	var data []byte
	var err error
	if name == "-" {
		name = "stdin"
		data, err = io.ReadAll(stdin)
	} else {
		data, err = os.ReadFile(name)
	}
	if err != nil {
		return err
	}
	graphs, err := ir.ParseAll(string(data))
	if err == nil && len(graphs) == 0 {
		err = &ir.SyntaxError{Line: 1, Col: 1, Msg: "expected a graph, found none"}
	}
	if err != nil {
		return fmt.Errorf("%s:%w", name, err)
	}
	for _, g := range graphs {
		if err := passes.Verify(g); err != nil {
			at := &ir.PositionError{Line: 1, Col: 1}
			errors.As(err, &at)
			return fmt.Errorf("%s:%d:%d: graph %s: %w", name, at.Line, at.Col, g.Name, err)
		}
		out, err := passes.Run(g, opt)
		if err != nil {
			return fmt.Errorf("%s: graph %s: %w", name, g.Name, err)
		}
		if !w.stages {
			fmt.Fprint(w.stdout, out)
		}
	}
	return nil
}

// replay returns the exit status of -repro.
func (w *watcher) replay(name string) int {
	data, err := os.ReadFile(name)
	if err != nil {
		fmt.Fprintf(w.stderr, "mycopt: %v\n", err)
		return 2
	}
	r, err := repro.Parse(name, data)
	if err != nil {
		fmt.Fprintf(w.stderr, "mycopt: %v\n", err)
		return 2
	}
	text, same, err := r.Replay(w)
	if err != nil {
		fmt.Fprintf(w.stderr, "mycopt: %s: %v\n", name, err)
		return 2
	}
	fmt.Fprintf(w.stdout, "%s: %s\n", name, text)
	if !same {
		return 1
	}
	return 0
}

func (w *watcher) Begin(g *ir.Graph) {
	if w.stages {
		fmt.Fprintf(w.stdout, "# as read\n%s", g)
	}
}

func (w *watcher) After(pass string, changed bool, fired []passes.Firing, g *ir.Graph, d time.Duration) {
	for _, f := range fired {
		if w.rules {
			fmt.Fprintf(w.stderr, "%-8s %-15s %s:%d\n", pass, f.Rule, f.Origin.File, f.Origin.Line)
		}
	}
	if w.stages && changed {
		fmt.Fprintf(w.stdout, "# after %s\n%s", pass, g)
	}
	if w.times {
		fmt.Fprintf(w.stderr, "%-8s %v\n", pass, d)
	}
}

func (w *watcher) Refused(_ string, all []passes.Refusal) {
	for _, r := range all {
		if w.explain {
			fmt.Fprintln(w.stderr, r)
		}
	}
}

func (w *watcher) Crash(string, *ir.Graph, error) {}
