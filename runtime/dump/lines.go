// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package dump

import (
	"strconv"
	"strings"
)

// line is one line of a graph's text, with the places where it names values. It may be a node, the first or last line,
// dims, or an output.
type line struct {
	text    string
	comment int // where the comment begins; the length if there is none
	spans   []span
}

// span is text[lo:hi]: "%3: f32[n]", where a value is defined, or "%3", where it is used. text[lo:number] is "%3".
type span struct {
	lo, number, hi int
	value          int
	binder         bool
}

// split parses the lines of a text.
func split(text string) []line {
	var out []line
	for s := range strings.SplitSeq(strings.TrimSuffix(text, "\n"), "\n") {
		out = append(out, parseLine(s))
	}
	return out
}

func parseLine(s string) line {
	l := line{text: s, comment: len(s)}
	binders := true // until something else than "%3: f32[n], " comes
	quoted := false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\' && quoted:
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '#':
			l.comment = i
			return l
		case c == '%':
			sp, ok := parseValue(s, i, binders)
			if !ok {
				continue
			}
			l.spans = append(l.spans, sp)
			i = sp.hi - 1
			binders = sp.binder
		case c != ' ' && c != ',':
			binders = false
		}
	}
	return l
}

// parseValue reads "%3", or "%3: f32[n]" if a binder may be here.
func parseValue(s string, lo int, binder bool) (span, bool) {
	end := lo + 1
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	value, err := strconv.Atoi(s[lo+1 : end])
	if err != nil {
		return span{}, false
	}
	sp := span{lo: lo, number: end, hi: end, value: value}
	if binder && strings.HasPrefix(s[end:], ": ") {
		sp.binder = true
		sp.hi = end + 2
		for sp.hi < len(s) && s[sp.hi] != ' ' && !strings.HasPrefix(s[sp.hi:], ", ") {
			sp.hi++
		}
	}
	return sp, true
}
