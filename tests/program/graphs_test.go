// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program_test

import (
	"math"

	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
)

// window is a geometry in numbers.
type window struct {
	dtype          ir.DType
	sizes, strides []int64
	offset         int64
}

func (w window) numel() int64 {
	n := int64(1)
	for _, s := range w.sizes {
		n *= s
	}
	return n
}

// end is the number of bytes up to the last element.
func (w window) end() int64 {
	if w.numel() == 0 {
		return 0
	}
	last := w.offset
	for i, s := range w.sizes {
		last += (s - 1) * w.strides[i]
	}
	return (last + 1) * int64(w.dtype.Size())
}

func contiguous(d ir.DType, sizes []int64) window {
	return window{dtype: d, sizes: sizes, strides: eval.Contiguous(sizes)}
}

// value is an SSA value with its geometry in numbers; bytes is the size of a root's storage.
type value struct {
	id    ir.ValueID
	root  ir.ValueID
	w     window
	bytes int64
	dense bool // a root without gaps between its elements
}

// random makes graphs of own ops, views, in-place calls, updates and resizes.
type random struct {
	t       *rapid.T
	g       *ir.Graph
	params  []uint64
	inputs  map[uint32][]byte
	values  []value
	scratch []bool
}

// dim is a constant or, if the size can be one, a symbol.
func (r *random) dim(v int64, symbols bool) ir.Dim {
	if v < 2 || !symbols || !rapid.Bool().Draw(r.t, "symbol") {
		return ir.Const(v)
	}
	r.params = append(r.params, uint64(v))
	return r.g.AddSymbol(uint32(len(r.params)-1), v)
}

func (r *random) typ(w window, symbols bool) ir.Type {
	t := ir.Type{DType: w.dtype, Dims: []ir.Dim{}}
	for _, s := range w.sizes {
		t.Dims = append(t.Dims, r.dim(s, symbols))
	}
	plain := eval.Contiguous(w.sizes)
	same := true
	for i := range plain {
		same = same && plain[i] == w.strides[i]
	}
	if !same {
		t.Strides = []ir.Dim{}
		for _, s := range w.strides {
			t.Strides = append(t.Strides, r.dim(s, symbols))
		}
	}
	return t
}

func (r *random) add(n ir.Node, args []ir.Arg, types ...ir.Type) ir.ValueID {
	n.Record = int32(len(r.g.Nodes))
	id := r.g.Add(n, args, types)
	r.g.InferCall(id)
	return r.g.Nodes[id].First
}

func (r *random) root(id ir.ValueID, w window) {
	dense := w.end() == w.numel()*int64(w.dtype.Size())
	r.values = append(r.values, value{id: id, root: id, w: w, bytes: w.end(), dense: dense})
}

func (r *random) sizes() []int64 {
	return rapid.SliceOfN(rapid.Int64Range(1, 4), 0, 3).Draw(r.t, "sizes")
}

func (r *random) dtype() ir.DType {
	return rapid.SampledFrom([]ir.DType{ir.F32, ir.F32, ir.F32, ir.I32, ir.I16}).Draw(r.t, "dtype")
}

func (r *random) input() {
	slot := uint32(len(r.inputs))
	w := contiguous(r.dtype(), r.sizes())
	data := make([]byte, w.end())
	for i := range data {
		data[i] = byte(rapid.IntRange(0, 63).Draw(r.t, "byte"))
	}
	r.inputs[slot] = data
	r.scratch = append(r.scratch, rapid.Bool().Draw(r.t, "scratch"))
	r.root(r.add(ir.Node{Op: ir.OpInput, Slot: slot}, nil, r.typ(w, true)), w)
}

func (r *random) pick(ok func(value) bool) (value, bool) {
	var fit []value
	for _, v := range r.values {
		if ok(v) {
			fit = append(fit, v)
		}
	}
	if len(fit) == 0 {
		return value{}, false
	}
	// Prefer recent values, because errors often need a long history.
	if rapid.Bool().Draw(r.t, "recent") {
		fit = fit[max(0, len(fit)-3):]
	}
	return rapid.SampledFrom(fit).Draw(r.t, "value"), true
}

// view makes a window on the storage of a dense value.
func (r *random) view() {
	v, ok := r.pick(func(v value) bool { return v.dense && v.bytes > 0 && v.id == v.root })
	if !ok {
		return
	}
	w := r.windowOn(v.bytes)
	if w.dtype == ir.Invalid {
		return
	}
	base := v.id
	if w2, ok := r.pick(func(o value) bool { return o.root == v.root }); ok {
		base = w2.id // a view of a view is a view of the storage
	}
	id := r.add(ir.Node{Op: ir.OpView, Offset: r.dim(w.offset, true)}, []ir.Arg{ir.Value(base)}, r.typ(w, true))
	r.values = append(r.values, value{id: id, root: v.root, w: w})
}

// windowOn draws a window without overlap of its own elements.
func (r *random) windowOn(bytes int64) window {
	d := r.dtype()
	n := bytes / int64(d.Size())
	if n == 0 {
		return window{}
	}
	offset := rapid.Int64Range(0, min(n-1, 5)).Draw(r.t, "offset")
	w := window{dtype: d, offset: offset, sizes: []int64{}, strides: []int64{}}
	step := rapid.Int64Range(1, 2).Draw(r.t, "inner")
	for range rapid.IntRange(0, 2).Draw(r.t, "rank") {
		room := (n - w.offset - 1) / step
		size := rapid.Int64Range(1, max(1, min(4, room))).Draw(r.t, "size")
		w.sizes, w.strides = append([]int64{size}, w.sizes...), append([]int64{step}, w.strides...)
		step *= size
		if w.end() > bytes {
			w.sizes[0] = 1
		}
	}
	if w.end() > bytes {
		return window{}
	}
	return w
}

func equalSizes(a, b window) bool {
	if len(a.sizes) != len(b.sizes) {
		return false
	}
	for i := range a.sizes {
		if a.sizes[i] != b.sizes[i] {
			return false
		}
	}
	return true
}

// like returns a value of the same sizes and dtype, usually not v itself.
func (r *random) like(v value, ok func(value) bool) value {
	o, found := r.pick(func(o value) bool { return o.w.dtype == v.w.dtype && equalSizes(o.w, v.w) && ok(o) })
	if !found {
		return v
	}
	return o
}

// chain makes a sequence of own ops. Each op takes the result of the op before, and often values with no later use;
// such an op is computed over its operand.
func (r *random) chain() {
	for range rapid.IntRange(2, 4).Draw(r.t, "links") {
		r.ownOf(r.values[len(r.values)-1])
	}
}

func (r *random) own() {
	if v, ok := r.pick(func(value) bool { return true }); ok {
		r.ownOf(v)
	}
}

func (r *random) ownOf(v value) {
	ops := []ir.Op{ir.OpNeg, ir.OpAbs, ir.OpAdd, ir.OpSub, ir.OpMul, ir.OpMaximum, ir.OpCopy}
	op := rapid.SampledFrom(ops).Draw(r.t, "op")
	args := []ir.Arg{ir.Value(v.id)}
	if ir.Info(op).Arity() == 2 {
		args = append(args, ir.Value(r.like(v, func(value) bool { return true }).id))
		if op != ir.OpMaximum && v.w.dtype == ir.F32 && rapid.IntRange(0, 3).Draw(r.t, "number") == 0 {
			args[rapid.IntRange(0, 1).Draw(r.t, "place")] = r.number()
		} else if rapid.IntRange(0, 3).Draw(r.t, "swapped") == 0 {
			args[0], args[1] = args[1], args[0]
		}
	}
	w := contiguous(v.w.dtype, v.w.sizes)
	t := ir.Type{DType: w.dtype, Dims: r.g.Types[v.id].Dims}
	if op == ir.OpCopy && rapid.Bool().Draw(r.t, "transposed") && len(w.sizes) == 2 {
		w.strides = []int64{1, w.sizes[0]}
		t.Strides = []ir.Dim{ir.Const(1), ir.Const(w.sizes[0])}
	}
	r.root(r.add(ir.Node{Op: op}, args, t), w)
}

func (r *random) number() ir.Arg {
	r.params = append(r.params, math.Float64bits(float64(rapid.IntRange(-3, 3).Draw(r.t, "number value"))))
	id := r.add(ir.Node{Op: ir.OpParam, Slot: uint32(len(r.params) - 1)}, nil, ir.Type{DType: ir.F64, Dims: []ir.Dim{}})
	return ir.Value(id)
}

func (r *random) empty() {
	w := contiguous(r.dtype(), r.sizes())
	r.root(r.add(ir.Node{Op: ir.OpEmpty}, nil, r.typ(w, true)), w)
}

// inplace calls an operator on a value or a window, and usually makes the update that capture would.
func (r *random) inplace() {
	v, ok := r.pick(func(v value) bool { return v.w.numel() > 0 })
	if !ok {
		return
	}
	names := []string{"aten::neg_", "aten::mul_.Tensor", "aten::add_.Tensor", "aten::fill_.Scalar"}
	name := rapid.SampledFrom(names).Draw(r.t, "op")
	write := ir.Value(v.id)
	write.Write = true
	args := []ir.Arg{write}
	switch name {
	case "aten::mul_.Tensor", "aten::add_.Tensor":
		// v itself, or memory of another root, because PyTorch refuses operands that overlap in part.
		o := r.like(v, func(o value) bool { return o.root != v.root || o.id == v.id })
		if o.root == v.root && o.id != v.id {
			return
		}
		args = append(args, ir.Value(o.id))
		if name == "aten::add_.Tensor" {
			args = append(args, ir.Arg{Kind: ir.ArgInt, V: 1})
		}
	case "aten::fill_.Scalar":
		if v.w.dtype != ir.F32 {
			return
		}
		args = append(args, r.number())
	}
	id := r.add(ir.Node{Op: ir.OpCall, Name: r.g.Intern(name)}, args, r.g.Types[v.id])
	after := v.w
	after.offset = 0
	node := &r.g.Nodes[r.g.Def[v.id]]
	if v.id == v.root {
		r.root(id, after)
		return
	}
	dense := after.end() == after.numel()*int64(after.dtype.Size())
	r.values = append(r.values, value{id: id, root: id, w: after, bytes: after.end(), dense: dense})
	if rapid.IntRange(0, 5).Draw(r.t, "dropped") > 0 {
		r.update(v.root, id, node.Offset)
	}
}

// update replaces a window of a root by a value.
func (r *random) update(root, with ir.ValueID, offset ir.Dim) {
	for _, v := range r.values {
		if v.id == root {
			id := r.add(ir.Node{Op: ir.OpUpdate, Offset: offset}, []ir.Arg{ir.Value(root), ir.Value(with)}, r.g.Types[root])
			r.values = append(r.values, value{id: id, root: id, w: v.w, bytes: v.bytes, dense: v.dense})
			return
		}
	}
}

// patch updates a dense root with any value that fits.
func (r *random) patch() {
	with, ok := r.pick(func(v value) bool { return v.w.numel() > 0 })
	if !ok {
		return
	}
	w := with.w
	w.offset = rapid.Int64Range(0, 3).Draw(r.t, "offset")
	into, ok := r.pick(func(v value) bool { return v.id == v.root && v.dense && v.bytes >= w.end() })
	if ok {
		r.update(into.id, with.id, r.dim(w.offset, true))
	}
}

func (r *random) resize() {
	v, ok := r.pick(func(v value) bool { return v.dense && v.id == v.root })
	if !ok {
		return
	}
	old := contiguous(ir.U8, []int64{v.bytes})
	id := v.id
	if v.w.dtype != ir.U8 {
		id = r.add(ir.Node{Op: ir.OpView}, []ir.Arg{ir.Value(id)}, r.typ(old, true))
	}
	w := contiguous(ir.U8, []int64{rapid.Int64Range(0, 40).Draw(r.t, "bytes")})
	r.root(r.add(ir.Node{Op: ir.OpResize}, []ir.Arg{ir.Value(id)}, r.typ(w, true)), w)
}

// draw makes a graph. Some outputs replace inputs, some are new storages, and several outputs may have the same value.
func draw(t *rapid.T) *random {
	r := &random{t: t, g: ir.NewGraph("random", "none"), inputs: map[uint32][]byte{}}
	for range rapid.IntRange(1, 3).Draw(t, "inputs") {
		r.input()
	}
	steps := []func(){
		r.view, r.view, r.own, r.own, r.chain, r.chain, r.inplace, r.inplace, r.inplace, r.patch, r.empty, r.resize,
	}
	for range rapid.IntRange(1, 14).Draw(t, "nodes") {
		steps[rapid.IntRange(0, len(steps)-1).Draw(t, "step")]()
	}
	slot := uint32(0)
	for range rapid.IntRange(1, 5).Draw(t, "outputs") {
		v, ok := r.pick(func(v value) bool { return v.id == v.root })
		if !ok {
			break
		}
		slot += uint32(rapid.IntRange(0, 1).Draw(t, "skip"))
		r.g.Outputs = append(r.g.Outputs, ir.Output{Value: v.id, Slot: slot})
		slot++
	}
	return r
}
