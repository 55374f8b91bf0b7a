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
		}
	}
	return m
}()

// InferCall unifies the sizes that are equal by the meaning of a node's op or operator, after the node has been added
// with its result types. It never fails: the verifier or the operator itself refuses contradictions.
func (g *Graph) InferCall(id NodeID) {
	n := &g.Nodes[id]
	results := g.Types[n.First : n.First+ValueID(n.N)]
	args := g.NodeArgs(id)
	if n.Op.Own() {
		g.unifyOwn(n.Op, args, results[0].Dims)
		return
	}
	if n.Op != OpCall {
		if n.Op == OpUpdate {
			g.unifyLists(results[0].Dims, g.Types[args[0].V].Dims)
		}
		return
	}
	writes := g.Writes(id)
	fresh := len(results) - len(writes)
	for i, w := range writes { // the new content has the operand's geometry
		g.unifyLists(g.Types[w].Dims, results[fresh+i].Dims)
		g.unifyLists(g.Types[w].Strides, results[fresh+i].Strides)
	}
	if len(args) == 0 {
		return
	}
	name := g.CallName(id)
	if args[0].Kind == ArgList && catalogue.Lists(name) {
		g.unifyForeach(args, results[:fresh])
		return
	}
	dims := dimsByName[name]
	if dims == nil {
		functional, inplace := FunctionalName(name)
		if !inplace {
			return
		}
		if dims = dimsByName[functional]; dims == nil {
			return
		}
	}
	if dims.concatenated {
		g.unifyCat(args, results[0].Dims)
		return
	}
	if fresh == 0 {
		fresh = len(results) // an in-place operator: its result is the new content
	}
	g.unifyPatterns(dims, args, results[:fresh])
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

func (g *Graph) unifyOwn(op Op, args []Arg, result []Dim) {
	info := Info(op)
	switch info.Shape {
	case ShapeFirst, ShapeBroadcast:
		for _, a := range args[:info.Arity()] {
			g.unifyBroadcast(g.Types[a.V].Dims, result)
		}
	case ShapeReduce:
		if dims, err := g.reduceDims(args); err == nil {
			g.unifyLists(dims, result)
		}
	}
}

// unifyLists unifies the dims of two lists of equal length in pairs.
func (g *Graph) unifyLists(a, b []Dim) {
	if len(a) != len(b) {
		return
	}
	for i := range a {
		g.UnifyDims(a[i], b[i])
	}
}

// unifyBroadcast unifies the dims of an operand with the last dims of what it broadcasts to. Dims of 1 expand.
func (g *Graph) unifyBroadcast(dims, to []Dim) {
	if len(dims) > len(to) {
		return
	}
	for i, d := range dims {
		if t := to[len(to)-len(dims)+i]; g.Find(d) != Const(1) && g.Find(t) != Const(1) {
			g.UnifyDims(d, t)
		}
	}
}

// unifyForeach unifies the sizes of an operator over lists: the i-th tensor of each list broadcasts to the i-th
// tensor of the first list.
func (g *Graph) unifyForeach(args []Arg, fresh []Type) {
	first := g.List(args[0])
	to := func(i int, dims []Dim) {
		if first[i].Kind == ArgValue {
			g.unifyBroadcast(dims, g.Types[first[i].V].Dims)
		}
	}
	for _, a := range args[1:] {
		items := g.safeList(a)
		if (a.Sub != ListTensors && a.Sub != ListOptTensors) || len(items) != len(first) {
			continue
		}
		for i, item := range items {
			if item.Kind == ArgValue {
				to(i, g.Types[item.V].Dims)
			}
		}
	}
	if len(fresh) == len(first) {
		for i, t := range fresh {
			to(i, t.Dims)
		}
	}
}

// unifyCat unifies the sizes of cat(tensors, dim): all dims but one are equal. A tensor of another rank is empty, and
// cat skips it.
func (g *Graph) unifyCat(args []Arg, result []Dim) {
	if len(args) < 2 || args[1].Kind != ArgInt {
		return
	}
	dim := args[1].V
	if dim < 0 {
		dim += int64(len(result))
	}
	for _, a := range g.safeList(args[0]) {
		if a.Kind != ArgValue || len(g.Types[a.V].Dims) != len(result) {
			continue
		}
		for i, d := range g.Types[a.V].Dims {
			if int64(i) != dim {
				g.UnifyDims(d, result[i])
			}
		}
	}
}

// unifyPatterns unifies the sizes of operands and results by the operator's patterns.
func (g *Graph) unifyPatterns(dims *callDims, args []Arg, results []Type) {
	if dims.broadcast {
		for _, a := range args {
			if a.Kind == ArgValue && len(results) > 0 {
				g.unifyBroadcast(g.Types[a.V].Dims, results[0].Dims)
			}
		}
		return
	}
	bound := map[byte][]Dim{}
	for i, p := range dims.results {
		if i < len(results) && results[i].DType != Invalid {
			g.unifyPattern(p, results[i].Dims, bound)
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
						g.UnifyDims(Dim(item.V), results[0].Dims[j])
					}
				}
			}
		case a.Kind != ArgValue:
		case p == "*" && len(results) > 0:
			g.unifyBroadcast(g.Types[a.V].Dims, results[0].Dims)
		case p != "*":
			g.unifyPattern(p, g.Types[a.V].Dims, bound)
		}
	}
}

// unifyPattern matches one operand or result with its pattern, and unifies its dims with those that the letters stand
// for.
func (g *Graph) unifyPattern(p string, dims []Dim, bound map[byte][]Dim) {
	if p == "_" {
		return
	}
	extra := len(dims) - len(p) // how many dims the group takes, less one
	group := strings.ContainsAny(p, "+ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	if (!group && extra != 0) || extra < -1 {
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
			g.unifyLists(b, here)
		default:
			bound[c] = here
		}
	}
}
