// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "github.com/mycelya/mycelya/catalogue"

// overForms names, for each operator that overwrites an operand, the operator whose result it writes. Where two
// operators share an in-place one, as full_like and fill.Scalar share fill_, it is the form with the in-place
// operator's name.
var overForms = func() map[string]*catalogue.ATen {
	m := map[string]*catalogue.ATen{}
	rows := catalogue.ATenRows()
	for i := range rows {
		r := &rows[i]
		if functional, _ := FunctionalName(r.InPlace); r.InPlace != "" && (m[r.InPlace] == nil || functional == r.Name) {
			m[r.InPlace] = r
		}
		if r.Out != "" {
			m[r.Out] = r
		}
	}
	return m
}()

// Elementwise reports whether a node computes each element of its one result from one element of each operand. Such a
// node may have an operator that overwrites an operand.
func (g *Graph) Elementwise(id NodeID) bool {
	n := &g.Nodes[id]
	if n.Op == OpCall {
		return g.Row(id).Elementwise && n.N == 1 && n.Flags == 0 && g.NumWrites(id) == 0
	}
	kind := Info(n.Op).Kind
	return kind == KindElementwise || kind == KindFill
}

// ToATenOver gives the operator and the arguments that compute an elementwise node and write the result over argument
// i, which has the result's type. The name is "" if no operator does. The argument that is written is marked.
func ToATenOver(g *Graph, id NodeID, i int) (name string, args []Arg) {
	to := g.NodeArgs(id)[i]
	if to.Kind != ArgValue || g.Immediate(ValueID(to.V)) || !g.Elementwise(id) {
		return "", nil
	}
	to.Write = true
	var form string
	self := 0 // the argument that is the operator's first one
	if g.Nodes[id].Op == OpCall {
		form, args = g.CallName(id), append([]Arg(nil), g.NodeArgs(id)...)
	} else {
		form, args = ToATen(g, id)
		if f, ok := ops.byATen[form]; ok {
			self = int(f.words[0][0] - '0')
		}
	}
	r := catalogue.FindATen(form)
	switch {
	case r == nil:
	case i == self && r.InPlace != "":
		if Info(g.Nodes[id].Op).Kind == KindFill {
			args = args[:2]
		}
		args[0] = to
		return r.InPlace, args
	case r.Out != "":
		return r.Out, append(args, to)
	}
	return "", nil
}

// FormOver gives the operator whose result another one writes over an argument: over the first argument or, if out,
// over an additional last one. It is "" for operators that overwrite no operand.
func FormOver(name string) (form string, out bool) {
	r := overForms[name]
	if r == nil {
		return "", false
	}
	return r.Name, r.Out == name
}
