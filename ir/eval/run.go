// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package eval

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/ir"
)

// Run executes a graph that the verifier accepts. params are the parameter words, inputs the storages by binding slot;
// the result has the storages of the outputs by slot. Inputs are left as they are. A call is run if it has the meaning
// of an own op or is the in-place variant of one; any other call is an error.
func Run(g *ir.Graph, params []uint64, inputs map[uint32][]byte) (map[uint32][]byte, error) {
	r := runner{g: g, params: params, inputs: inputs, values: make([]*Tensor, len(g.Types))}
	for id := range g.Nodes {
		if err := r.node(ir.NodeID(id)); err != nil {
			return nil, fmt.Errorf("eval: node %d, %q: %w", id, g.NodeString(ir.NodeID(id)), err)
		}
	}
	out := make(map[uint32][]byte, len(g.Outputs))
	for _, o := range g.Outputs {
		out[o.Slot] = bytes.Clone(r.values[o.Value].Data)
	}
	return out, nil
}

type runner struct {
	g      *ir.Graph
	params []uint64
	inputs map[uint32][]byte
	values []*Tensor
}

func (r *runner) dim(d ir.Dim) (int64, error) {
	d = r.g.Find(d)
	i, ok := d.Sym()
	if !ok {
		return int64(d), nil
	}
	s := &r.g.Syms[i]
	if s.Quotient == nil {
		w, err := r.param(s.Slot)
		return int64(w), err
	}
	of, err := r.product(s.Quotient.Of)
	if err != nil {
		return 0, err
	}
	by, err := r.product(s.Quotient.By)
	if err != nil {
		return 0, err
	}
	if by == 0 || of%by != 0 {
		return 0, fmt.Errorf("%d can't be divided by %d", of, by)
	}
	return of / by, nil
}

func (r *runner) product(dims []ir.Dim) (int64, error) {
	n := int64(1)
	for _, d := range dims {
		v, err := r.dim(d)
		if err != nil {
			return 0, err
		}
		n *= v
	}
	return n, nil
}

func (r *runner) param(slot uint32) (uint64, error) {
	if int(slot) >= len(r.params) {
		return 0, fmt.Errorf("no parameter %d", slot)
	}
	return r.params[slot], nil
}

func (r *runner) dims(dims []ir.Dim) ([]int64, error) {
	out := make([]int64, len(dims))
	for i, d := range dims {
		var err error
		if out[i], err = r.dim(d); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// window is a tensor of a type without its storage.
func (r *runner) window(t ir.Type) (*Tensor, error) {
	sizes, err := r.dims(t.Dims)
	if err != nil {
		return nil, err
	}
	strides := Contiguous(sizes)
	if t.Strides != nil {
		if strides, err = r.dims(t.Strides); err != nil {
			return nil, err
		}
	}
	return &Tensor{DType: t.DType, Sizes: sizes, Strides: strides}, nil
}

// fresh is a tensor of a type in a storage of zeros.
func (r *runner) fresh(t ir.Type) (*Tensor, error) {
	w, err := r.window(t)
	if err != nil {
		return nil, err
	}
	return New(w.DType, w.Sizes, w.Strides)
}

func (r *runner) node(id ir.NodeID) error {
	n := &r.g.Nodes[id]
	args := r.g.NodeArgs(id)
	if n.Op == ir.OpCall {
		return r.call(id)
	}
	t, err := r.compute(n, args, r.g.Types[n.First])
	r.values[n.First] = t
	return err
}

func (r *runner) compute(n *ir.Node, args []ir.Arg, result ir.Type) (*Tensor, error) {
	switch n.Op {
	case ir.OpInput:
		t, err := r.window(result)
		if err != nil {
			return nil, err
		}
		data, ok := r.inputs[n.Slot]
		if !ok {
			return nil, fmt.Errorf("no input %d", n.Slot)
		}
		t.Data = data
		return t, t.check()
	case ir.OpParam, ir.OpScalar:
		return r.number(n.Slot, result.DType)
	case ir.OpConst:
		return constant(args[0])
	case ir.OpEmpty:
		return r.fresh(result)
	case ir.OpView:
		return r.region(r.value(args[0]).Data, result, n.Offset)
	case ir.OpUpdate:
		x, y := *r.value(args[0]), r.value(args[1])
		x.Data = bytes.Clone(x.Data)
		region, err := r.region(x.Data, r.g.Types[args[1].V], n.Offset)
		if err != nil {
			return nil, err
		}
		return &x, Copy(region, y)
	case ir.OpResize:
		t, err := r.fresh(result)
		if err == nil {
			copy(t.Data, r.value(args[0]).Data)
		}
		return t, err
	}
	t, err := r.fresh(result)
	if err != nil {
		return nil, err
	}
	return t, eval(n.Op, ownArgs(r.g, r.values, n.Op, args), t)
}

// number is the 0-dim tensor that parameter words hold.
func (r *runner) number(slot uint32, d ir.DType) (*Tensor, error) {
	t, err := New(d, nil, nil)
	if err != nil {
		return nil, err
	}
	var words [16]byte
	for i := range (len(t.Data) + 7) / 8 {
		w, err := r.param(slot + uint32(i))
		if err != nil {
			return nil, err
		}
		binary.LittleEndian.PutUint64(words[8*i:], w)
	}
	copy(t.Data, words[:])
	return t, nil
}

// constant is the 0-dim tensor of a literal.
func constant(a ir.Arg) (*Tensor, error) {
	d := map[ir.ArgKind]ir.DType{ir.ArgFloat: ir.F64, ir.ArgInt: ir.I64, ir.ArgBool: ir.Bool}[a.Kind]
	t, err := New(d, nil, nil)
	if err != nil {
		return nil, err
	}
	var word [8]byte
	binary.LittleEndian.PutUint64(word[:], uint64(a.V))
	copy(t.Data, word[:])
	return t, nil
}

// region is a window of a type on a storage.
func (r *runner) region(data []byte, t ir.Type, offset ir.Dim) (*Tensor, error) {
	w, err := r.window(t)
	if err != nil {
		return nil, err
	}
	if w.Offset, err = r.dim(offset); err != nil {
		return nil, err
	}
	w.Data = data
	return w, w.check()
}

func (r *runner) value(a ir.Arg) *Tensor { return r.values[a.V] }

// ownArgs turns the arguments of an own op into values.
func ownArgs(g *ir.Graph, values []*Tensor, op ir.Op, args []ir.Arg) []Arg {
	arity := ir.Info(op).Arity()
	out := make([]Arg, 0, arity+1)
	for _, a := range args[:arity] {
		out = append(out, Arg{Tensor: values[a.V], Number: g.IsNumber(a)})
	}
	if ir.Info(op).Kind == ir.KindReduce {
		attr := Arg{KeepDim: args[arity+1].V != 0}
		for _, d := range g.List(args[arity]) {
			attr.Dims = append(attr.Dims, d.V)
		}
		out = append(out, attr)
	}
	return out
}

// call runs a call by way of the own op that it is a form of.
func (r *runner) call(id ir.NodeID) error {
	g, n := r.g, &r.g.Nodes[id]
	name, args := g.CallName(id), g.NodeArgs(id)
	writes := g.Writes(id)
	if functional, ok := ir.FunctionalName(name); ok && len(writes) == 1 && n.N == 1 {
		name = functional
		args = append([]ir.Arg(nil), args...)
		for i := range args {
			args[i].Write = false
		}
	} else if len(writes) > 0 || n.N != 1 {
		return fmt.Errorf("no own op has the meaning of %s", name)
	}
	scratch := *g // FromATen makes lists
	scratch.ListArgs = slices.Clip(g.ListArgs)
	op, own, ok := ir.FromATen(&scratch, name, args)
	if !ok {
		return fmt.Errorf("no own op has the meaning of %s with these arguments", name)
	}
	t, err := r.fresh(g.Types[n.First])
	if err != nil {
		return err
	}
	r.values[n.First] = t
	return eval(op, ownArgs(&scratch, r.values, op, own), t)
}
