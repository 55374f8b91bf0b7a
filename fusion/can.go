// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fusion

import (
	"fmt"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
	"github.com/mycelya/mycelya/kernel"
)

// obstacle is why kernels do not compute a node of an expansion. It is the only answer to that question: Find keeps the
// node out of loops, Loops splits groups around it, and dumps and codegen show its text.
type obstacle uint8

const (
	computed obstacle = iota // kernels compute it
	idle                     // it computes nothing: an input, a number, a view
	drawn                    // a call in front of the kernels makes a mask of random numbers
	checked                  // a call in front of the kernels that checks indices or divisors
	planned                  // a loop can hold it, but kernel IR has no instruction for it yet
	device                   // it draws random numbers, and the worker's own operators draw others
	memory                   // it makes, resizes or updates a storage
	operator                 // an operator without a row or a decomposition, or one that stays whole
	dtype                    // kernels, or PyTorch, do not compute it in its dtype
	rank                     // more dims than kernel IR allows
	tensorFill
	callPower // PyTorch computes some powers in another way, and the exponent is known only in the call
	computedDraw
)

// loops reports whether a loop can hold the node.
func (o obstacle) loops() bool { return o == computed || o == planned }

// text is the reason as a text for users.
func (f *finder) text(id ir.NodeID, o obstacle) string {
	g := f.g
	n := &g.Nodes[id]
	name := n.Op.String()
	if n.Op == ir.OpCall {
		name = g.CallName(id)
	}
	switch o {
	case planned:
		return fmt.Sprintf("no kernel computes %s yet", name)
	case device:
		return "it draws random numbers, which on this device are its own operators'"
	case dtype:
		return fmt.Sprintf("no kernel computes %s of %s", name, f.refusedDType(id))
	case rank:
		return fmt.Sprintf("a kernel has at most %d dims", kernel.MaxRank)
	case tensorFill:
		return "a fill with a tensor"
	case callPower:
		return "a power to a number that each call has anew"
	case computedDraw:
		return "it draws with a probability that is computed"
	}
	if why := f.expansion.Whole[f.of[id]]; why != "" {
		name += ": " + why
	}
	return fmt.Sprintf("no kernel computes %s", name)
}

// refusedDType is the dtype that keeps a node out of kernels.
func (f *finder) refusedDType(id ir.NodeID) ir.DType {
	g := f.g
	n := &g.Nodes[id]
	values := g.Operands(id)
	for i := range n.N {
		values = append(values, n.First+ir.ValueID(i))
	}
	for _, v := range values {
		if d := g.Types[v].DType; !computes(d) || d.Stored() {
			return d
		}
	}
	d, _ := CommonDType(g, id, g.NodeArgs(id))
	return d
}

// obstacleTo is why kernels do not compute a node. reads is how a call reads its operands.
func obstacleTo(g *ir.Graph, id ir.NodeID, reads catalogue.Point, o Options) obstacle {
	n := &g.Nodes[id]
	switch {
	case n.Op == ir.OpCall:
		name := g.CallName(id)
		if decomp.Checks(name) {
			return checked
		}
		switch name {
		case decomp.Draw:
			return obstacleToDraw(g, id, o)
		case decomp.Iota:
			return computed
		case decomp.Take:
			args := g.NodeArgs(id)
			if g.Root(ir.ValueID(args[0].V)) == g.Root(ir.ValueID(args[1].V)) {
				return operator
			}
		default:
			if reads != catalogue.SamePlace || n.Flags&^ir.FlagRNG != 0 {
				return operator
			}
		}
	case n.Op == ir.OpView || ir.Info(n.Op).Kind == ir.KindLeaf:
		return idle
	case ir.Info(n.Op).Kind == ir.KindMemory:
		return memory
	case !n.Op.Own():
		return operator
	}
	most := 0
	check := func(v ir.ValueID) bool {
		t := &g.Types[v]
		most = max(most, len(t.Dims))
		return computes(t.DType)
	}
	ok := true
	for v := n.First; v < n.First+ir.ValueID(n.N); v++ {
		ok = check(v) && ok
	}
	g.EachArg(id, func(a ir.Arg) { ok = ok && (a.Kind != ir.ArgValue || check(ir.ValueID(a.V))) })
	switch {
	case !ok:
		return dtype
	case most > kernel.MaxRank:
		return rank
	case reads == catalogue.SamePlace:
		return planned
	case n.Op == ir.OpCall:
		return computed
	}
	return obstacleToOwn(g, id)
}

// obstacleToDraw is the obstacle of a mask of random numbers, which a call in front of the kernels makes.
func obstacleToDraw(g *ir.Graph, id ir.NodeID, o Options) obstacle {
	if o.NoDraws {
		return device
	}
	for _, v := range g.Operands(id) {
		if !g.Immediate(v) {
			return computedDraw
		}
	}
	return drawn
}

// obstacleToOwn is the obstacle of an own op with operands and results of dtypes that kernels compute in.
func obstacleToOwn(g *ir.Graph, id ir.NodeID) obstacle {
	n := &g.Nodes[id]
	args := g.NodeArgs(id)
	switch kind := ir.Info(n.Op).Kind; {
	case kind == ir.KindFill:
		if !g.Immediate(ir.ValueID(args[1].V)) {
			return tensorFill
		}
		return requireArithmetic(g, args[:1])
	case n.Op == ir.OpAmax || n.Op == ir.OpAmin:
		return requireArithmetic(g, args[:1])
	case kind == ir.KindReduce || n.Op == ir.OpCast || n.Op == ir.OpCopy:
		return computed
	}
	_, o := computeOf(g, id)
	return o
}

// computes reports whether kernels have registers for a dtype.
func computes(d ir.DType) bool { return kernel.ClassOf(uint8(d)) != 0 }

// requireArithmetic refuses storage-only dtypes: PyTorch's operator raises the error.
func requireArithmetic(g *ir.Graph, args []ir.Arg) obstacle {
	for _, a := range args {
		if g.Types[a.V].DType.Stored() {
			return dtype
		}
	}
	return computed
}
