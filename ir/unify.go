// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// callDims are the dim patterns of an operator's row, split; see catalogue.ATen.Dims.
type callDims struct {
	args, results []string
	broadcast     bool // every operand broadcasts to result 0
	concatenated  bool // the operands differ in one dim only
	stacked       bool // the result has a further dim
}

// dimsByName holds the patterns of all operators that have some; nothing changes it after it is made.
var dimsByName = func() map[string]*callDims {
	m := map[string]*callDims{}
	for name, f := range ops.byATen {
		if Info(f.op).Kind == KindElementwise {
			m[name] = &callDims{broadcast: true}
		}
	}
	for _, r := range catalogue.ATenRows() {
		switch {
		case r.Dims != "":
			args, results, ok := strings.Cut(r.Dims, "->")
			d := &callDims{args: strings.Split(args, ",")}
			if ok {
				d.results = strings.Split(results, ",")
			}
			m[r.Name] = d
		case r.Point == catalogue.Concatenated:
			m[r.Name] = &callDims{concatenated: true}
		case r.Point == catalogue.Stacked:
			m[r.Name] = &callDims{stacked: true}
		}
	}
	return m
}()

// InferCall unifies the sizes that are equal by the meaning of a node's op or operator, after the node has been added
// with its result types. It never fails: the verifier or the operator itself refuses contradictions.
func (g *Graph) InferCall(id NodeID) {
	m := meaning{g: g, id: id, equal: func(_ int, a, b Dim) { g.UnifyDims(a, b) }}
	m.node()
}

// result stands for the results of a node in the place of the number of an argument.
const result = -1

// meaning lists the sizes that are equal by the meaning of a node's op or operator.
type meaning struct {
	g  *Graph
	id NodeID
	// equal is called with each pair of equal sizes. The second one belongs to this argument, or to a result.
	equal func(arg int, a, b Dim)
	// rank, if it is set, is called for an argument or result with more or fewer dims than the meaning allows.
	rank func(arg int, dims []Dim)
}

func (m *meaning) node() {
	g := m.g
	n := &g.Nodes[m.id]
	results := g.Types[n.First : n.First+ValueID(n.N)]
	args := g.NodeArgs(m.id)
	if n.Op.Own() {
		m.own(n.Op, args, results[0].Dims)
		return
	}
	if n.Op != OpCall {
		if n.Op == OpUpdate {
			m.lists(0, results[0].Dims, g.Types[args[0].V].Dims)
		}
		return
	}
	writes := g.Writes(m.id)
	fresh := len(results) - len(writes)
	for i, w := range writes { // the new content has the operand's geometry
		m.lists(result, g.Types[w].Dims, results[fresh+i].Dims)
		m.lists(result, g.Types[w].Strides, results[fresh+i].Strides)
	}
	if len(args) == 0 {
		return
	}
	name := g.CallName(m.id)
	if args[0].Kind == ArgList && catalogue.Lists(name) {
		m.foreach(args, results[:fresh])
		return
	}
	dims := dimsOf(name)
	if dims == nil {
		return
	}
	if fresh == 0 {
		fresh = len(results) // an in-place operator: its result is the new content
	}
	if dims.concatenated || dims.stacked {
		m.cat(args, results[0].Dims, dims.stacked)
		return
	}
	m.patterns(dims, args, results[:fresh])
}

// dimsOf are the dim patterns of an operator, or of the functional form of an operator in place; nil if there are none.
func dimsOf(name string) *callDims {
	if dims := dimsByName[name]; dims != nil {
		return dims
	}
	if functional, inplace := FunctionalName(name); inplace {
		return dimsByName[functional]
	}
	return nil
}

// FunctionalName is the functional form of an in-place operator: aten::add.Tensor for aten::add_.Tensor. It is false
// for an operator that is not in place.
func FunctionalName(name string) (string, bool) {
	base, overload, dotted := strings.Cut(name, ".")
	f, ok := strings.CutSuffix(base, "_")
	if !ok || strings.HasSuffix(f, "_") {
		return name, false
	}
	if dotted {
		f += "." + overload
	}
	return f, true
}

func (m *meaning) own(op Op, args []Arg, to []Dim) {
	info := Info(op)
	switch info.Shape {
	case ShapeFirst, ShapeBroadcast:
		for i, a := range args[:info.Arity()] {
			m.broadcast(i, m.g.Types[a.V].Dims, to)
		}
	case ShapeReduce:
		if dims, err := m.g.reduceDims(args); err == nil {
			m.lists(result, dims, to)
		}
	}
}

// lists pairs the dims of two lists of equal length.
func (m *meaning) lists(arg int, a, b []Dim) {
	if len(a) != len(b) {
		m.wrongRank(arg, b)
		return
	}
	for i := range a {
		m.equal(arg, a[i], b[i])
	}
}

func (m *meaning) wrongRank(arg int, dims []Dim) {
	if m.rank != nil {
		m.rank(arg, dims)
	}
}

// broadcast pairs the dims of an operand with the last dims of what it broadcasts to. Dims of 1 expand.
func (m *meaning) broadcast(arg int, dims, to []Dim) {
	g := m.g
	if len(dims) > len(to) {
		m.wrongRank(arg, dims)
		return
	}
	for i, d := range dims {
		if t := to[len(to)-len(dims)+i]; g.Find(d) != Const(1) && g.Find(t) != Const(1) {
			m.equal(arg, t, d)
		}
	}
}

// foreach pairs the sizes of an operator over lists. Tensor i of each list broadcasts to result i. An operator without
// new results writes the first list, and the tensors broadcast to those of that list. If a result has fewer dims than
// its operand, as a norm has, nothing broadcasts.
func (m *meaning) foreach(args []Arg, fresh []Type) {
	g := m.g
	first := g.List(args[0])
	to := func(arg, i int, dims []Dim) {
		switch {
		case len(fresh) == len(first) && len(fresh[i].Dims) >= len(dims):
			m.broadcast(arg, dims, fresh[i].Dims)
		case len(fresh) == len(first):
		case first[i].Kind == ArgValue:
			m.broadcast(arg, dims, g.Types[first[i].V].Dims)
		}
	}
	for arg, a := range args {
		items := g.safeList(a)
		if (a.Sub != ListTensors && a.Sub != ListOptTensors) || len(items) != len(first) {
			continue
		}
		for i, item := range items {
			if item.Kind == ArgValue {
				to(arg, i, g.Types[item.V].Dims)
			}
		}
	}
}

// cat pairs the sizes of cat(tensors, dim): all dims but one are equal. A tensor of another rank is empty, and cat
// skips it. The tensors of stack(tensors, dim) lack that dim.
func (m *meaning) cat(args []Arg, to []Dim, stacked bool) {
	g := m.g
	if len(args) < 2 || args[1].Kind != ArgInt {
		return
	}
	dim := args[1].V
	if dim < 0 {
		dim += int64(len(to))
	}
	rank := len(to)
	if stacked {
		rank--
	}
	for _, a := range g.safeList(args[0]) {
		if a.Kind != ArgValue || len(g.Types[a.V].Dims) != rank {
			continue
		}
		for i, d := range g.Types[a.V].Dims {
			switch {
			case int64(i) >= dim && stacked:
				m.equal(0, to[i+1], d)
			case int64(i) != dim:
				m.equal(0, to[i], d)
			}
		}
	}
}

// patterns pairs the sizes of operands and results by the operator's patterns.
func (m *meaning) patterns(dims *callDims, args []Arg, results []Type) {
	g := m.g
	if dims.broadcast {
		for i, a := range args {
			if a.Kind == ArgValue && len(results) > 0 {
				m.broadcast(i, g.Types[a.V].Dims, results[0].Dims)
			}
		}
		return
	}
	bound := map[byte][]Dim{}
	for i, p := range dims.results {
		if i < len(results) && results[i].DType != Invalid {
			m.pattern(result, p, results[i].Dims, bound)
		}
	}
	for i, p := range dims.args {
		if i >= len(args) {
			break
		}
		switch a := args[i]; {
		case p == "#" && len(results) > 0:
			if items := g.safeList(a); len(items) == len(results[0].Dims) {
				for j, item := range items {
					if item.Kind == ArgDim {
						m.equal(i, results[0].Dims[j], Dim(item.V))
					}
				}
			}
		case a.Kind != ArgValue:
		case p == "*" && len(results) > 0 && results[0].DType == Invalid:
		case p == "*" && len(results) > 0:
			m.broadcast(i, g.Types[a.V].Dims, results[0].Dims)
		case p != "*":
			m.pattern(i, p, g.Types[a.V].Dims, bound)
		}
	}
}

// pattern matches one operand or result with its pattern, and pairs its dims with those that the letters stand for.
func (m *meaning) pattern(arg int, p string, dims []Dim, bound map[byte][]Dim) {
	if p == "_" {
		return
	}
	p, scalar := strings.CutSuffix(p, "|")
	if scalar && len(dims) == 0 {
		return
	}
	extra := len(dims) - len(p) // how many dims the group takes, less one
	if (!hasGroup(p) && extra != 0) || extra < -1 {
		m.wrongRank(arg, dims)
		return
	}
	for i := range len(p) {
		n := 1
		c := p[i]
		if c == '+' || (c >= 'A' && c <= 'Z') {
			n = extra + 1
		}
		here := dims[:n]
		dims = dims[n:]
		switch b, ok := bound[c]; {
		case c == '?' || c == '+':
		case ok:
			m.lists(arg, b, here)
		default:
			bound[c] = here
		}
	}
}

// hasGroup reports whether a pattern fits operands of several ranks.
func hasGroup(p string) bool { return strings.ContainsAny(p, "+ABCDEFGHIJKLMNOPQRSTUVWXYZ") }
