// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package passes

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/mycelya/mycelya/ir"
)

// Spec selects the passes that run. One Spec serves a whole process, because a bisection counts over all graphs. It may
// be used by several goroutines.
type Spec struct {
	// Last is called with the number and the text of the last change that a bisection lets happen; it may be nil.
	Last func(number int64, change string)

	none  bool
	off   map[string]bool
	until string
	// With a bisection, the first limit changes of a pass or a rule happen, or of all.
	bisect string
	limit  int64
	count  atomic.Int64
}

const specHelp = "off, -NAME, until=NAME, bisect=NAME:COUNT"

// ParseSpec reads the words of MYCELYA_PASSES, separated by commas:
//
//	off               no pass runs
//	-NAME             this pass does not run, or this rule of a pass is not applied
//	until=NAME        the passes after this one do not run
//	bisect=NAME:COUNT the first COUNT changes of this pass, or of this rule, happen in the process, and no later one. The
//	                  name all counts the changes of all passes. A change is a rule applied to a node, or a graph
//	                  that a pass without rules has changed.
//
// An empty text switches nothing off.
func ParseSpec(text string) (*Spec, error) {
	s := &Spec{off: map[string]bool{}}
	for word := range strings.SplitSeq(text, ",") {
		word = strings.TrimSpace(word)
		name := ""
		if n, ok := strings.CutPrefix(word, "-"); ok {
			s.off[n], name = true, n
		} else if n, ok := strings.CutPrefix(word, "until="); ok {
			s.until, name = n, n
		} else if n, ok := strings.CutPrefix(word, "bisect="); ok {
			n, count, _ := strings.Cut(n, ":")
			limit, err := strconv.ParseInt(count, 10, 64)
			if err != nil || limit < 0 {
				return nil, fmt.Errorf("%q needs a count, as in bisect=%s:10", word, n)
			}
			s.bisect, s.limit, name = n, limit, n
		} else if word == "off" {
			s.none = true
		} else if word != "" {
			return nil, fmt.Errorf("unknown word %q; the words are %s, with the passes %s", word, specHelp,
				strings.Join(names(), ", "))
		}
		_, ok := find(name)
		ok = ok || s.until != name && slices.Contains(ruleNames(), name) || s.bisect == name && name == "all"
		if name != "" && !ok || name == "" && strings.ContainsAny(word, "-=") {
			return nil, fmt.Errorf("no pass %q; the passes are %s; -NAME also leaves out a rule, as -%s",
				name, strings.Join(names(), ", "), likeliest(name))
		}
	}
	return s, nil
}

// likeliest is the rule whose name shares the most leading letters with name, in either case.
func likeliest(name string) string {
	common := func(rule string) (n int) {
		for n < min(len(rule), len(name)) && strings.EqualFold(rule[n:n+1], name[n:n+1]) {
			n++
		}
		return n
	}
	return slices.MaxFunc(ruleNames(), func(a, b string) int { return common(a) - common(b) })
}

// selects lists the passes that run on the next graph.
func (s *Spec) selects(all []Pass) []Pass {
	if s == nil {
		return all
	}
	if s.none {
		return nil
	}
	var out []Pass
	for _, p := range all {
		if !s.off[p.Name] {
			out = append(out, p)
		}
		if p.Name == s.until {
			break
		}
	}
	return out
}

// allows reports whether a change of a pass, by one of its rules or of a whole graph, may happen.
func (s *Spec) allows(pass, rule string, at ir.Origin) bool {
	if s == nil || s.bisect == "" || s.bisect != pass && s.bisect != rule && s.bisect != "all" {
		return true
	}
	number := s.count.Add(1)
	if number == s.limit && s.Last != nil {
		change := "pass " + pass
		if rule != "" {
			change = "rule " + rule + " of " + change
		}
		s.Last(number, fmt.Sprintf("%s at %s:%d", change, at.File, at.Line))
	}
	return number <= s.limit
}

func find(name string) (Pass, bool) {
	for _, p := range pipeline() {
		if p.Name == name {
			return p, true
		}
	}
	return Pass{}, false
}

func names() []string {
	var out []string
	for _, p := range pipeline() {
		out = append(out, p.Name)
	}
	return out
}

// ruleNames lists the rules of all passes, each name once.
func ruleNames() []string {
	var out []string
	for _, p := range pipeline() {
		for _, r := range p.Rules {
			if !slices.Contains(out, r.Name) {
				out = append(out, r.Name)
			}
		}
	}
	return out
}
