// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package settings reads the MYCELYA_ variables of the environment.
package settings

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/dump"
)

// Settings are the MYCELYA_ variables of the environment. They are read once, when the first device is opened.
type Settings struct {
	Dump        *dump.Dumper
	Check       int
	Fresh       bool          // each trace is compiled again: nothing is replayed
	NoKernels   bool          // no program has kernels
	Eager       bool          // no program has kernels, so that each op has the bits of PyTorch's operator
	Silence     time.Duration // how long a worker may be silent while an answer is due; 0: for ever
	NoGuesses   bool          // no read is sent before a caller asks for it
	KeepWeights bool          // uploads from files of the hub's cache are sent as others are
	Hub         string        // HF_ENDPOINT: where workers fetch weights
	Spec        *passes.Spec
	words       string // the text that Spec was parsed from
	Log         *slog.Logger
}

// defaultSilence is how long a worker may be silent while an answer is due. No call of a training takes so long; a
// connection that has ended is noticed much earlier.
const defaultSilence = time.Hour

// variables lists all variables that begin with MYCELYA_; each has a sentence in the documentation.
var variables = []struct {
	name string
	set  func(s *Settings, value string) error
}{
	{"MYCELYA_LOG", setLog}, // first: the others may log
	{"MYCELYA_CHECK", setCheck},
	{"MYCELYA_MACHINE", func(*Settings, string) error { return nil }},   // read by Python, which chooses the machine
	{"MYCELYA_EAGER", setEager},                                         // read by Python, which waits after each op
	{"MYCELYA_AHEAD", setAhead},                                         // read by Python, which patches libraries
	{"MYCELYA_CHOOSE", setChoose},                                       // read by Python, as the one before
	{"MYCELYA_LIBRARIES", func(*Settings, string) error { return nil }}, // read by workers
	{"MYCELYA_PEERS", func(*Settings, string) error { return nil }},     // read by workers
	{"MYCELYA_PASSES", setPasses},
	{"MYCELYA_KERNELS", setKernels},
	{"MYCELYA_REPLAY", setReplay},
	{"MYCELYA_TIMEOUT", setTimeout},
	{"MYCELYA_FETCH", setFetch},
	{"MYCELYA_GUESS", setGuess},
	{"MYCELYA_LOCAL", setLocal}, // read by csrc/device, which computes values
	{"MYCELYA_DUMP", setDump},   // last: a dump shows the others
}

// ParseSettings reads the environment, in the form of os.Environ. An unknown variable is a warning with the nearest
// known name; an invalid value is an error that lists the valid ones.
func ParseSettings(environment []string) (*Settings, error) {
	values := map[string]string{}
	for _, kv := range environment {
		if name, value, _ := strings.Cut(kv, "="); strings.HasPrefix(name, "MYCELYA_") || name == hubVariable {
			values[name] = value
		}
	}
	s := &Settings{Log: logger(slog.LevelWarn), Silence: defaultSilence, Hub: values[hubVariable]}
	delete(values, hubVariable)
	for _, v := range variables {
		value := values[v.name]
		delete(values, v.name)
		if value == "" {
			continue
		}
		if err := v.set(s, value); err != nil {
			return nil, err
		}
	}
	for name := range values {
		s.Log.Warn("unknown environment variable "+name, "meant", Nearest(name))
	}
	return s, nil
}

func logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})).With("logger", "mycelya")
}

// levels are the words of MYCELYA_LOG; mycelya_torch/_env.py has the same ones.
var levels = map[string]slog.Level{
	"debug": slog.LevelDebug, "verbose": slog.LevelDebug, "trace": slog.LevelDebug, "info": slog.LevelInfo,
	"warn": slog.LevelWarn, "warning": slog.LevelWarn, "error": slog.LevelError, "critical": slog.LevelError,
}

// setLog sets the level. An unknown word changes nothing: what is only about messages must not stop a program.
func setLog(s *Settings, value string) error {
	level, known := levels[strings.ToLower(strings.TrimSpace(value))]
	if !known {
		s.Log.Warn("unknown level", "MYCELYA_LOG", value, "levels", "debug (or verbose), info, warn (if not set), error")
		return nil
	}
	s.Log = logger(level)
	return nil
}

func setCheck(s *Settings, value string) error {
	n, err := strconv.Atoi(value)
	if err != nil || n < 0 || n > 3 {
		return fmt.Errorf("MYCELYA_CHECK is %q; it is 0 (nothing, if not set), 1 (verify each graph after each pass), 2 "+
			"(also read its text back, and shuffle what should not matter) or 3 (also run each program as recorded and "+
			"as optimised, and compare)", value)
	}
	s.Check = n
	return nil
}

// setEager also takes CUDA_LAUNCH_BLOCKING's words, 1 and 0; mycelya_torch/_env.py has the same ones.
func setEager(s *Settings, value string) error {
	s.Eager = value == "on" || value == "1"
	if !s.Eager && value != "off" && value != "0" {
		return fmt.Errorf("MYCELYA_EAGER is %q; it is on or 1 (each op is sent and awaited at its line) or off or 0 "+
			"(if not set)", value)
	}
	return nil
}

func setAhead(_ *Settings, value string) error {
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_AHEAD is %q; it is on (if not set: generate() and Trainer of transformers, and the "+
			"progress bar of Lightning, do not wait for the device in each step) or off (they do)", value)
	}
	return nil
}

func setChoose(_ *Settings, value string) error {
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_CHOOSE is %q; it is on (if not set: accelerate, transformers and Lightning choose "+
			"mycelya where they would choose the CPU by themselves) or off (they choose without it)", value)
	}
	return nil
}

func setDump(s *Settings, value string) error {
	spec, err := dump.Parse(value)
	s.Dump = dump.New(spec, dump.About{Mycelya: transport.Build, Passes: s.words, Check: s.Check}, os.Stderr, s.Log)
	return err
}

func setPasses(s *Settings, value string) (err error) {
	if s.Spec, err = passes.ParseSpec(value); err != nil {
		return fmt.Errorf("MYCELYA_PASSES is %q: %w", value, err)
	}
	s.words = value
	s.Spec.Last = func(number int64, change string) {
		s.Log.Warn("the last change of the bisection in MYCELYA_PASSES", "number", number, "change", change)
	}
	return nil
}

func setKernels(s *Settings, value string) error {
	s.NoKernels = value == "off"
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_KERNELS is %q; it is on (if not set: groups of operators are computed by kernels) "+
			"or off (by PyTorch's operators, one after another)", value)
	}
	return nil
}

func setReplay(s *Settings, value string) error {
	s.Fresh = value == "off"
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_REPLAY is %q; it is on (if not set) or off (each trace is compiled again, for tests)",
			value)
	}
	return nil
}

// hubVariable is read by libraries for the hub, too.
const hubVariable = "HF_ENDPOINT"

func setFetch(s *Settings, value string) error {
	s.KeepWeights = value == "off"
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_FETCH is %q; it is on (if not set: a worker behind a slow network fetches weights that "+
			"this process has from the hub's cache) or off (they are sent as other tensors are)", value)
	}
	return nil
}

func setLocal(_ *Settings, value string) error {
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_LOCAL is %q; it is on (if not set: a read of what depends only on small uploads and "+
			"constants is computed in this process) or off (the worker is asked)", value)
	}
	return nil
}

func setGuess(s *Settings, value string) error {
	s.NoGuesses = value == "off"
	if value != "on" && value != "off" {
		return fmt.Errorf("MYCELYA_GUESS is %q; it is on (if not set: a read takes along the small values that were read "+
			"with it before, so they cost no more round trips) or off", value)
	}
	return nil
}

func setTimeout(s *Settings, value string) error {
	seconds, err := strconv.ParseFloat(value, 64)
	if err != nil || !(seconds >= 0 && seconds <= 1e9) || seconds > 0 && seconds < 1 {
		return fmt.Errorf("MYCELYA_TIMEOUT is %q; it is how many seconds, from 1 on, a worker may be silent while an answer "+
			"is due, before it counts as lost: %.0f if not set, 0 for ever", value, defaultSilence.Seconds())
	}
	s.Silence = time.Duration(seconds * float64(time.Second))
	return nil
}

// Passes are the options for one graph, which watch is shown.
func (s *Settings) Passes(watch *dump.Program) passes.Options {
	o := passes.Options{Check: s.Check, Spec: s.Spec}
	if watch != nil {
		o.Observer = watch
	}
	return o
}

// Nearest is the variable whose name takes the fewest edits from name.
func Nearest(name string) string {
	best, least := "", len(name)
	for _, v := range variables {
		if d := distance(name, v.name); d < least {
			best, least = v.name, d
		}
	}
	return best
}

// distance is the Levenshtein distance: how many characters to insert, delete or replace.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
