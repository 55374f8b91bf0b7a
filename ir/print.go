// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/mycelya/mycelya/catalogue"
)

// These are the widths of the columns of the text form: binders, and the whole statement before its origin.
const (
	binderWidth = 22
	lineWidth   = 56
)

// listNames are the names of kinds of lists in text, by number.
var listNames = func() (names [catalogue.NumLists]string) {
	for _, l := range catalogue.ListKinds {
		names[l.Number] = l.Name
	}
	return names
}()

// prefixes are the words before a colon in the text of an argument, by kind; "" if there is none.
var prefixes = func() (names [catalogue.NumTags]string) {
	for _, a := range catalogue.ArgKinds {
		if a.Prefix != catalogue.None {
			names[a.Number] = a.Prefix
		}
	}
	return names
}()

// reserved words are not names of symbols.
var reserved = func() map[string]bool {
	m := map[string]bool{"none": true, "true": true, "false": true, "inf": true, "nan": true,
		"offset": true, "output": true,
		"dims": true, "graph": true, "require": true, "param": true, "fuse": true}
	for _, s := range slices.Concat(listNames[1:], prefixes[:]) {
		m[s] = true
	}
	for d := U8; d < NumDTypes; d++ {
		m[d.String()] = true
	}
	return m
}()

// String is the text form (grammar.txt). The text of a graph that the verifier accepts parses back into a graph with
// the same text. The text of any other graph is only for reading.
func (g *Graph) String() string {
	p := g.printer()
	p.graph()
	return p.b.String()
}

// NodeString is the statement of one node, without its origin.
func (g *Graph) NodeString(id NodeID) string {
	p := g.printer()
	p.node(id)
	return p.b.String()
}

// NodeStrings is NodeString for many nodes of a graph that does not change between them: it names the sizes once.
func (g *Graph) NodeStrings() func(NodeID) string {
	p := g.printer()
	return func(id NodeID) string {
		p.b.Reset()
		p.node(id)
		return p.b.String()
	}
}

// TypeString is a type in the text form.
func (g *Graph) TypeString(t Type) string {
	p := g.printer()
	p.typ(t)
	return p.b.String()
}

type printer struct {
	g     *Graph
	b     strings.Builder
	names []string
	order []int
}

func (g *Graph) printer() *printer {
	p := &printer{g: g}
	p.names, p.order = g.symbolNames()
	return p
}

func (p *printer) f(format string, args ...any) { fmt.Fprintf(&p.b, format, args...) }

func (p *printer) text(s string) { p.b.WriteString(s) }

func (p *printer) number(n int64) { p.b.Write(strconv.AppendInt(nil, n, 10)) }

func (p *printer) graph() {
	p.f("graph %s %s {\n", quoteUnlessPlain(p.g.Name), quoteUnlessPlain(p.g.Reason))
	if len(p.order) > 0 {
		p.text("  dims")
		also := p.g.also()
		for _, i := range p.order {
			s := &p.g.Syms[i]
			p.f(" %s=%d@", p.names[i], s.First)
			switch q := s.Quotient; {
			case q == nil:
				p.f("%d", s.Slot)
				for _, also := range also[SymDim(i)] {
					p.f(",%d", also)
				}
			case len(q.By) == 0:
				p.text(p.product(q.Of))
			default:
				p.f("%s/%s", p.product(q.Of), p.product(q.By))
			}
		}
		p.text("\n")
	}
	for _, r := range p.g.Requires {
		p.f("  require %s = %s\n", p.product(r.Left), p.product(r.Right))
	}
	for _, n := range p.g.Numbers {
		p.f("  require param %d = ", n.Slot)
		p.arg(n.Value)
		p.text("\n")
	}
	group := uint32(0)
	for id := range p.g.Nodes {
		if k := p.g.Nodes[id].Group; k != group {
			p.endGroup(group)
			p.beginGroup(k)
			group = k
		}
		start := p.b.Len()
		p.text("  ")
		if group != 0 {
			p.text("  ")
		}
		p.node(NodeID(id))
		if o := p.g.Nodes[id].Origin; o.File != "" {
			p.pad(start, lineWidth)
			p.f("  # %s:%d", quoteFile(o.File), o.Line)
		}
		p.text("\n")
	}
	p.endGroup(group)
	for _, o := range p.g.Outputs {
		p.f("  output %%%d -> s%d\n", o.Value, o.Slot)
	}
	p.text("}\n")
}

func (p *printer) beginGroup(group uint32) {
	if group == 0 {
		return
	}
	p.text("  fuse")
	if int(group) <= len(p.g.Groups) {
		for _, t := range p.g.Groups[group-1].Kernels {
			p.f(" %s", templates[min(t, NumTemplates-1)])
		}
	}
	p.text(" {\n")
}

func (p *printer) endGroup(group uint32) {
	if group != 0 {
		p.text("  }\n")
	}
}

// product is one side of a requirement; the product of no dims is 1.
func (p *printer) product(dims []Dim) string {
	if len(dims) == 0 {
		return "1"
	}
	return strings.ReplaceAll(p.dims(dims), ",", "*")
}

// pad fills the text since start to the column.
func (p *printer) pad(start, column int) {
	for p.b.Len()-start < column {
		p.b.WriteByte(' ')
	}
}

func (p *printer) node(id NodeID) {
	n := &p.g.Nodes[id]
	start := p.b.Len()
	for i := range n.N {
		if i > 0 {
			p.text(", ")
		}
		v := n.First + ValueID(i)
		p.text("%")
		p.number(int64(v))
		p.text(": ")
		if int(v) < len(p.g.Types) {
			p.typ(p.g.Types[v])
		}
	}
	if n.N > 0 {
		p.pad(start, binderWidth)
		p.text(" = ")
	}
	if n.Op == OpCall {
		p.text(p.callName(n.Name))
	} else {
		p.text(n.Op.String())
	}
	switch n.Op {
	case OpInput, OpParam, OpScalar:
		p.f(" %d", n.Slot)
	}
	for _, a := range p.g.safeArgs(id) {
		p.text(" ")
		p.arg(a)
	}
	if n.Op == OpView || n.Op == OpUpdate {
		p.f(" offset=%s", dimString(p.names, p.g.Find(n.Offset)))
	}
	if n.Flags&FlagRNG != 0 {
		p.text(" !rng")
	}
	if n.Flags&FlagEffect != 0 {
		p.text(" !effect")
	}
	if n.Flags&FlagDynamic != 0 {
		p.text(" !dynamic")
	}
}

func (p *printer) callName(i uint32) string {
	if int(i) >= len(p.g.Strings) {
		return "?"
	}
	name := p.g.Strings[i]
	if space, op, ok := strings.Cut(name, "::"); ok && isIdent(space) && isDotted(op) {
		return space + "." + op
	}
	return strconv.Quote(name)
}

func (p *printer) typ(t Type) {
	if t.DType == Invalid {
		p.text("none")
		return
	}
	if t.DType.Valid() {
		p.text(t.DType.String())
	} else {
		p.text("?")
	}
	p.text("[")
	p.text(p.dims(t.Dims))
	p.text("]")
	if t.Strides != nil {
		p.f("{%s}", p.dims(t.Strides))
	}
}

func (p *printer) dims(dims []Dim) string {
	out := make([]string, len(dims))
	for i, d := range dims {
		out[i] = dimString(p.names, p.g.Find(d))
	}
	return strings.Join(out, ",")
}

func (p *printer) arg(a Arg) {
	switch a.Kind {
	case ArgNone:
		p.text("none")
	case ArgValue:
		p.text("%")
		p.number(a.V)
		if a.Write {
			p.text("!")
		}
	case ArgDim:
		if d := p.g.Find(Dim(a.V)); d >= 0 {
			p.f("%s:%d", prefixes[ArgDim], d) // unlike a literal integer, it may take any value without changing the key
		} else {
			p.text(dimString(p.names, d))
		}
	case ArgInt:
		p.number(a.V)
	case ArgFloat:
		p.text(floatString(math.Float64frombits(uint64(a.V))))
	case ArgBool:
		p.f("%t", a.V != 0)
	case ArgDType:
		if d := DType(a.V); d.Valid() && int64(d) == a.V {
			p.text(d.String())
		} else {
			p.text("?")
		}
	case ArgLayout, ArgDevice, ArgMemFmt, ArgGen:
		p.f("%s:%d", prefixes[a.Kind], a.V)
	case ArgStr:
		if a.V < 0 || a.V >= int64(len(p.g.Strings)) {
			p.text("?")
			return
		}
		p.text(strconv.Quote(p.g.Strings[a.V]))
	case ArgList:
		items := p.g.safeList(a)
		if listKind(items) != a.Sub {
			if a.Sub == 0 || int(a.Sub) >= len(listNames) {
				p.text("?")
			} else {
				p.text(listNames[a.Sub])
			}
		}
		p.text("[")
		for i, item := range items {
			if i > 0 {
				p.text(", ")
			}
			if item.Kind == ArgList {
				p.text("?")
				continue
			}
			p.arg(item)
		}
		p.text("]")
	default:
		p.text("?")
	}
}

// listKind is the kind that a list's items show without its name, 0 if they don't.
func listKind(items []Arg) uint8 {
	var kind uint8
	for i, a := range items {
		var k uint8
		switch a.Kind {
		case ArgValue:
			k = ListTensors
		case ArgNone:
			k = ListOptTensors
		case ArgInt, ArgDim:
			k = ListInts
		case ArgFloat:
			k = ListFloats
		case ArgBool:
			k = ListBools
		}
		switch {
		case i == 0 || k == kind:
			kind = k
		case k+kind == ListTensors+ListOptTensors && k*kind != 0:
			kind = ListOptTensors
		default:
			return 0
		}
	}
	return kind
}

// floatString is exact for every bit pattern, and never reads as an integer.
func floatString(v float64) string {
	switch {
	case math.Float64bits(v) == quietNaN:
		return "nan"
	case v != v:
		return fmt.Sprintf("nan:%016x", math.Float64bits(v))
	case math.IsInf(v, 1):
		return "inf"
	case math.IsInf(v, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(v, 'g', -1, 64)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

const quietNaN = 0x7ff8000000000000

func isIdent(s string) bool {
	for i, r := range s {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return s != ""
}

// isDotted reports whether s is one or more words of letters, digits and _ joined by dots.
func isDotted(s string) bool {
	for _, w := range strings.Split(s, ".") {
		if !isIdent("_"+w) || w == "" {
			return false
		}
	}
	return true
}

// quoteUnlessPlain quotes what does not read as one word of a graph's first line.
func quoteUnlessPlain(s string) string {
	for _, r := range s {
		if !unicode.IsGraphic(r) || unicode.IsSpace(r) || strings.ContainsRune("\"{}#\ufffd", r) {
			return strconv.Quote(s)
		}
	}
	if s == "" {
		return strconv.Quote(s)
	}
	return s
}

// quoteFile quotes a file name that would not read back from a comment.
func quoteFile(s string) string {
	if strings.TrimSpace(s) != s || s[0] == '"' || !plainText(s) {
		return strconv.Quote(s)
	}
	return s
}

func plainText(s string) bool {
	for _, r := range s {
		if !unicode.IsGraphic(r) || r == '\ufffd' {
			return false
		}
	}
	return true
}
