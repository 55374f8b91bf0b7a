// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package compare builds the graph of MYCELYA_CHECK=3: it runs a program as recorded and as optimised, and fails where
// they differ. It never runs anything itself.
package compare

import (
	"math"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
)

// Graph computes a program as it was recorded, and in addition as the passes left it. before is the graph that
// passes.Run was given, after the graph that it returned. The additional part has each group in own ops, as its kernels
// compute it, and each node that a pass has changed. Each such node gets operands as recorded, so that a difference is
// found at the node that causes it. Nodes with flags run once. Values that depend on uninitialised memory are not
// compared.
//
// Where a value differs by more than rounding, an operator of the worker fails with the place of the node. All outputs
// depend on it.
func Graph(before, after *ir.Graph) *ir.Graph {
	whole := map[ir.NodeID]string{}
	for id := range after.Nodes {
		if after.Nodes[id].Group == 0 {
			whole[ir.NodeID(id)] = "it is in no group"
		}
	}
	b := &builder{before: before, after: after, e: decomp.Expand(after, whole), out: before.Clone()}
	b.out.Outputs = nil
	b.out.Syms = append(b.out.Syms, b.e.Graph.Syms[len(b.out.Syms):]...) // quotients of sizes
	for i := range b.out.Syms {                                          // sizes that the expansion has found equal
		b.out.UnifyDims(ir.SymDim(i), b.e.Graph.Find(ir.SymDim(i)))
	}
	b.out.Requires, b.out.Numbers = after.Requires, after.Numbers
	b.unknown = unknown(b.out)
	b.pair()
	b.token()
	for i := range b.e.Graph.Nodes {
		b.node(ir.NodeID(i))
	}
	for _, o := range before.Outputs {
		after := b.call("mycelya::after", ir.Arg{Kind: ir.ArgValue, V: int64(o.Value), Write: true}, ir.Value(b.first))
		b.out.Outputs = append(b.out.Outputs, ir.Output{Value: after, Slot: o.Slot})
	}
	return b.out
}

// builder adds nodes to out, a copy of before.
type builder struct {
	before, after *ir.Graph
	e             *decomp.Expansion
	out           *ir.Graph                 // nodes and values of before keep their numbers
	at            ir.NodeID                 // the node of after that is being added
	paired        []ir.NodeID               // by node of after: the node of before with the same record, or noNode
	recorded      []ir.ValueID              // by value of after: the value of before
	made          []ir.ValueID              // by value of the expansion: the value of out
	of            map[ir.ValueID]ir.ValueID // by value of the expansion: the same value of after
	unknown       []bool                    // by value of before: depends on uninitialised memory
	first         ir.ValueID                // the token: poisoned by the first comparison that fails
}

const noNode = ^ir.NodeID(0)

// pair finds for each node of after the node of before with the same record.
func (b *builder) pair() {
	byRecord := map[int32]ir.NodeID{}
	for id := range b.before.Nodes {
		if n := &b.before.Nodes[id]; (n.Op == ir.OpCall || n.Op.Own()) && n.Record >= 0 {
			byRecord[n.Record] = ir.NodeID(id)
		}
	}
	b.paired = make([]ir.NodeID, len(b.after.Nodes))
	b.recorded = make([]ir.ValueID, len(b.after.Types))
	for v := range b.recorded {
		b.recorded[v] = decomp.None
	}
	for id := range b.after.Nodes {
		n := &b.after.Nodes[id]
		b.paired[id] = noNode
		if p, ok := byRecord[n.Record]; ok && (n.Op == ir.OpCall || n.Op.Own()) && b.before.Nodes[p].N == n.N {
			b.paired[id] = p
			for i := range ir.ValueID(n.N) {
				b.recorded[n.First+i] = b.before.Nodes[p].First + i
			}
		}
	}
	b.made = make([]ir.ValueID, len(b.e.Graph.Types))
	b.of = map[ir.ValueID]ir.ValueID{}
	for v, e := range b.e.To {
		if e != decomp.None {
			b.of[e] = ir.ValueID(v)
		}
	}
}

// node adds a node of the expansion. A node with flags, and a node that no pass has changed, is the recorded one.
func (b *builder) node(id ir.NodeID) {
	e := b.e.Graph
	n := e.Nodes[id]
	if n.Op == ir.OpCall && decomp.Checks(e.CallName(id)) {
		return // the recorded operator checks its operands
	}
	b.at = b.e.Of[id]
	old := &b.after.Nodes[b.at]
	if p := b.paired[b.at]; p != noNode && (n.Flags != 0 || old.Group == 0 && b.alike(p, b.at)) {
		for i := range ir.ValueID(n.N) {
			b.made[n.First+i] = b.before.Nodes[p].First + i
			if v, is := b.of[n.First+i]; is { // the mask of a dropout is not its first result
				b.made[n.First+i] = b.recorded[v]
			}
		}
		return
	}
	if n.Op == ir.OpCall {
		n.Name = b.out.Intern(e.Strings[n.Name])
	}
	var args []ir.Arg
	for _, a := range e.NodeArgs(id) {
		args = append(args, b.arg(a))
	}
	first := b.out.Nodes[b.out.Add(n, args, e.Types[n.First:n.First+ir.ValueID(n.N)])].First
	b.out.Nodes[b.out.Def[first]].Group = 0
	for i := range ir.ValueID(n.N) {
		b.made[n.First+i] = first + i
		v, is := b.of[n.First+i]
		if want := decomp.None; is {
			if want = b.recorded[v]; want != decomp.None && e.Types[n.First+i].DType.Valid() && !b.unknown[want] {
				b.compare(n.First+i, first+i, want)
			}
		}
	}
}

// alike reports whether two nodes have the same operator.
func (b *builder) alike(p, id ir.NodeID) bool {
	x, y := &b.before.Nodes[p], &b.after.Nodes[id]
	return x.Op == y.Op && (x.Op != ir.OpCall || b.before.CallName(p) == b.after.CallName(id))
}

func (b *builder) arg(a ir.Arg) ir.Arg {
	switch a.Kind {
	case ir.ArgValue:
		v := ir.ValueID(a.V)
		a.V = int64(b.made[v])
		// A result of another node is taken as recorded.
		if of, ok := b.of[v]; ok && b.recorded[of] != decomp.None && b.after.Def[of] != b.at {
			a.V = int64(b.recorded[of])
		}
	case ir.ArgStr:
		a.V = int64(b.out.Intern(b.e.Graph.Strings[a.V]))
	case ir.ArgList:
		items := append([]ir.Arg(nil), b.e.Graph.List(a)...)
		for i := range items {
			items[i] = b.arg(items[i])
		}
		return b.out.AddList(a.Sub, items)
	}
	return a
}

// token adds the value that every comparison writes. The first comparison that fails poisons it.
func (b *builder) token() {
	t := ir.Type{DType: ir.U8, Dims: []ir.Dim{}}
	empty := b.out.Nodes[b.out.Add(ir.Node{Op: ir.OpEmpty, Record: -1}, nil, []ir.Type{t})].First
	b.at = 0
	b.first = b.call("aten::zero_", ir.Arg{Kind: ir.ArgValue, V: int64(empty), Write: true})
}

// call adds a call that writes its first operand, and returns the new content.
func (b *builder) call(name string, args ...ir.Arg) ir.ValueID {
	n := ir.Node{Op: ir.OpCall, Name: b.out.Intern(name), Record: -1}
	if len(b.after.Nodes) > 0 {
		old := &b.after.Nodes[b.at]
		n.Record, n.Origin = old.Record, old.Origin
	}
	return b.out.Nodes[b.out.Add(n, args, []ir.Type{b.out.Types[args[0].V]})].First
}

// sources are recorded values from which a value of the expansion is computed. Their magnitude bounds the error of a
// result in which they cancel.
func (b *builder) sources(e ir.ValueID) []ir.Arg {
	const enough = 16
	var out []ir.Arg
	seen := map[ir.ValueID]bool{}
	for next := []ir.ValueID{e}; len(next) > 0 && len(out) < enough; next = next[1:] {
		def := b.e.Graph.Def[next[0]]
		for _, v := range b.e.Graph.Operands(def) {
			if seen[v] {
				continue
			}
			seen[v] = true
			r := decomp.None
			if of, ok := b.of[v]; ok {
				r = b.recorded[of]
			}
			if op := b.e.Graph.Nodes[b.e.Graph.Def[v]].Op; op == ir.OpInput || op == ir.OpView {
				r = b.made[v]
			}
			if r != decomp.None && b.out.Types[r].DType.Is(ir.Floats) && !(int(r) < len(b.unknown) && b.unknown[r]) {
				out = append(out, ir.Value(r))
			}
			if b.e.Of[b.e.Graph.Def[v]] == b.at {
				next = append(next, v)
			}
		}
	}
	return out
}

// compare adds the comparison of a value with the recorded one. e is the value in the expansion.
func (b *builder) compare(e, got, want ir.ValueID) {
	name := b.after.Nodes[b.at].Op.String()
	if b.after.Nodes[b.at].Op == ir.OpCall {
		name = b.after.CallName(b.at)
	}
	token := ir.Arg{Kind: ir.ArgValue, V: int64(b.first), Write: true}
	b.first = b.call("mycelya::expect_close", token, ir.Value(got), ir.Value(want),
		b.out.AddList(ir.ListTensors, b.sources(e)),
		ir.Arg{Kind: ir.ArgStr, V: int64(b.out.Intern(name))},
		ir.Arg{Kind: ir.ArgFloat, V: int64(math.Float64bits(rounding(b.out.Types[want].DType)))})
}

// rounding is the allowed difference between two ways to compute a value, relative to its largest element: about a
// hundred times the dtype's own rounding. A reduction adds up one error per term, and an exponential enlarges errors.
func rounding(d ir.DType) float64 {
	switch d.Real() {
	case ir.F64:
		return 1e-12
	case ir.F32:
		return 1e-4
	case ir.F16:
		return 1e-2
	case ir.BF16:
		return 5e-2
	}
	return 0
}

// unknown reports by value whether it depends on uninitialised memory.
func unknown(g *ir.Graph) []bool {
	out := make([]bool, len(g.Types))
	for i := range g.Nodes {
		id := ir.NodeID(i)
		n := &g.Nodes[i]
		is := n.Op == ir.OpEmpty || n.Op == ir.OpResize || n.Op == ir.OpCall && g.Row(id).Uninitialised
		g.EachArg(id, func(a ir.Arg) {
			if a.Kind == ir.ArgValue && !(a.Write && n.Op == ir.OpCall && g.Row(id).Overwrites) {
				is = is || out[a.V]
			}
		})
		for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
			out[v] = is
		}
	}
	return out
}
