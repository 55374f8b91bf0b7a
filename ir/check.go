// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"math"
	"math/bits"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
)

// Verify returns what is wrong with a graph, nil if nothing is. A graph that it accepts can be printed, parsed,
// rewritten and evaluated without a panic. Errors name the statement as it is printed.
func Verify(g *Graph) error {
	c := checker{g: g}
	if err := c.tables(); err != nil {
		return fmt.Errorf("ir: %w", err)
	}
	for id := range g.Nodes {
		if err := c.node(NodeID(id)); err != nil {
			return g.errorAt(NodeID(id), c.arg, c.item, err)
		}
	}
	for i, o := range g.Outputs {
		if err := c.output(i); err != nil {
			err = fmt.Errorf("ir: \"output %%%d -> s%d\": %w", o.Value, o.Slot, err)
			if s := g.source; s != nil && i < len(s.outputs) {
				return s.outputs[i].error(err)
			}
			return err
		}
	}
	return nil
}

// Check compares a node with the rules of its op: operands, dtypes and sizes. It is the part of Verify about one
// node; a caller uses it for a node that it has just made.
func (g *Graph) Check(id NodeID) error {
	c := checker{g: g}
	return c.node(id)
}

type checker struct {
	g       *Graph
	symbols map[uint32]int // parameter slot -> symbol that it holds
	// The argument that is being checked, and its item, or none.
	arg, item int
}

// tables checks the parts of the graph that belong to no node.
func (c *checker) tables() error {
	g := c.g
	if len(g.Def) != len(g.Types) {
		return fmt.Errorf("%d types for %d values", len(g.Types), len(g.Def))
	}
	c.symbols = map[uint32]int{}
	for i, s := range g.Syms {
		if s.Quotient != nil {
			if err := c.quotient(i, s.Quotient); err != nil {
				return fmt.Errorf("symbol %d: %w", i, err)
			}
			continue
		}
		for _, slot := range append([]uint32{s.Slot}, s.Also...) {
			if j, dup := c.symbols[slot]; dup {
				return fmt.Errorf("parameter slot %d holds symbols %d and %d", slot, j, i)
			}
			c.symbols[slot] = i
		}
	}
	for i, d := range g.equal {
		if err := c.dim(d); err != nil {
			return fmt.Errorf("symbol %d: %w", i, err)
		}
		if j, ok := d.Sym(); ok && j > i {
			return fmt.Errorf("symbol %d is represented by the later symbol %d", i, j)
		}
	}
	for i, r := range g.Requires {
		for _, d := range append(append([]Dim(nil), r.Left...), r.Right...) {
			if err := c.dim(d); err != nil {
				return fmt.Errorf("requirement %d: %w", i, err)
			}
		}
	}
	for i, n := range g.Numbers {
		if err := c.freeSlot(n.Slot); err != nil {
			return fmt.Errorf("required number %d: %w", i, err)
		}
	}
	if err := c.groups(); err != nil {
		return err
	}
	n := 0
	for id := range g.Nodes {
		node := &g.Nodes[id]
		if int(node.First) != n {
			return fmt.Errorf("node %d defines %%%d, not %%%d", id, node.First, n)
		}
		n += int(node.N)
		if n > len(g.Types) {
			return fmt.Errorf("node %d defines more values than the graph has", id)
		}
		for v := node.First; int(v) < n; v++ {
			if int(g.Def[v]) != id {
				return fmt.Errorf("%%%d is defined by node %d, not %d", v, id, g.Def[v])
			}
		}
	}
	if n != len(g.Types) {
		return fmt.Errorf("the nodes define %d values of %d", n, len(g.Types))
	}
	return nil
}

// groups checks that the nodes of each group are adjacent, and that the groups are numbered in the order of their
// nodes.
func (c *checker) groups() error {
	g := c.g
	last, count := uint32(0), uint32(0)
	for id := range g.Nodes {
		switch k := g.Nodes[id].Group; {
		case k == 0 || k == last:
		case k != count+1 || int(k) > len(g.Groups):
			return fmt.Errorf("node %d is of group %d of %d, after group %d", id, k, len(g.Groups), count)
		case len(g.Groups[k-1].Kernels) == 0:
			return fmt.Errorf("group %d has no kernel", k)
		default:
			count = k
		}
		last = g.Nodes[id].Group
	}
	if int(count) != len(g.Groups) {
		return fmt.Errorf("%d of %d groups have nodes", count, len(g.Groups))
	}
	for i, group := range g.Groups {
		for _, t := range group.Kernels {
			if t == 0 || t >= NumTemplates {
				return fmt.Errorf("group %d has a kernel of no template", i+1)
			}
		}
	}
	return nil
}

func (c *checker) node(id NodeID) error {
	g, n := c.g, &c.g.Nodes[id]
	c.arg, c.item = none, none
	if n.Op == OpInvalid || n.Op >= NumOps {
		return fmt.Errorf("no such op")
	}
	if n.ArgLo > n.ArgHi || int(n.ArgHi) > len(g.Args) {
		return fmt.Errorf("arguments %d to %d of %d", n.ArgLo, n.ArgHi, len(g.Args))
	}
	if n.Flags&^(FlagRNG|FlagEffect|FlagDynamic) != 0 {
		return fmt.Errorf("unknown flags %#x", n.Flags)
	}
	if n.Origin.File == "" && n.Origin.Line != 0 {
		return fmt.Errorf("an origin with a line but no file")
	}
	for i, a := range g.NodeArgs(id) {
		c.arg = i
		if err := c.reference(id, a, true); err != nil {
			return err
		}
	}
	c.arg = none
	for i := range n.N {
		if err := c.typ(g.Types[n.First+ValueID(i)], n.Op == OpCall); err != nil {
			return fmt.Errorf("result %d: %w", i, err)
		}
	}
	if n.Op == OpCall {
		return c.call(id)
	}
	if n.N != 1 {
		return fmt.Errorf("%s has one result, not %d", n.Op, n.N)
	}
	if n.Flags != 0 {
		return fmt.Errorf("only calls have flags")
	}
	if err := c.shapeOfArgs(id); err != nil {
		return err
	}
	switch result := g.Types[n.First]; Info(n.Op).Kind {
	case KindLeaf:
		return c.leaf(n, result)
	case KindMemory:
		return c.memory(n, result)
	default:
		return c.own(n, result)
	}
}

// reference checks that an argument refers to an earlier value, and to a string or list that exists.
func (c *checker) reference(id NodeID, a Arg, lists bool) error {
	g := c.g
	if a.Write && a.Kind != ArgValue {
		return fmt.Errorf("an argument that is no operand is marked as written")
	}
	if a.Sub != 0 && a.Kind != ArgList {
		return fmt.Errorf("an argument that is no list has a kind of list")
	}
	switch a.Kind {
	case ArgNone, ArgInt, ArgFloat:
		return nil
	case ArgValue:
		return c.operand(id, a)
	case ArgDim:
		return c.dim(Dim(a.V))
	case ArgBool:
		if a.V != 0 && a.V != 1 {
			return fmt.Errorf("a bool of value %d", a.V)
		}
	case ArgDType:
		if a.V <= 0 || a.V >= int64(NumDTypes) {
			return fmt.Errorf("no dtype has the number %d", a.V)
		}
	case ArgLayout, ArgDevice, ArgMemFmt:
		if a.V < 0 || a.V > math.MaxUint8 {
			return fmt.Errorf("%d is not a layout, device or memory format", a.V)
		}
	case ArgGen:
		if a.V < 0 || a.V > math.MaxUint32 {
			return fmt.Errorf("generator in slot %d", a.V)
		}
		return c.freeSlot(uint32(a.V))
	case ArgStr:
		if a.V < 0 || a.V >= int64(len(g.Strings)) {
			return fmt.Errorf("string %d of %d", a.V, len(g.Strings))
		}
	case ArgList:
		if !lists {
			return fmt.Errorf("a list in a list")
		}
		return c.list(id, a)
	default:
		return fmt.Errorf("an argument of unknown kind %d", a.Kind)
	}
	return nil
}

func (c *checker) operand(id NodeID, a Arg) error {
	g := c.g
	if a.V < 0 || a.V >= int64(len(g.Types)) {
		return fmt.Errorf("no value %%%d", a.V)
	}
	def := g.Def[a.V]
	if def >= id {
		return fmt.Errorf("%%%d is used before its definition", a.V)
	}
	if !g.Types[a.V].DType.Valid() {
		return fmt.Errorf("%%%d is undefined", a.V)
	}
	if a.Write && g.Immediate(ValueID(a.V)) {
		return fmt.Errorf("%%%d is written, but it is a %s", a.V, g.Nodes[def].Op)
	}
	return nil
}

func (c *checker) list(id NodeID, a Arg) error {
	lo, n := a.V>>32, a.V&0xffffffff
	if lo < 0 || lo+n > int64(len(c.g.ListArgs)) {
		return fmt.Errorf("list items %d to %d of %d", lo, lo+n, len(c.g.ListArgs))
	}
	if a.Sub == 0 || int(a.Sub) >= len(listNames) {
		return fmt.Errorf("a list of unknown kind %d", a.Sub)
	}
	for i, item := range c.g.List(a) {
		c.item = i
		if err := c.reference(id, item, false); err != nil {
			return err
		}
		if !allows(a.Sub, item.Kind) && !(allows(a.Sub, ArgKind(catalogue.TagNumber)) && c.g.IsNumber(item)) {
			return fmt.Errorf("item %d does not fit in a list of %s", i, listNames[a.Sub])
		}
	}
	c.item = none
	return nil
}

// listItems are the argument kinds that an item of a list may be, as bits, by kind of list.
var listItems = func() (kinds [catalogue.NumLists]uint32) {
	for i := range catalogue.ListKinds {
		kinds[i+1] = catalogue.ListKinds[i].Tags()
	}
	return kinds
}()

// allows reports whether a list of this kind may hold an argument of that kind.
func allows(list uint8, kind ArgKind) bool { return listItems[list]>>kind&1 != 0 }

func (c *checker) dim(d Dim) error {
	if i, ok := d.Sym(); ok && i >= len(c.g.Syms) {
		return fmt.Errorf("symbol %d of %d", i, len(c.g.Syms))
	}
	return nil
}

func (c *checker) typ(t Type, undefined bool) error {
	if t.DType == Invalid && undefined {
		if len(t.Dims)+len(t.Strides) > 0 {
			return fmt.Errorf("an undefined tensor with sizes")
		}
		return nil
	}
	if !t.DType.Valid() {
		return fmt.Errorf("no dtype has the number %d", t.DType)
	}
	if len(t.Dims) > maxRank {
		return fmt.Errorf("rank %d exceeds %d", len(t.Dims), maxRank)
	}
	if t.Strides != nil && len(t.Strides) != len(t.Dims) {
		return fmt.Errorf("%d strides for %d sizes", len(t.Strides), len(t.Dims))
	}
	for _, dims := range [][]Dim{t.Dims, t.Strides} {
		for _, d := range dims {
			if err := c.dim(d); err != nil {
				return err
			}
			if t.Strides != nil && c.g.Quotient(d) != nil {
				return fmt.Errorf("a quotient is a size of row-major memory only")
			}
		}
	}
	return nil
}

// quotient checks a symbol that is a quotient: it is made of earlier sizes, and no divisor is 0.
func (c *checker) quotient(i int, q *Quotient) error {
	if len(q.Of) == 0 || q.Of[0] >= 0 {
		return fmt.Errorf("a quotient begins with a symbol")
	}
	for _, d := range slices.Concat(q.Of, q.By) {
		if err := c.dim(d); err != nil {
			return err
		}
		if j, ok := d.Sym(); ok && j >= i {
			return fmt.Errorf("it is a quotient of symbol %d, which is no earlier one", j)
		}
	}
	if slices.Contains(q.By, Const(0)) {
		return fmt.Errorf("it is divided by 0")
	}
	return nil
}

// freeSlot checks that a parameter slot holds no symbol.
func (c *checker) freeSlot(slot uint32) error {
	if i, ok := c.symbols[slot]; ok {
		return fmt.Errorf("parameter slot %d holds symbol %d", slot, i)
	}
	return nil
}

func (c *checker) leaf(n *Node, t Type) error {
	if n.Op == OpInput {
		return nil
	}
	if len(t.Dims) != 0 || t.Strides != nil {
		return fmt.Errorf("a number of type %s has no sizes", c.g.TypeString(t))
	}
	if n.Op == OpConst {
		return c.constant(n, t.DType)
	}
	if d := t.DType; n.Op == OpParam && d != F64 && d != I64 && d != Bool && d != C128 {
		return fmt.Errorf("a number is f64, i64, b8 or c128, not %s", d)
	}
	if n.ArgHi > n.ArgLo { // the number first seen
		if n.Op != OpParam {
			return fmt.Errorf("a %s has no argument", n.Op)
		}
		if err := c.constant(n, t.DType); err != nil {
			return err
		}
	}
	if t.DType.Size() > 8 { // a complex number takes two words
		if err := c.freeSlot(n.Slot + 1); err != nil {
			return err
		}
	}
	return c.freeSlot(n.Slot)
}

// constant checks that the literal is of the result's dtype.
func (c *checker) constant(n *Node, d DType) error {
	kind, ok := map[DType]ArgKind{F64: ArgFloat, I64: ArgInt, Bool: ArgBool}[d]
	if a := c.g.Args[n.ArgLo]; !ok || a.Kind != kind {
		return fmt.Errorf("a constant is a literal f64, i64 or b8")
	}
	return nil
}

func (c *checker) memory(n *Node, t Type) error {
	g := c.g
	args := g.Args[n.ArgLo:n.ArgHi]
	if n.Op == OpEmpty {
		return nil
	}
	x := ValueID(args[0].V)
	if g.Immediate(x) {
		return fmt.Errorf("%%%d is a %s: it has no storage", x, g.Nodes[g.Def[x]].Op)
	}
	// A resize reads its storage as bytes, u8[old]: a view of a storage of any other type.
	if n.Op == OpUpdate && g.Root(x) != x {
		return fmt.Errorf("%%%d is a view: %s needs a whole storage", x, n.Op)
	}
	if n.Op == OpResize {
		bytes := func(t Type) bool { return t.DType == U8 && len(t.Dims) == 1 && t.Strides == nil }
		if !bytes(g.Types[x]) || !bytes(t) {
			return fmt.Errorf("a resize goes from u8[old] to u8[new]")
		}
		return nil
	}
	if err := c.dim(n.Offset); err != nil {
		return fmt.Errorf("offset: %w", err)
	}
	region := t
	if n.Op == OpUpdate {
		region = g.Types[args[1].V]
		if !g.SameType(t, g.Types[x]) {
			return fmt.Errorf("the result is %s, but %%%d is %s", g.TypeString(t), x, g.TypeString(g.Types[x]))
		}
		if g.IsNumber(args[1]) {
			return fmt.Errorf("%%%d is a number, not a tensor", args[1].V)
		}
	}
	end, known := extent(region, n.Offset)
	if size, ok := extent(g.Types[g.Root(x)], 0); ok && known && end > size {
		return fmt.Errorf("the region ends at byte %d of a storage of %d", end, size)
	}
	return nil
}

// extent is the number of bytes up to the end of a region. It is false if a symbol decides the number or if the
// number exceeds 63 bits.
func extent(t Type, offset Dim) (bytes uint64, known bool) {
	if offset < 0 {
		return 0, false
	}
	last := uint64(offset) // in elements
	step := uint64(1)      // contiguous stride
	for i := len(t.Dims) - 1; i >= 0; i-- {
		d, s := t.Dims[i], Dim(step)
		if t.Strides != nil {
			s = t.Strides[i]
		}
		if d < 0 || s < 0 {
			return 0, false
		}
		if d == 0 {
			return 0, true
		}
		hi, way := bits.Mul64(uint64(d-1), uint64(s))
		hi2, next := bits.Mul64(step, uint64(d))
		if last += way; hi|hi2 != 0 || way > math.MaxInt64/4 || next > math.MaxInt64/4 || last > math.MaxInt64/4 {
			return 0, false
		}
		step = next
	}
	return (last + 1) * uint64(t.DType.Size()), true
}

// shapeOfArgs checks the number and the kinds of the arguments of an op with a row.
func (c *checker) shapeOfArgs(id NodeID) error {
	info := Info(c.g.Nodes[id].Op)
	args := c.g.NodeArgs(id)
	want := max(info.Arity(), 0)
	if info.Kind == KindReduce {
		want += 2
	}
	if info.Op == OpConst || info.Op == OpParam && len(args) == 1 {
		want++
	}
	if len(args) != want {
		return fmt.Errorf("%s takes %d arguments, not %d", info.Name, want, len(args))
	}
	for i, a := range args[:info.Arity()] {
		if a.Kind != ArgValue {
			return fmt.Errorf("argument %d is not an operand", i)
		}
		if a.Write {
			return fmt.Errorf("only calls write")
		}
	}
	if info.Kind == KindReduce && (args[1].Kind != ArgList || args[1].Sub != ListInts || args[2].Kind != ArgBool) {
		return fmt.Errorf("%s takes a list of dims and a bool", info.Name)
	}
	return nil
}

func (c *checker) own(n *Node, t Type) error {
	g := c.g
	args := g.Args[n.ArgLo:n.ArgHi]
	d, err := g.resultDType(n.Op, args, t.DType)
	if err != nil {
		return err
	}
	if d != t.DType {
		return fmt.Errorf("the result is %s, not %s", d, t.DType)
	}
	dims, err := g.resultDims(n.Op, args)
	if err != nil {
		return err
	}
	if !g.SameDims(dims, t.Dims) {
		return fmt.Errorf("the result is %s, not %s", g.TypeString(Type{DType: d, Dims: dims}), g.TypeString(t))
	}
	return nil
}

func (c *checker) call(id NodeID) error {
	g, n := c.g, &c.g.Nodes[id]
	if int(n.Name) >= len(g.Strings) || g.Strings[n.Name] == "" {
		return fmt.Errorf("a call without a name")
	}
	writes := g.Writes(id)
	fresh := int(n.N) - len(writes)
	if fresh < 0 {
		return fmt.Errorf("%d written operands, but %d results", len(writes), n.N)
	}
	for i, w := range writes {
		v := n.First + ValueID(fresh+i)
		if !g.SameType(g.Types[v], g.Types[w]) {
			want, is := g.TypeString(g.Types[w]), g.TypeString(g.Types[v])
			return fmt.Errorf("%%%d is the new content of %%%d: it is %s, not %s", v, w, want, is)
		}
	}
	return c.aten(id)
}

func (c *checker) output(i int) error {
	g, o := c.g, c.g.Outputs[i]
	if int(o.Value) >= len(g.Types) {
		return fmt.Errorf("no value %%%d", o.Value)
	}
	if !g.Types[o.Value].DType.Valid() {
		return fmt.Errorf("%%%d is undefined", o.Value)
	}
	if op := g.Nodes[g.Def[o.Value]].Op; op == OpView || g.Immediate(o.Value) {
		return fmt.Errorf("%%%d is a %s, not a whole storage", o.Value, op)
	}
	for _, p := range g.Outputs[:i] {
		if p.Slot == o.Slot {
			return fmt.Errorf("slot %d is an output already", o.Slot)
		}
	}
	return nil
}
