// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package ir is the intermediate representation: SSA over tensors with symbolic sizes, an op table, one text form with
// printer and parser, and a verifier. It does not depend on PyTorch's API, on buffers or on the wire. It imports only
// catalogue from this module.
package ir

import (
	"math/big"
	"path"
	"slices"
	"strconv"
	"strings"
)

// ValueID names an SSA value of a graph, NodeID the node that makes it. Both count from 0 in creation order.
type (
	ValueID uint32
	NodeID  uint32
)

// ArgKind is the kind of an Arg. The numbers are those of the tags of a trace. Arg.V holds:
//
//	ArgNone                        nothing: an absent optional
//	ArgValue                       the ValueID of a tensor or a number
//	ArgDim                         the Dim of a size-like integer: a constant or a symbol
//	ArgInt, ArgFloat, ArgBool      the literal: an integer, the bits of a float64, 0 or 1
//	ArgDType, ArgLayout, ArgMemFmt a DType, PyTorch's number of a layout or of a memory format
//	ArgDevice                      0: this device
//	ArgStr                         the index into Graph.Strings
//	ArgGen                         the parameter slot that holds the generator's id
//	ArgList                        first item << 32 | number of items, in Graph.ListArgs; Sub is the kind of the list
type ArgKind uint8

// Arg is one argument of a call. Write marks an operand the call overwrites: see Graph.
type Arg struct {
	Kind  ArgKind
	Sub   uint8 // ArgList: List*
	Write bool
	V     int64
}

// Value makes an operand.
func Value(v ValueID) Arg { return Arg{Kind: ArgValue, V: int64(v)} }

// Origin is the place in the user's program that a node comes from; File "" means unknown.
type Origin struct {
	File string
	Line int
}

// Short is a place without the folders, "train.py:41" or "In [3]:4"; "" if the place is not known.
func (o Origin) Short() string {
	if o.File == "" {
		return ""
	}
	return path.Base(strings.ReplaceAll(o.File, `\`, "/")) + ":" + strconv.Itoa(o.Line)
}

// Full is the origin with the whole path, "/home/me/train.py:41"; "" if it is not known.
func (o Origin) Full() string {
	if o.File == "" {
		return ""
	}
	return o.File + ":" + strconv.Itoa(o.Line)
}

// Label is Short in one word.
func (o Origin) Label() string { return strings.Join(strings.Fields(o.Short()), "_") }

// Flags of a node that its op does not imply. The numbers are those of the flags of a record. A node with FlagDynamic
// has data-dependent shapes: its first result holds the shapes of the others, which have the type u8[0] and no
// reader.
type Flags uint8

// Node is one operation. Its results are values First … First+N-1.
type Node struct {
	Op     Op
	Flags  Flags
	Name   uint32 // OpCall: index into Graph.Strings of the full name "aten::add.Tensor"
	Slot   uint32 // OpInput: binding slot; OpParam, OpScalar: parameter slot
	Group  uint32 // 1 + index into Graph.Groups, 0 if the node is in no group
	Offset Dim    // OpView, OpUpdate: storage offset in elements of the region's dtype
	ArgLo  uint32 // arguments are Graph.Args[ArgLo:ArgHi]
	ArgHi  uint32
	First  ValueID
	N      uint32
	Record int32 // number of the trace record it comes from, -1 if none
	Origin Origin
}

// Template is the form of a kernel's loop.
type Template uint8

const (
	TemplateMap   Template = iota + 1 // one element of each result from each point
	TemplateRows                      // reduces the last dims; a row that is read again is in cache or registers
	TemplateCols                      // reduces other dims than the last
	TemplateAll                       // reduces all dims
	TemplateLists                     // one map over the tensors of lists
	NumTemplates
)

var templates = [NumTemplates]string{
	TemplateMap: "map", TemplateRows: "rows", TemplateCols: "cols", TemplateAll: "all", TemplateLists: "lists",
}

func (t Template) String() string { return templates[t] }

// Group is a set of adjacent nodes that one or more kernels compute together. A group has the meaning of its nodes one
// by one; Kernels lists the kernels that the fuse pass expects, in the order in which they run.
type Group struct {
	Kernels []Template
}

// Require is a fact about sizes that no op implies and on which a pass relies: two products are equal. A program
// serves only the calls for which its facts hold.
type Require struct {
	Left, Right []Dim
}

// Number is a number from the program's text on which a pass relies: the one that a parameter slot held when the graph
// was captured. A program serves only the calls that have this number again.
type Number struct {
	Slot  uint32
	Value Arg // ArgFloat or ArgInt
}

// Rely notes a number on which a pass relies, once.
func (g *Graph) Rely(n Number) {
	g.own()
	if !slices.Contains(g.Numbers, n) {
		g.Numbers = append(g.Numbers, n)
	}
}

// Output states that after the program the storage bound to Slot holds Value.
type Output struct {
	Value ValueID
	Slot  uint32
}

// NoValue is the value of a Version that no node makes any more.
const NoValue = ^ValueID(0)

// Version states that an output's storage holds Value from one record on, up to the next version of the slot. A failure
// between the two leaves the storage so.
type Version struct {
	Slot   uint32
	Record int32 // that makes or writes the storage
	Value  ValueID
}

// Graph is a program in SSA form.
//
// Values are pure. A storage is functionalised: each write to it makes a new value. A call argument with Write set is
// an operand that PyTorch's op overwrites. The call does not change that value; it returns the content after the call
// as one more result. Results are the fresh tensors in the op's order (an undefined one has dtype Invalid), then one
// per written operand in argument order, of the operand's type. Nodes are in execution order; an operand's node
// precedes its use.
//
// Own ops keep ATen's meaning: operands of an elementwise op broadcast, and its dtype rule is ATen's type promotion
// with numbers (OpParam) weakest, then 0-dim tensors, then tensors.
type Graph struct {
	Name     string // where it was cut: "train.py:41"
	Reason   string // why: none read sync step upload size flush exit shape event repeat early list comm
	Syms     []Symbol
	Nodes    []Node
	Args     []Arg
	ListArgs []Arg
	Strings  []string
	Types    []Type   // by ValueID
	Def      []NodeID // by ValueID
	Outputs  []Output
	Versions []Version // by slot and record, those of a slot side by side; not part of the text
	Groups   []Group
	Requires []Require
	Numbers  []Number

	source  *source // of a graph that was parsed; copies have none
	strings map[string]uint32
	lineage *Lineage // of a graph that is followed
	names   []int    // by value: its name in the lineage
	equal   []Dim    // by symbol: the dim that represents it (see Find); a symbol without an entry represents itself
	shared  *shared
}

// NewGraph returns an empty graph.
func NewGraph(name, reason string) *Graph { return &Graph{Name: name, Reason: reason} }

// Intern returns the index of s in Strings.
func (g *Graph) Intern(s string) uint32 {
	if g.strings == nil {
		g.strings = make(map[string]uint32, len(g.Strings)+8)
		for i, t := range g.Strings {
			g.strings[t] = uint32(i)
		}
	}
	i, ok := g.strings[s]
	if !ok {
		i = uint32(len(g.Strings))
		g.Strings = append(g.Strings, s)
		g.strings[s] = i
	}
	return i
}

// AddSymbol returns the dim of a new symbol that parameter slot holds.
func (g *Graph) AddSymbol(slot uint32, first int64) Dim {
	g.Syms = append(g.Syms, Symbol{Slot: slot, First: first})
	return SymDim(len(g.Syms) - 1)
}

// AddQuotient returns the dim that is the product of some sizes over that of others. It divides evenly in every call.
func (g *Graph) AddQuotient(of, by []Dim) Dim {
	of, by = g.Reduce(of, by)
	of, over := constant(of)
	by, under := constant(by)
	if over == 0 {
		return Const(0)
	}
	common := new(big.Int).GCD(nil, nil, big.NewInt(over), big.NewInt(under)).Int64()
	over, under = over/common, under/common
	switch {
	case len(of)+len(by) == 0 && under == 1:
		return Const(over)
	case len(of) == 1 && len(by) == 0 && over == 1 && under == 1:
		return of[0]
	}
	if over != 1 {
		of = append(of, Const(over))
	}
	if under != 1 {
		by = append(by, Const(under))
	}
	for i, s := range g.Syms {
		if q := s.Quotient; q != nil && slices.Equal(q.Of, of) && slices.Equal(q.By, by) {
			return SymDim(i)
		}
	}
	first := g.firstProduct(of) / max(g.firstProduct(by), 1)
	g.Syms = append(g.Syms, Symbol{First: first, Quotient: &Quotient{of, by}})
	return SymDim(len(g.Syms) - 1)
}

// constant removes the constants from a product, and multiplies them.
func constant(dims []Dim) (rest []Dim, number int64) {
	number = 1
	rest = slices.DeleteFunc(dims, func(d Dim) bool {
		if d >= 0 {
			number *= int64(d)
		}
		return d >= 0
	})
	return rest, number
}

// AddList stores items and returns the list argument; sub is the kind of list.
func (g *Graph) AddList(sub uint8, items []Arg) Arg {
	lo := len(g.ListArgs)
	g.ListArgs = append(g.ListArgs, items...)
	return Arg{Kind: ArgList, Sub: sub, V: int64(lo)<<32 | int64(len(items))}
}

// List returns the items of a list argument.
func (g *Graph) List(a Arg) []Arg {
	lo, n := a.V>>32, a.V&0xffffffff
	return g.ListArgs[lo : lo+n]
}

// Grow makes room for this many more nodes, values, arguments and symbols.
func (g *Graph) Grow(nodes, values, args, syms int) {
	g.Nodes = slices.Grow(g.Nodes, nodes)
	g.Types, g.Def = slices.Grow(g.Types, values), slices.Grow(g.Def, values)
	g.Args = slices.Grow(g.Args, args)
	g.Syms = slices.Grow(g.Syms, syms)
}

// Add appends node n with these arguments and result types, fills in its ranges, and returns its id.
func (g *Graph) Add(n Node, args []Arg, results []Type) NodeID {
	id := NodeID(len(g.Nodes))
	n.ArgLo = uint32(len(g.Args))
	g.Args = append(g.Args, args...)
	n.ArgHi = uint32(len(g.Args))
	n.First, n.N = ValueID(len(g.Types)), uint32(len(results))
	g.Types = append(g.Types, results...)
	for range results {
		g.Def = append(g.Def, id)
	}
	g.Nodes = append(g.Nodes, n)
	return id
}

// NodeArgs returns the arguments of a node; lists are one argument.
func (g *Graph) NodeArgs(id NodeID) []Arg { n := &g.Nodes[id]; return g.Args[n.ArgLo:n.ArgHi] }

// CallName is the full name "aten::add.Tensor" of an OpCall node.
func (g *Graph) CallName(id NodeID) string { return g.Strings[g.Nodes[id].Name] }

// Uses calls f with each operand of a node, those in lists included, in order.
func (g *Graph) Uses(id NodeID, f func(v ValueID, write bool)) {
	g.EachArg(id, func(a Arg) {
		if a.Kind == ArgValue {
			f(ValueID(a.V), a.Write)
		}
	})
}
