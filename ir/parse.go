// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// SyntaxError is a mistake in the text form. Line and Col (in bytes) count from 1.
type SyntaxError struct {
	Line, Col int
	Msg       string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("%d:%d: %s", e.Line, e.Col, e.Msg) }

// Parse reads one graph in the text form (grammar.txt). It checks syntax and names; Verify checks the rest.
func Parse(text string) (*Graph, error) {
	graphs, err := ParseAll(text)
	if err != nil {
		return nil, err
	}
	if len(graphs) != 1 {
		return nil, &SyntaxError{1, 1, fmt.Sprintf("expected one graph, found %d", len(graphs))}
	}
	return graphs[0], nil
}

// ParseAll reads any number of graphs, one after the other.
func ParseAll(text string) (graphs []*Graph, err error) {
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*SyntaxError)
			if !ok {
				panic(r)
			}
			graphs, err = nil, e
		}
	}()
	p := &parser{lines: strings.Split(text, "\n"), line: -1}
	for p.nextLine() {
		graphs = append(graphs, p.graph())
	}
	return graphs, nil
}

// parser reads line by line; a statement never spans lines.
type parser struct {
	lines   []string
	line    int    // current line from 0
	text    string // its statement, without the comment
	comment string
	pos     int // in text

	g      *Graph
	syms   map[string]Dim
	values map[uint64]ValueID
}

// here is the place of a position in the line.
func (p *parser) here(pos int) position { return position{p.line + 1, pos + 1} }

// fail ends the parse; ParseAll turns the panic into its error.
func (p *parser) fail(pos int, format string, args ...any) {
	panic(&SyntaxError{p.line + 1, pos + 1, fmt.Sprintf(format, args...)})
}

// expected fails at the current position.
func (p *parser) expected(what string) {
	p.space()
	rest := p.text[p.pos:]
	if i := strings.IndexAny(rest, " \t"); i > 0 {
		rest = rest[:i]
	}
	if rest == "" {
		p.fail(p.pos, "expected %s, found the end of the line", what)
	}
	p.fail(p.pos, "expected %s, found %.40q", what, rest)
}

// nextLine goes to the next line with a statement; false at the end of the text.
func (p *parser) nextLine() bool {
	for p.line++; p.line < len(p.lines); p.line++ {
		p.text, p.comment = cutComment(strings.TrimSuffix(p.lines[p.line], "\r"))
		if strings.TrimSpace(p.text) != "" {
			p.pos = 0
			return true
		}
	}
	p.line, p.text, p.comment, p.pos = len(p.lines)-1, "", "", 0
	return false
}

// cutComment splits a line at the first # outside of a string.
func cutComment(s string) (text, comment string) {
	quoted := false
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '\\' && quoted:
			i++
		case s[i] == '#' && !quoted:
			return s[:i], strings.TrimSpace(s[i+1:])
		}
	}
	return s, ""
}

func (p *parser) graph() *Graph {
	p.g = NewGraph("", "")
	p.g.source = &source{}
	p.syms = map[string]Dim{}
	p.values = map[uint64]ValueID{}
	p.keyword("graph")
	p.g.Name = p.plain("the graph's name")
	p.g.Reason = p.plain("the reason of the cut")
	p.token("{")
	p.end()
	group := uint32(0) // the group of the statement
	for {
		if !p.nextLine() {
			p.expected("}")
		}
		switch word := p.peekWord(); {
		case p.accept("}"):
			p.end()
			if group == 0 {
				return p.g
			}
			group = 0
		case word == "fuse":
			if group != 0 {
				p.expected("}, for a group is in no other")
			}
			group = p.group()
		case word == "require":
			p.keyword("require")
			p.require()
		case word == "dims":
			p.keyword("dims")
			p.dimsLine()
		case word == "output":
			p.keyword("output")
			p.output()
		default:
			p.statement()
			p.g.Nodes[len(p.g.Nodes)-1].Group = group
		}
	}
}

// group reads "fuse rows all {" and returns the group's number.
func (p *parser) group() uint32 {
	p.keyword("fuse")
	var kernels []Template
	for !p.accept("{") {
		p.space()
		pos := p.pos
		name := p.word("a template, or {")
		t := slices.Index(templates[:], name)
		if t <= 0 {
			p.fail(pos, "expected one of %s, found %q", strings.Join(templates[1:], ", "), name)
		}
		kernels = append(kernels, Template(t))
	}
	p.end()
	p.g.Groups = append(p.g.Groups, Group{kernels})
	return uint32(len(p.g.Groups))
}

// require reads "a*b = c*d" or "param 12 = 0.5".
func (p *parser) require() {
	if p.peekWord() == "param" {
		p.keyword("param")
		p.space()
		n := Number{Slot: p.slot()}
		p.token("=")
		p.space()
		pos := p.pos
		if n.Value = p.arg(false); n.Value.Kind != ArgInt && n.Value.Kind != ArgFloat {
			p.fail(pos, "expected a number")
		}
		p.g.Numbers = append(p.g.Numbers, n)
		p.end()
		return
	}
	left := p.product()
	p.token("=")
	p.g.Requires = append(p.g.Requires, Require{left, p.product()})
	p.end()
}

func (p *parser) product() []Dim {
	out := []Dim{p.dim()}
	for p.accept("*") {
		out = append(out, p.dim())
	}
	return out
}

// dimsLine reads "n=64@3 i=784@4,9 k=98@i/8".
func (p *parser) dimsLine() {
	for !p.atEnd() {
		start := p.pos
		name := p.word("a name like n")
		switch _, dup := p.syms[name]; {
		case reserved[name]:
			p.fail(start, "expected a name like n, found %q, which has another meaning", name)
		case dup:
			p.fail(start, "expected a new name, found %q, which is declared already", name)
		}
		p.token("=")
		first := p.int("the first value")
		p.token("@")
		s := Symbol{Name: name, First: first}
		if c := p.peek(); c >= '0' && c <= '9' {
			s.Slot = p.slot()
			for p.accept1(',') {
				s.Also = append(s.Also, p.slot())
			}
		} else {
			s.Quotient = &Quotient{Of: p.product()}
			if p.accept("/") {
				s.Quotient.By = p.product()
			}
		}
		p.syms[name] = SymDim(len(p.g.Syms))
		p.g.Syms = append(p.g.Syms, s)
	}
}

// output reads "%6 -> s12".
func (p *parser) output() {
	p.space()
	p.g.source.outputs = append(p.g.source.outputs, p.here(p.pos))
	v := p.operand()
	p.token("->")
	p.space()
	if !p.accept1('s') {
		p.expected("a slot like s12")
	}
	p.g.Outputs = append(p.g.Outputs, Output{Value: v, Slot: p.slot()})
	p.end()
}

// statement reads one node.
func (p *parser) statement() {
	type binder struct {
		number uint64
		pos    int
	}
	var binders []binder
	var types []Type
	for p.peek() == '%' {
		pos := p.pos
		p.pos++
		number := p.uint("a value's number", 64)
		binders = append(binders, binder{number, pos})
		p.token(":")
		types = append(types, p.typ())
		if p.accept("=") {
			break
		}
		if !p.accept(",") {
			p.expected(", or =")
		}
		if p.peek() != '%' {
			p.expected("a value like %2")
		}
	}
	n := Node{Record: -1, Origin: p.origin()}
	p.space()
	pos := p.pos
	n.Op, n.Name = p.opName()
	switch n.Op {
	case OpInput, OpParam, OpScalar:
		p.space()
		n.Slot = p.slot()
	}
	if n.Op != OpCall && len(types) != 1 {
		p.fail(pos, "%s has one result, found %d", n.Op, len(types))
	}
	source := p.g.source
	source.nodes = append(source.nodes, p.here(pos))
	var args []Arg
	region := n.Op == OpView || n.Op == OpUpdate
	hasOffset := false
	for !p.atEnd() {
		switch {
		case p.accept("!rng"):
			n.Flags |= FlagRNG
		case p.accept("!effect"):
			n.Flags |= FlagEffect
		case p.accept("!dynamic"):
			n.Flags |= FlagDynamic
		case region && p.peekWord() == "offset":
			p.keyword("offset")
			p.token("=")
			n.Offset, hasOffset = p.dim(), true
		default:
			source.args = append(source.args, p.here(p.pos))
			args = append(args, p.arg(true))
		}
	}
	if region && !hasOffset {
		p.expected("offset=")
	}
	id := p.g.Add(n, args, types)
	for i, b := range binders {
		if _, dup := p.values[b.number]; dup {
			p.fail(b.pos, "expected a new value, found %%%d, which is defined already", b.number)
		}
		p.values[b.number] = p.g.Nodes[id].First + ValueID(i)
	}
}

// opName reads "mul", "aten.add.Tensor" or a quoted operator name.
func (p *parser) opName() (Op, uint32) {
	if p.peek() == '"' {
		return OpCall, p.g.Intern(p.str())
	}
	pos := p.pos
	name := p.take(func(c byte) bool { return isWordByte(c) || c == '.' })
	if name == "" {
		p.expected("an op")
	}
	if space, op, ok := strings.Cut(name, "."); ok {
		if !isIdent(space) || !isDotted(op) {
			p.fail(pos, "expected an operator like aten.add.Tensor, found %q", name)
		}
		return OpCall, p.g.Intern(space + "::" + op)
	}
	op, ok := ByName(name)
	if !ok || op == OpCall {
		p.fail(pos, "expected an op, found %q", name)
	}
	return op, 0
}

// origin reads "model.py:12" from the line's comment; any other comment means nothing.
func (p *parser) origin() Origin {
	i := strings.LastIndexByte(p.comment, ':')
	if i <= 0 {
		return Origin{}
	}
	file := p.comment[:i]
	line, err := strconv.Atoi(p.comment[i+1:])
	if err != nil {
		return Origin{}
	}
	if file[0] == '"' {
		if file, err = strconv.Unquote(file); err != nil {
			return Origin{}
		}
	}
	return Origin{File: file, Line: line}
}

// typ reads "f32[n,i]{1,n}", or "none" for an undefined result.
func (p *parser) typ() Type {
	p.space()
	pos := p.pos
	name := p.word("a type like f32[n]")
	if name == "none" {
		return Type{}
	}
	d, ok := ParseDType(name)
	if !ok {
		p.fail(pos, "expected a dtype, found %q", name)
	}
	t := Type{DType: d}
	p.token("[")
	t.Dims = p.dimList("]")
	pos = p.pos
	if p.accept("{") {
		t.Strides = p.dimList("}")
		if len(t.Strides) != len(t.Dims) {
			p.fail(pos, "expected %d strides, found %d", len(t.Dims), len(t.Strides))
		}
	}
	return t
}

func (p *parser) dimList(end string) []Dim {
	out := []Dim{}
	for !p.accept(end) {
		if len(out) > 0 {
			p.token(",")
		}
		out = append(out, p.dim())
	}
	return out
}

// dim reads a constant or a symbol.
func (p *parser) dim() Dim {
	if c := p.peek(); c >= '0' && c <= '9' {
		return Const(int64(p.uint("a size", 63)))
	}
	pos := p.pos
	name := p.word("a size: a number or a symbol")
	d, ok := p.syms[name]
	if !ok {
		p.fail(pos, "expected a symbol of the dims line, found %q", name)
	}
	return d
}

// operand reads "%2".
func (p *parser) operand() ValueID {
	p.space()
	pos := p.pos
	if !p.accept1('%') {
		p.expected("a value like %2")
	}
	number := p.uint("a value's number", 64)
	v, ok := p.values[number]
	if !ok {
		p.fail(pos, "expected a value defined above, found %%%d", number)
	}
	return v
}

// arg reads one argument; lists only on the first level.
func (p *parser) arg(lists bool) Arg {
	c := p.peek()
	pos := p.pos
	switch {
	case c == '%':
		a := Value(p.operand())
		a.Write = p.accept1('!')
		return a
	case c == '"':
		return Arg{Kind: ArgStr, V: int64(p.g.Intern(p.str()))}
	case c == '[' && lists:
		return p.list(0)
	case c == '-' || (c >= '0' && c <= '9'):
		return p.number()
	}
	name := p.word("an argument")
	if p.accept1(':') {
		return p.tagged(name, pos)
	}
	switch name {
	case "none":
		return Arg{Kind: ArgNone}
	case "true":
		return Arg{Kind: ArgBool, V: 1}
	case "false":
		return Arg{Kind: ArgBool}
	case "inf":
		return floatArg(math.Inf(1))
	case "nan":
		return Arg{Kind: ArgFloat, V: quietNaN}
	}
	if d, ok := p.syms[name]; ok {
		return Arg{Kind: ArgDim, V: int64(d)}
	}
	if d, ok := ParseDType(name); ok {
		return Arg{Kind: ArgDType, V: int64(d)}
	}
	for sub, s := range listNames {
		if lists && s == name && p.peek() == '[' {
			return p.list(uint8(sub))
		}
	}
	p.fail(pos, "expected an argument, found %q", name)
	panic("unreachable")
}

func floatArg(v float64) Arg { return Arg{Kind: ArgFloat, V: int64(math.Float64bits(v))} }

// tagged reads the text that follows "layout:", "device:", "memfmt:", "gen:", "dim:" or "nan:".
func (p *parser) tagged(name string, pos int) Arg {
	switch kind := ArgKind(max(0, slices.Index(prefixes[:], name))); {
	case kind == ArgLayout || kind == ArgDevice || kind == ArgMemFmt:
		return Arg{Kind: kind, V: int64(p.uint(catalogue.ArgKindOf(uint64(kind)).Text+"'s number", 8))}
	case kind == ArgGen:
		return Arg{Kind: ArgGen, V: int64(p.slot())}
	case kind == ArgDim:
		return Arg{Kind: ArgDim, V: int64(p.uint("a size", 63))}
	case name == "nan":
		at := p.pos
		bits, err := strconv.ParseUint(p.take(isWordByte), 16, 64)
		if err != nil || !math.IsNaN(math.Float64frombits(bits)) {
			p.fail(at, "expected the bits of a NaN in hexadecimal")
		}
		return Arg{Kind: ArgFloat, V: int64(bits)}
	}
	p.fail(pos, "expected layout:, device:, memfmt:, gen:, dim: or nan:, found %q", name+":")
	panic("unreachable")
}

// number reads an integer or, with a point or an exponent, a float.
func (p *parser) number() Arg {
	pos := p.pos
	s := p.take(func(c byte) bool { return isWordByte(c) || c == '.' || c == '-' || c == '+' })
	switch {
	case s == "-inf":
		return floatArg(math.Inf(-1))
	case strings.Trim(s, "-+.0123456789e") != "":
		p.fail(pos, "expected a number, found %q", s)
	case strings.ContainsAny(s, ".e"):
		v, err := strconv.ParseFloat(s, 64)
		if err != nil {
			p.fail(pos, "expected a number of 64 bits, found %q", s)
		}
		return floatArg(v)
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		p.fail(pos, "expected an integer of 64 bits, found %q", s)
	}
	return Arg{Kind: ArgInt, V: v}
}

// list reads "[%1, none]"; sub 0: the items show the kind.
func (p *parser) list(sub uint8) Arg {
	p.space()
	pos := p.pos
	p.token("[")
	var items []Arg
	for !p.accept("]") {
		if len(items) > 0 {
			p.token(",")
		}
		p.space()
		p.g.source.items = append(p.g.source.items, p.here(p.pos))
		items = append(items, p.arg(false))
	}
	if sub == 0 {
		if sub = listKind(items); sub == 0 {
			p.fail(pos, "expected the kind before the list, as in ints[]")
		}
	}
	return p.g.AddList(sub, items)
}
