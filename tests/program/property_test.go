// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package program_test holds programs against graphs: whatever graph a pass may make, its program run on the reference
// backend leaves in every storage what ir/eval says, frees what it made, and leaves alone what it may not write. This
// file is long because the generator of graphs and what it knows of their memory are one.
package program_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/passes"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/tests/graphs"
	"github.com/mycelya/mycelya/worker"
	"github.com/mycelya/mycelya/worker/ref"
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

// end is the bytes up to the last element.
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

// value is an SSA value and its numbers; bytes is the size of the storage of a root.
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

// dim is a constant or, for a size that can be one, a symbol.
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
	r.values = append(r.values, value{id: id, root: id, w: w, bytes: w.end(), dense: w.end() == w.numel()*int64(w.dtype.Size())})
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
	// Often a recent one: long histories are where mistakes are.
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
	w := window{dtype: d, offset: rapid.Int64Range(0, min(n-1, 5)).Draw(r.t, "offset"), sizes: []int64{}, strides: []int64{}}
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

// operand turns a value into an argument of the given sizes and dtype, of another value than not.
func (r *random) like(v value, ok func(value) bool) value {
	o, found := r.pick(func(o value) bool { return o.w.dtype == v.w.dtype && equalSizes(o.w, v.w) && ok(o) })
	if !found {
		return v
	}
	return o
}

// chain makes own ops of the result of the one before, often of nothing that lives on: such an op is computed over its
// operand.
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
	op := rapid.SampledFrom([]ir.Op{ir.OpNeg, ir.OpAbs, ir.OpAdd, ir.OpSub, ir.OpMul, ir.OpMaximum, ir.OpCopy}).Draw(r.t, "op")
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
	name := rapid.SampledFrom([]string{"aten::neg_", "aten::mul_.Tensor", "aten::add_.Tensor", "aten::fill_.Scalar"}).Draw(r.t, "op")
	write := ir.Value(v.id)
	write.Write = true
	args := []ir.Arg{write}
	switch name {
	case "aten::mul_.Tensor", "aten::add_.Tensor":
		// Itself, or memory of another root: PyTorch refuses operands that overlap in part.
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
	r.values = append(r.values, value{id: id, root: id, w: after, bytes: after.end(), dense: after.end() == after.numel()*int64(after.dtype.Size())})
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

// draw makes a graph. Some outputs replace inputs, some are new storages, several may hold one value.
func draw(t *rapid.T) *random {
	r := &random{t: t, g: ir.NewGraph("random", "none"), inputs: map[uint32][]byte{}}
	for range rapid.IntRange(1, 3).Draw(t, "inputs") {
		r.input()
	}
	steps := []func(){r.view, r.view, r.own, r.own, r.chain, r.chain, r.inplace, r.inplace, r.inplace, r.patch, r.empty, r.resize}
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

// run executes a program on the reference backend and returns all storages by slot.
func run(t require.TestingT, c *codegen.Compiled, params []uint64, inputs map[uint32][]byte) map[uint32][]byte {
	out, failed := runOn(t, ref.Backend{}, c, params, inputs)
	require.Empty(t, failed, c.Text())
	return out
}

// runOn is run on any backend; it also says what failed.
func runOn(t require.TestingT, on worker.Backend, c *codegen.Compiled, params []uint64, inputs map[uint32][]byte) (map[uint32][]byte, []worker.StepError) {
	x, err := on.New()
	require.NoError(t, err)
	defer x.Close()
	id := func(slot uint32) uint64 { return uint64(slot) + 1 }
	slots := map[uint32]bool{}
	for slot, data := range inputs {
		slots[slot] = true
		b, err := x.UploadBegin(id(slot), uint64(len(data)))
		require.NoError(t, err)
		copy(b, data)
		require.NoError(t, x.UploadEnd(id(slot)))
	}
	c.Program.Key = make([]byte, proto.KeyBytes)
	require.NoError(t, proto.Validate(c.Program))
	p, err := x.Prepare(c.Program)
	require.NoError(t, err)
	words, err := c.Params(params)
	require.NoError(t, err)
	call := &proto.Call{Params: words}
	var ins, outs []uint64
	for i, slot := range c.Inputs {
		ins = append(ins, uint64(c.Program.Inputs[i]), id(slot))
		call.Inputs = append(call.Inputs, id(slot))
	}
	for i, slot := range c.Outputs {
		slots[slot] = true
		outs = append(outs, uint64(c.Program.Outputs[i]), id(slot))
		call.Outputs = append(call.Outputs, id(slot))
	}
	require.NoError(t, proto.ValidateCall(c.Program, call))
	failed, errs := x.Run(p, words, ins, outs, 1)
	require.Equal(t, failed > 0, len(errs) > 0)
	out := map[uint32][]byte{}
	if failed > 0 {
		return out, errs
	}
	for slot := range slots {
		out[slot] = contents(t, x, id(slot))
	}
	return out, nil
}

// contents reads a storage of unknown size.
func contents(t require.TestingT, x worker.Executor, id uint64) (data []byte) {
	size := int64(0)
	for step := int64(1 << 12); step > 0; {
		v := &proto.Read{Storage: id, Dtype: uint32(ir.U8), Sizes: []int64{size + step}, Strides: []int64{1}}
		if x.Read(v, func(b []byte) error { data = append([]byte{}, b...); return nil }) == nil {
			size += step
		} else {
			step /= 2
		}
	}
	return data
}

// leaks lists the buffers that a program makes and neither frees nor hands over.
func leaks(c *codegen.Compiled) (out []uint32) {
	alive := map[uint32]bool{}
	for _, s := range c.Program.Steps {
		switch k := s.Kind.(type) {
		case *proto.Step_Call:
			for _, r := range k.Call.Results {
				if r != 0 {
					alive[c.Program.Tensors[r-1].Buffer] = true
				}
			}
		case *proto.Step_Copy:
			alive[c.Program.Tensors[k.Copy.Dst].Buffer] = true
		case *proto.Step_Alloc:
			alive[k.Alloc.Buffer] = true
		case *proto.Step_Clone:
			alive[k.Clone.To] = true
		case *proto.Step_Free:
			delete(alive, k.Free.Buffer)
		}
	}
	for _, b := range append(append([]uint32{}, c.Program.Inputs...), c.Program.Outputs...) {
		delete(alive, b)
	}
	for b := range alive {
		out = append(out, b)
	}
	return out
}

// check compiles a graph, runs it, compares, and returns the program.
func check(t require.TestingT, r *random, g *ir.Graph) *codegen.Compiled {
	require.NoError(t, ir.Verify(g))
	want, err := eval.Run(g, r.params, r.inputs)
	require.NoError(t, err)
	c, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch})
	require.NoError(t, err, g.String())
	again, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch})
	require.NoError(t, err)
	require.Equal(t, c.Text(), again.Text())
	from := map[uint32]uint32{} // buffer -> slot of the storage it is
	for i, b := range c.Program.Inputs {
		from[b] = c.Inputs[i]
	}
	for i, b := range c.Program.Outputs {
		if slot, ok := from[b]; ok {
			require.Equal(t, slot, c.Outputs[i], "two storages share a buffer\n%s", c.Text())
		}
	}
	got := run(t, c, r.params, r.inputs)
	show := func(slot uint32) string {
		return fmt.Sprintf("storage %d\n%s\nparams %v\n%s", slot, g, r.params, c.Text())
	}
	for slot, data := range want {
		require.Equal(t, words(data), words(got[slot]), show(slot))
	}
	for slot, data := range r.inputs {
		if _, replaced := want[slot]; !replaced && !r.scratch[slot] {
			require.Equal(t, words(data), words(got[slot]), show(slot))
		}
	}
	for _, b := range leaks(c) {
		// Only what the outputs were copied from, which ends with the program.
		require.True(t, copiedLast(c, b), "buffer %d leaks\n%s", b, c.Text())
	}
	return c
}

// copiedLast says whether the last thing done with a buffer is a copy into an output.
func copiedLast(c *codegen.Compiled, b uint32) bool {
	outputs := map[uint32]bool{}
	for _, o := range c.Program.Outputs {
		outputs[o] = true
	}
	for i := len(c.Program.Steps) - 1; i >= 0; i-- {
		switch k := c.Program.Steps[i].Kind.(type) {
		case *proto.Step_Clone:
			if outputs[k.Clone.To] && k.Clone.From == b {
				return true
			}
		case *proto.Step_Copy:
			if outputs[c.Program.Tensors[k.Copy.Dst].Buffer] && c.Program.Tensors[k.Copy.Src].Buffer == b {
				return true
			}
		default:
			return false
		}
	}
	return false
}

func words(b []byte) string {
	s := fmt.Sprintf("%d bytes:", len(b))
	for len(b) >= 4 {
		s += fmt.Sprintf(" %08x", binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	return s + fmt.Sprintf(" %x", b)
}

// donations counts the own ops that are computed over an operand, in place and with out=.
func donations(g *ir.Graph, c *codegen.Compiled) (self, out int) {
	own := map[int32]bool{}
	for _, n := range g.Nodes {
		own[n.Record] = n.Op.Own()
	}
	for i, s := range c.Program.Steps {
		if call, ok := s.Kind.(*proto.Step_Call); ok && own[c.StepRecord[i]] {
			switch form, isOut := ir.FormOver(call.Call.Op); {
			case isOut:
				out++
			case form != "":
				self++
			}
		}
	}
	return self, out
}

func TestAnyGraph(t *testing.T) {
	var self, out int
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		c := check(t, r, r.g)
		a, b := donations(r.g, c)
		self, out = self+a, out+b
	})
	require.Greater(t, self, 10, "hardly an op is computed in place")
	require.Greater(t, out, 2, "hardly an op is computed over another operand than its first")
}

func TestAnyGraphAfterPasses(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		g, err := passes.Run(r.g, passes.Options{Check: 2}) // 2: with the nodes in another order
		require.NoError(t, err, r.g.String())
		check(t, r, g)
	})
}

// TestAnyGraphOfOwnOps runs graphs over all own ops and dtypes.
func TestAnyGraphOfOwnOps(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := graphs.Own(t)
		if _, err := eval.Run(p.Graph, p.Params, p.Inputs); err != nil {
			require.ErrorContains(t, err, "by zero") // of integers: such a graph has no result
			t.Skip()
		}
		check(t, &random{g: p.Graph, params: p.Params, inputs: p.Inputs, scratch: make([]bool, 64)}, p.Graph)
	})
}

// TestOrderTakesNoMoreMemory compares the peaks of programs with and without the pass.
func TestOrderTakesNoMoreMemory(t *testing.T) {
	moved := 0
	rapid.Check(t, func(t *rapid.T) {
		r := draw(t)
		before, err := passes.Run(r.g, passes.Options{Only: []string{"dce"}})
		require.NoError(t, err)
		after, err := passes.Run(before, passes.Options{Only: []string{"order"}})
		require.NoError(t, err)
		was, is := peak(t, before, r), peak(t, after, r)
		require.LessOrEqual(t, is.Bytes, was.Bytes, "%s\nbecomes\n%s", before, after)
		if before.String() != after.String() {
			moved++
		}
		check(t, r, after)
	})
	require.Greater(t, moved, 5)
}

// TestOrderTakesLessMemory: a mask that is made at the top and used at the end isn't there in between.
func TestOrderTakesLessMemory(t *testing.T) {
	g, err := ir.Parse(`graph b.py:3 none {
  dims n=64@0
  %0: f32[n,n] = input 0
  %1: f32[n,n] = input 1
  %2: b8[n,n] = gt %1 %0
  %3: f32[n,n] = exp %0
  %4: f32[n,n] = aten.mm %3 %3
  %5: f32[n] = sum %4 [0] false
  %6: f32[n,n] = where %2 %0 %1
  output %5 -> s2
  output %6 -> s3
}`)
	require.NoError(t, err)
	r := &random{params: []uint64{64}}
	require.EqualValues(t, 9*64*64, peak(t, g, r).Bytes)
	g, err = passes.Run(g, passes.Options{Only: []string{"order"}})
	require.NoError(t, err)
	require.EqualValues(t, 8*64*64, peak(t, g, r).Bytes)
}

func peak(t require.TestingT, g *ir.Graph, r *random) codegen.Peak {
	c, err := codegen.Compile(g, codegen.Options{Scratch: r.scratch})
	require.NoError(t, err)
	params, err := c.Params(r.params)
	require.NoError(t, err)
	p, err := c.Peak(params)
	require.NoError(t, err)
	return p
}
