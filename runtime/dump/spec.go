// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package dump shows the compilation of each trace: why it was cut, why no known program fitted, its graph at the start
// and after each pass that changed it, and the plan of its program, on stderr or as files and pages in a folder. It
// only reads finished results of the compiler, and changes nothing. It never shows a host's name or a tensor's values,
// except the numbers that the word data selects. A folder that can't be written causes a warning, and no program fails
// because of it.
package dump

import (
	"fmt"
	"strconv"
	"strings"
)

// Spec is the parsed value of MYCELYA_DUMP: a destination, then words.
type Spec struct {
	To      string // "-" is stderr; otherwise a folder
	Why     bool   // on stderr: each cut, and why each program had to be compiled
	Passes  bool   // on stderr: the graph after each pass that changed it, not only the last
	All     bool   // passes that changed nothing too
	Rules   bool   // on stderr: the rules that passes applied
	Plan    bool   // on stderr: the plan of the program
	Kernels bool   // on stderr: the groups that kernels compute
	Data    bool   // the numbers that programs are called with
	Wire    bool   // each frame
	Times   bool   // when the worker has computed each call and each of its steps
	Only    string // part of the names of the programs to show
	Max     int    // how many graphs to show; 0: all
}

var words = []struct{ word, means string }{
	{"why", "on stderr, each cut with its line and cause, and why each program had to be compiled, too"},
	{"passes", "on stderr, the graph after each pass that changed it, not only after the last"},
	{"all", "passes that changed nothing too"},
	{"rules", "on stderr, the rules that passes have applied, to which lines, and why nodes are not fused, too"},
	{"plan", "on stderr, the steps, parameters and memory of each program too"},
	{"kernels", "on stderr, what kernels compute together, too"},
	{"data", "the numbers that each program is first called with, in a folder as data.txt"},
	{"wire", "each frame that is sent or received, in a folder as wire.txt"},
	{"times", "in a folder, the worker's time for each program, op and line: tables and a timeline in index.html"},
	{"only=TEXT", "only cuts and programs with TEXT in their place, such as train.py:41"},
	{"max=N", "graphs of only the first N programs"},
}

// Parse parses the value of MYCELYA_DUMP; nil if it is empty. An unknown word is an error that lists the words.
func Parse(value string) (*Spec, error) {
	if value == "" {
		return nil, nil
	}
	parts := strings.Split(value, ",")
	s := &Spec{To: parts[0]}
	for _, w := range parts[1:] {
		key, arg, hasArg := strings.Cut(w, "=")
		bad := false
		switch key {
		case "why":
			s.Why, bad = true, hasArg
		case "passes":
			s.Passes, bad = true, hasArg
		case "all":
			s.All, s.Passes, bad = true, true, hasArg
		case "rules":
			s.Rules, bad = true, hasArg
		case "plan":
			s.Plan, bad = true, hasArg
		case "kernels":
			s.Kernels, bad = true, hasArg
		case "data":
			s.Data, bad = true, hasArg
		case "wire":
			s.Wire, bad = true, hasArg
		case "times":
			s.Times, bad = true, hasArg
		case "only":
			s.Only, bad = arg, arg == ""
		case "max":
			n, err := strconv.Atoi(arg)
			s.Max, bad = n, err != nil || n <= 0
		default:
			bad = true
		}
		if bad {
			return nil, usage(fmt.Sprintf("MYCELYA_DUMP has no word %q", w))
		}
	}
	if s.To == "" {
		return nil, usage("MYCELYA_DUMP begins with - for stderr, or with a folder")
	}
	for _, w := range words { // MYCELYA_DUMP=plan would quietly make a folder of that name
		if s.To == w.word {
			return nil, usage(fmt.Sprintf("MYCELYA_DUMP begins with - for stderr, or with a folder, not with the word "+
				"%q (./%s is a folder)", s.To, s.To))
		}
	}
	return s, nil
}

func usage(what string) error {
	var b strings.Builder
	b.WriteString(what + ". It is - or a folder, then any of these words, with commas between:")
	for _, w := range words {
		fmt.Fprintf(&b, "\n  %-10s %s", w.word, w.means)
	}
	return fmt.Errorf("%s", b.String())
}
