// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "github.com/mycelya/mycelya/catalogue"

// Numbers of PyTorch's layouts and memory formats that the forms name.
const (
	layoutStrided    = 0
	memfmtContiguous = 0
	memfmtPreserve   = 1
)

// FromATen decides whether a call of the operator with these arguments is exactly an own op, and returns that op's
// arguments. A number that is only a parameter is not known to be 1: add.Tensor with such an alpha stays a call. The
// caller still compares the own op's result type with the recorded one (see Graph.Check).
func FromATen(g *Graph, name string, args []Arg) (Op, []Arg, bool) {
	f, ok := ops.byATen[name]
	if !ok {
		return OpInvalid, nil, false
	}
	info := Info(f.op)
	m := formMatch{g: g, ok: true, operands: make([]Arg, info.Arity())}
	for _, w := range f.words {
		if w == "all" {
			m.dims, m.keepdim = g.AddList(ListInts, nil), Arg{Kind: ArgBool}
			continue
		}
		if len(args) == 0 {
			return OpInvalid, nil, false
		}
		m.take(w, args[0])
		args = args[1:]
	}
	if !m.ok || len(args) != 0 {
		return OpInvalid, nil, false
	}
	own := m.operands
	if info.Kind == KindReduce {
		dims, ok := g.reductionDims(own[0], m.dims)
		if !ok {
			return OpInvalid, nil, false
		}
		own = append(own, dims, m.keepdim)
	}
	d, err := g.resultDType(f.op, own, Invalid)
	if err != nil || (m.asdtype != Invalid && m.asdtype != d) {
		return OpInvalid, nil, false
	}
	return f.op, own, true
}

// formMatch collects what the words of a form find in a call's arguments.
type formMatch struct {
	g             *Graph
	ok            bool
	operands      []Arg
	dims, keepdim Arg
	asdtype       DType
}

func (m *formMatch) take(word string, a Arg) {
	absent := a.Kind == ArgNone
	switch word {
	case "0", "1", "2":
		m.operands[word[0]-'0'] = a
		m.ok = m.ok && a.Kind == ArgValue && !a.Write
	case "0#", "1#":
		m.operands[word[0]-'0'] = a
		m.ok = m.ok && m.g.IsNumber(a)
	case "one":
		m.ok = m.ok && a.Kind == ArgInt && a.V == 1
	case "dims":
		m.dims = a
		m.ok = m.ok && (absent || a.Kind == ArgList)
	case "keepdim":
		m.keepdim = a
		m.ok = m.ok && a.Kind == ArgBool
	case "dtype":
		m.ok = m.ok && a.Kind == ArgDType
	case "asdtype":
		if !absent {
			m.asdtype = DType(a.V)
			m.ok = m.ok && a.Kind == ArgDType
		}
	case "layout":
		m.ok = m.ok && (absent || (a.Kind == ArgLayout && a.V == layoutStrided))
	case "device":
		m.ok = m.ok && (absent || a.Kind == ArgDevice)
	case "pin":
		m.ok = m.ok && (absent || (a.Kind == ArgBool && a.V == 0))
	case "nonblock":
		m.ok = m.ok && (absent || a.Kind == ArgBool)
	case "preserve":
		m.ok = m.ok && (absent || (a.Kind == ArgMemFmt && a.V == memfmtPreserve))
	case "memfmt":
		m.ok = m.ok && (absent || a.Kind == ArgMemFmt)
	default:
		panic("BUG: unknown word " + word + " in a form of the op table")
	}
}

// reductionDims turns the dims of an operator into those of a reduction: literal, not negative, each once. It fails
// for a rank 0 operand with dims: the operator allows dim 0 there.
func (g *Graph) reductionDims(x, dims Arg) (Arg, bool) {
	if dims.Kind == ArgNone {
		return g.AddList(ListInts, nil), true
	}
	rank := int64(len(g.Types[x.V].Dims))
	var seen uint64
	var items []Arg
	changed := dims.Sub != ListInts
	for _, d := range g.List(dims) {
		v := d.V
		if v < 0 {
			v, changed = v+rank, true
		}
		if d.Kind != ArgInt || v < 0 || v >= rank || seen>>v&1 != 0 {
			return Arg{}, false
		}
		seen |= 1 << v
		items = append(items, Arg{Kind: ArgInt, V: v})
	}
	if !changed {
		return dims, true
	}
	return g.AddList(ListInts, items), true
}

// ToATen gives the operator and the arguments that compute a node of an own op. The name is "" if no single operator
// does: for ops about memory, and for a copy into a layout that no memory format names.
func ToATen(g *Graph, id NodeID) (name string, args []Arg) {
	n := &g.Nodes[id]
	if !n.Op.Own() {
		return "", nil
	}
	own := g.NodeArgs(id)
	result := g.Types[n.First]
	for _, f := range Info(n.Op).ATen {
		words := ops.byATen[f.Name].words
		if !g.emits(words, own) {
			continue
		}
		args := make([]Arg, 0, len(words))
		for _, w := range words {
			a := Arg{Kind: ArgNone}
			switch w {
			case "0", "1", "2", "0#", "1#":
				a = own[w[0]-'0']
			case "one":
				a = Arg{Kind: ArgInt, V: 1}
			case "dims":
				a = own[1]
			case "keepdim":
				a = own[2]
			case "dtype":
				a = Arg{Kind: ArgDType, V: int64(result.DType)}
			case "nonblock":
				a = Arg{Kind: ArgBool}
			case "memfmt":
				if result.Strides != nil {
					return "", nil
				}
				a = Arg{Kind: ArgMemFmt, V: memfmtContiguous}
			case "all":
				continue
			}
			args = append(args, a)
		}
		return f.Name, args
	}
	return "", nil
}

// emits reports whether a form can be emitted for these own arguments.
func (g *Graph) emits(words []string, own []Arg) bool {
	for _, w := range words {
		if len(w) == 2 && w[1] == '#' && !g.IsNumber(own[w[0]-'0']) {
			return false
		}
	}
	return words[len(words)-1] != "all"
}

// unknownOperator is the row of an operator that the catalogue lacks.
var unknownOperator = &catalogue.ATen{}

// Row returns the catalogue's row of a call's operator. It is never nil.
func (g *Graph) Row(id NodeID) *catalogue.ATen { return g.RowOf(&g.Nodes[id]) }

// RowOf is Row for a node that need not be in the graph yet; its name is one of the graph's strings.
func (g *Graph) RowOf(n *Node) *catalogue.ATen {
	if r := catalogue.FindATen(g.Strings[n.Name]); r != nil {
		return r
	}
	return unknownOperator
}
