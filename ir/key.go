// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import "encoding/binary"

// Key is a text that two nodes share exactly if they are the same op on the same operands with the same attributes
// and result types. to[v] replaces operand v (to nil: no replacement). Origins and names of symbols do not count, nor
// does the order of operands where it changes no bit of the result.
func (g *Graph) Key(id NodeID, to []ValueID) string { return string(g.AppendKey(nil, id, to)) }

// AppendKey appends a node's key to b.
func (g *Graph) AppendKey(b []byte, id NodeID, to []ValueID) []byte {
	n := &g.Nodes[id]
	k := keyWriter{g: g, to: to, b: b}
	k.num(int64(n.Op))
	k.num(int64(n.Flags))
	k.num(int64(n.Group))
	switch n.Op {
	case OpCall:
		k.num(int64(n.Name))
	case OpInput, OpParam, OpScalar:
		k.num(int64(n.Slot))
	case OpView, OpUpdate:
		k.num(int64(g.Find(n.Offset)))
	}
	args := g.NodeArgs(id)
	k.num(int64(len(args)))
	if g.commutes(id) && k.value(args[0]) > k.value(args[1]) {
		k.arg(args[1])
		args = args[:1]
	}
	for _, a := range args {
		k.arg(a)
	}
	k.num(int64(n.N))
	for _, t := range g.Types[n.First : n.First+ValueID(n.N)] {
		k.num(int64(t.DType))
		k.dims(t.Dims)
		if t.Strides == nil {
			k.num(-1)
		} else {
			k.dims(t.Strides)
		}
	}
	return k.b
}

// commutes reports whether a node has the same result with its operands in the other order. Numbers, and operands of
// another dtype, are converted first, which may depend on their place.
func (g *Graph) commutes(id NodeID) bool {
	args := g.NodeArgs(id)
	if Info(g.Nodes[id].Op).Commutes == 0 || len(args) != 2 || g.Immediate(ValueID(args[0].V)) ||
		g.Immediate(ValueID(args[1].V)) {
		return false
	}
	d := g.Types[args[0].V].DType
	return d.Is(Info(g.Nodes[id].Op).Commutes) && d == g.Types[args[1].V].DType
}

type keyWriter struct {
	g  *Graph
	to []ValueID
	b  []byte
}

func (k *keyWriter) num(v int64) {
	k.b = binary.AppendVarint(k.b, v)
}

func (k *keyWriter) dims(dims []Dim) {
	k.num(int64(len(dims)))
	for _, d := range dims {
		k.num(int64(k.g.Find(d)))
	}
}

func (k *keyWriter) arg(a Arg) {
	k.num(int64(a.Kind)<<1 | int64(boolBit(a.Write)))
	switch a.Kind {
	case ArgNone:
	case ArgValue:
		k.num(int64(k.value(a)))
	case ArgDim:
		k.num(int64(k.g.Find(Dim(a.V))))
	case ArgStr: // two indices hold one string only if a caller bypassed Intern; the nodes then have two keys
		k.num(a.V)
	case ArgList:
		items := k.g.List(a)
		k.num(int64(a.Sub))
		k.num(int64(len(items)))
		for _, item := range items {
			k.arg(item)
		}
	default:
		k.num(a.V)
	}
}

// value is the value of an operand, after the replacement.
func (k *keyWriter) value(a Arg) ValueID {
	if k.to != nil {
		return k.to[a.V]
	}
	return ValueID(a.V)
}

func boolBit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
