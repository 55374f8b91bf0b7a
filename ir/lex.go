// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"strconv"
	"strings"
)

// This is the lexical half of the parser. Its functions read the remaining text of one line, p.text[p.pos:].

func isWordByte(c byte) bool {
	return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9')
}

func (p *parser) space() {
	for p.pos < len(p.text) && (p.text[p.pos] == ' ' || p.text[p.pos] == '\t') {
		p.pos++
	}
}

func (p *parser) atEnd() bool {
	p.space()
	return p.pos == len(p.text)
}

// end fails unless the line's statement is complete.
func (p *parser) end() {
	if !p.atEnd() {
		p.expected("the end of the line")
	}
}

// peek is the next byte after spaces, 0 at the end.
func (p *parser) peek() byte {
	if p.atEnd() {
		return 0
	}
	return p.text[p.pos]
}

// accept1 takes the byte c if it comes next, without spaces before it.
func (p *parser) accept1(c byte) bool {
	if p.pos == len(p.text) || p.text[p.pos] != c {
		return false
	}
	p.pos++
	return true
}

// accept takes s if it comes next. A word must end where s ends.
func (p *parser) accept(s string) bool {
	p.space()
	rest, ok := strings.CutPrefix(p.text[p.pos:], s)
	if !ok || (isWordByte(s[len(s)-1]) && rest != "" && isWordByte(rest[0])) {
		return false
	}
	p.pos += len(s)
	return true
}

func (p *parser) token(s string) {
	if !p.accept(s) {
		p.expected(s)
	}
}

// take takes the longest run of bytes that f allows.
func (p *parser) take(f func(byte) bool) string {
	start := p.pos
	for p.pos < len(p.text) && f(p.text[p.pos]) {
		p.pos++
	}
	return p.text[start:p.pos]
}

// peekWord is the word that comes next after spaces, "" if none does.
func (p *parser) peekWord() string {
	p.space()
	start := p.pos
	w := p.take(isWordByte)
	p.pos = start
	return w
}

// word takes a word that does not begin with a digit.
func (p *parser) word(what string) string {
	w := p.peekWord()
	if !isIdent(w) {
		p.expected(what)
	}
	p.pos += len(w)
	return w
}

func (p *parser) keyword(w string) {
	if p.peekWord() != w {
		p.expected(w)
	}
	p.pos += len(w)
}

// plain reads a word of any bytes but spaces, quotes and braces, or a quoted string.
func (p *parser) plain(what string) string {
	if p.peek() == '"' {
		return p.str()
	}
	s := p.take(func(c byte) bool { return c > ' ' && c != '{' && c != '}' && c != '"' })
	if s == "" {
		p.expected(what)
	}
	return s
}

// str reads a quoted string.
func (p *parser) str() string {
	prefix, err := strconv.QuotedPrefix(p.text[p.pos:])
	if err != nil {
		p.expected("a quoted string")
	}
	s, err := strconv.Unquote(prefix)
	if err != nil {
		p.expected("a quoted string")
	}
	p.pos += len(prefix)
	return s
}

// uint reads digits that come next, without spaces before them.
func (p *parser) uint(what string, bits int) uint64 {
	start := p.pos
	digits := p.take(func(c byte) bool { return c >= '0' && c <= '9' })
	v, err := strconv.ParseUint(digits, 10, bits)
	if err != nil {
		p.pos = start
		if digits == "" {
			p.expected(what)
		}
		p.fail(start, "expected %s of at most %d bits, found %s", what, bits, digits)
	}
	return v
}

// int reads an integer with an optional sign.
func (p *parser) int(what string) int64 {
	p.space()
	start := p.pos
	s := p.take(func(c byte) bool { return c == '-' || (c >= '0' && c <= '9') })
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		p.pos = start
		p.expected(what)
	}
	return v
}

// slot reads a slot's number.
func (p *parser) slot() uint32 { return uint32(p.uint("a slot's number", 32)) }
