// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package repro

import (
	"errors"
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/passes"
)

// Replay runs the passes again. The text describes the result in a sentence, and same reports whether the file has the
// same result. The observer sees only the passes that the file names. It may be nil.
func (r *Repro) Replay(observer passes.Observer) (text string, same bool, err error) {
	g, err := ir.Parse(r.Capture)
	if err != nil {
		return "", false, err
	}
	spec, err := passes.ParseSpec(r.Words)
	if err != nil {
		return "", false, err
	}
	opt := passes.Options{Check: r.Check, Spec: spec, Only: append([]string{}, r.Passes...), Observer: observer}
	if n := len(opt.Only); n > 0 && opt.Only[n-1] == FirstPass {
		opt.Only = opt.Only[:n-1]
	}
	after := "without a pass"
	if len(opt.Only) > 0 {
		after = "after " + strings.Join(opt.Only, ", ")
	}
	out, err := passes.Run(g, opt)
	var failed *passes.Error
	switch {
	case errors.As(err, &failed):
		return r.crashed(failed.Pass, FirstLine(failed.Err.Error()))
	case err != nil:
		return "", false, err
	case r.Crash != "":
		return fmt.Sprintf("no crash any more %s; it was %q in %s", after, r.Crash, r.last()), false, nil
	}
	if d := firstDifference(r.Out, out.String()); d != "" {
		return fmt.Sprintf("another graph %s: %s", after, d), false, nil
	}
	return "the same graph " + after, true, nil
}

// last is the pass that crashed when the file was written.
func (r *Repro) last() string {
	if len(r.Passes) == 0 {
		return FirstPass
	}
	return r.Passes[len(r.Passes)-1]
}

// crashed compares a crash with the crash in the file.
func (r *Repro) crashed(pass, why string) (string, bool, error) {
	switch {
	case r.Crash == "":
		return fmt.Sprintf("%s crashes, and did not: %s", pass, why), false, nil
	case pass != r.last() || why != r.Crash:
		return fmt.Sprintf("another crash, in %s: %s\n  it was in %s: %s", pass, why, r.last(), r.Crash), false, nil
	}
	return fmt.Sprintf("the same crash, in %s: %s", pass, why), true, nil
}

// firstDifference names the first line in which two texts differ, "" if none does.
func firstDifference(was, is string) string {
	if was == is {
		return ""
	}
	a, b := strings.Split(was, "\n"), strings.Split(is, "\n")
	i := 0
	for i < min(len(a), len(b)) && a[i] == b[i] {
		i++
	}
	line := func(lines []string) string {
		if i < len(lines) {
			return lines[i]
		}
		return ""
	}
	return fmt.Sprintf("line %d of %s is the first that differs\n  was: %s\n  is:  %s", i+1, outFile, line(a), line(b))
}
