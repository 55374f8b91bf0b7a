// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package graphs makes random graphs for property tests, with the parameters and inputs of a run. The graphs use all
// own ops. The verifier accepts each graph, and a trace could have it.
package graphs

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"

	"pgregory.net/rapid"

	"github.com/mycelya/mycelya/ir"
)

// Program is a graph with parameter words and the inputs' bytes by slot.
type Program struct {
	Graph  *ir.Graph
	Params []uint64
	Inputs map[uint32][]byte
}

// Own draws a graph of own ops and memory ops. ir/eval can run it.
func Own(t *rapid.T) *Program { return draw(t, false, false) }

// Any draws a graph that also has opaque calls, with every kind of argument.
func Any(t *rapid.T) *ir.Graph { return draw(t, true, false).Graph }

// Special draws a graph of own ops as Own does. Its inputs and numbers have the values of Values, of all dtypes.
func Special(t *rapid.T) *Program { return draw(t, false, true) }

var dtypes = []ir.DType{ir.F32, ir.F32, ir.F64, ir.F16, ir.BF16, ir.I64, ir.I32, ir.U8, ir.Bool, ir.C64}

type builder struct {
	*rapid.T
	p     *Program
	g     *ir.Graph
	sizes []ir.Dim // possible sizes of a dim
	slot  uint32   // next input slot

	special bool // see Special
}

func draw(t *rapid.T, calls, special bool) *Program {
	g := ir.NewGraph("train.py:41", "step")
	p := &Program{Graph: g, Inputs: map[uint32][]byte{}}
	b := &builder{T: t, p: p, g: g, sizes: []ir.Dim{ir.Const(1), ir.Const(2)}, special: special}
	for i := range rapid.IntRange(1, 3).Draw(t, "symbols") {
		n := uint64(2 + (i+rapid.IntRange(0, 2).Draw(t, "size"))%3)
		b.sizes = append(b.sizes, g.AddSymbol(b.param(n), int64(n)))
	}
	for range rapid.IntRange(1, 4).Draw(t, "inputs") {
		b.input()
	}
	b.number()
	steps := []func(){b.unary, b.binary, b.binary, b.fma, b.where, b.fill, b.cast, b.copy, b.reduce, b.transpose,
		b.row, b.updateRow, b.number, b.input, b.again, b.follow, b.follow, b.reload}
	if calls {
		steps = append(steps, b.call, b.call, b.write)
	}
	if special {
		steps = append(steps, b.constant, b.constant)
	}
	for range rapid.IntRange(0, 24).Draw(t, "steps") {
		rapid.SampledFrom(steps).Draw(t, "step")()
	}
	b.outputs()
	return p
}

func (b *builder) param(word uint64) uint32 {
	b.p.Params = append(b.p.Params, word)
	return uint32(len(b.p.Params) - 1)
}

func (b *builder) size(d ir.Dim) int {
	if i, ok := d.Sym(); ok {
		return int(b.p.Params[b.g.Syms[i].Slot])
	}
	return int(d)
}

func (b *builder) add(n ir.Node, args []ir.Arg, types ...ir.Type) ir.ValueID {
	n.Record = -1
	if rapid.Bool().Draw(b.T, "origin") {
		files := []string{"model.py", "a b.py", "ü.py", " \"odd\n#name"}
		n.Origin.File = rapid.SampledFrom(files).Draw(b.T, "file")
		n.Origin.Line = rapid.IntRange(0, 99).Draw(b.T, "line")
	}
	return b.g.Nodes[b.g.Add(n, args, types)].First
}

// input adds a contiguous input of small numbers.
func (b *builder) input() {
	all := dtypes
	if b.special {
		all = Computed()
	}
	t := ir.Type{DType: rapid.SampledFrom(all).Draw(b.T, "dtype"), Dims: []ir.Dim{}}
	count := 1
	for range rapid.IntRange(0, 3).Draw(b.T, "rank") {
		d := rapid.SampledFrom(b.sizes).Draw(b.T, "dim")
		t.Dims = append(t.Dims, d)
		count *= b.size(d)
	}
	b.add(ir.Node{Op: ir.OpInput, Slot: b.slot}, nil, t)
	var data []byte
	if b.special {
		values := Values(t.DType)
		random := rand.New(rand.NewPCG(rapid.Uint64().Draw(b.T, "values"), 0))
		for range count {
			data = append(data, values[random.IntN(len(values))]...)
		}
		count = 0
	}
	for i := range count {
		data = append(data, element(t.DType, (i*7+int(b.slot)*3)%9-2)...)
	}
	b.p.Inputs[b.slot] = data
	b.slot++
}

// element is v, v + 1/2 or NaN, as an element of the dtype.
func element(d ir.DType, v int) []byte {
	le := binary.LittleEndian
	f := float64(v)
	switch {
	case v == 6:
		f = math.NaN()
	case v%2 != 0:
		f += 0.5
	}
	out := make([]byte, 16)
	switch d {
	case ir.F32, ir.C64:
		le.PutUint32(out, math.Float32bits(float32(f)))
	case ir.BF16:
		le.PutUint16(out, uint16(math.Float32bits(float32(f))>>16))
	case ir.F16:
		le.PutUint16(out, []uint16{0x3c00, 0x8000, 0xc000, 0x7c00, 0x3800}[(v+5)%5])
	case ir.F64:
		le.PutUint64(out, math.Float64bits(f))
	case ir.Bool:
		out[0] = byte(v & 1)
	default:
		le.PutUint64(out, uint64(v))
	}
	return out[:d.Size()]
}

var numberKinds = map[ir.DType]ir.ArgKind{ir.F64: ir.ArgFloat, ir.I64: ir.ArgInt, ir.Bool: ir.ArgBool}

// simple are the words of numbers for which there are rules.
var simple = map[ir.DType][]uint64{
	ir.F64: {math.Float64bits(0), math.Float64bits(1), math.Float64bits(-4), math.Float64bits(0.5)},
	ir.I64: {0, 1, 2},
}

// number adds a Python number.
func (b *builder) number() {
	d := rapid.SampledFrom([]ir.DType{ir.F64, ir.I64, ir.Bool, ir.C128}).Draw(b.T, "number")
	word := map[ir.DType]uint64{ir.F64: math.Float64bits(1.5), ir.I64: 2, ir.Bool: 1, ir.C128: math.Float64bits(-1)}[d]
	if b.special {
		word = binary.LittleEndian.Uint64(append(rapid.SampledFrom(Values(d)).Draw(b.T, "word"), make([]byte, 8)...))
	}
	var first []ir.Arg // known, so that a rule may rely on it
	if kind := numberKinds[d]; kind != 0 && d != ir.Bool && rapid.Bool().Draw(b.T, "known") {
		if rapid.Bool().Draw(b.T, "simple") {
			word = rapid.SampledFrom(simple[d]).Draw(b.T, "simple word")
		}
		first = []ir.Arg{{Kind: kind, V: int64(word)}}
	}
	slot := b.param(word)
	if d == ir.C128 {
		b.param(0)
	}
	b.add(ir.Node{Op: ir.OpParam, Slot: slot}, first, ir.Type{DType: d, Dims: []ir.Dim{}})
}

// constant adds a literal.
func (b *builder) constant() {
	d := rapid.SampledFrom([]ir.DType{ir.F64, ir.F64, ir.I64, ir.Bool}).Draw(b.T, "literal")
	word := append(rapid.SampledFrom(Values(d)).Draw(b.T, "word"), make([]byte, 8)...)
	a := ir.Arg{Kind: numberKinds[d], V: int64(binary.LittleEndian.Uint64(word))}
	b.add(ir.Node{Op: ir.OpConst}, []ir.Arg{a}, ir.Type{DType: d, Dims: []ir.Dim{}})
}

// value draws a value of the graph.
func (b *builder) value() ir.ValueID {
	return ir.ValueID(rapid.IntRange(0, len(b.g.Types)-1).Draw(b.T, "value"))
}

// tensor draws a value that is not a number. It fails after ten attempts.
func (b *builder) tensor() (ir.ValueID, bool) {
	for range 10 {
		if v := b.value(); b.g.Types[v].DType.Valid() && !b.g.IsNumber(ir.Value(v)) {
			return v, true
		}
	}
	return 0, false
}

// own adds an own op if it accepts these arguments.
func (b *builder) own(op ir.Op, d ir.DType, args ...ir.Arg) {
	for _, a := range args {
		if a.Kind == ir.ArgValue && !b.g.Types[a.V].DType.Valid() {
			return
		}
	}
	if t, err := b.g.Infer(op, args, d); err == nil && t.DType != ir.C32 {
		b.add(ir.Node{Op: op}, args, t)
	}
}

func (b *builder) op(first, last ir.Op) ir.Op {
	return ir.Op(rapid.IntRange(int(first), int(last)).Draw(b.T, "op"))
}

func (b *builder) unary() {
	b.own(b.op(ir.OpNeg, ir.OpBitNot), ir.Invalid, ir.Value(b.value()))
}

func (b *builder) binary() {
	b.own(b.op(ir.OpAdd, ir.OpRemainder), ir.Invalid, ir.Value(b.value()), ir.Value(b.value()))
}

func (b *builder) fma() {
	b.own(ir.OpFma, ir.Invalid, ir.Value(b.value()), ir.Value(b.value()), ir.Value(b.value()))
}

func (b *builder) where() {
	b.own(ir.OpWhere, ir.Invalid, ir.Value(b.value()), ir.Value(b.value()), ir.Value(b.value()))
}

func (b *builder) fill() {
	b.own(ir.OpFill, ir.Invalid, ir.Value(b.value()), ir.Value(b.value()))
}

func (b *builder) cast() {
	b.own(ir.OpCast, rapid.SampledFrom(dtypes).Draw(b.T, "to"), ir.Value(b.value()))
}

// copy copies a value into contiguous memory, or a matrix into columns.
func (b *builder) copy() {
	v, ok := b.tensor()
	if !ok {
		return
	}
	t := b.g.Types[v]
	t.Strides = nil
	if len(t.Dims) == 2 && rapid.Bool().Draw(b.T, "columns") {
		t.Strides = []ir.Dim{ir.Const(1), t.Dims[0]}
	}
	b.add(ir.Node{Op: ir.OpCopy}, []ir.Arg{ir.Value(v)}, t)
}

func (b *builder) reduce() {
	v, ok := b.tensor()
	if !ok {
		return
	}
	var dims []ir.Arg
	for i := range b.g.Types[v].Dims {
		if rapid.Bool().Draw(b.T, "reduce") {
			dims = append(dims, ir.Arg{Kind: ir.ArgInt, V: int64(i)})
		}
	}
	keep := ir.Arg{Kind: ir.ArgBool, V: int64(rapid.IntRange(0, 1).Draw(b.T, "keepdim"))}
	b.own(b.op(ir.OpSum, ir.OpMean), ir.Invalid, ir.Value(v), b.g.AddList(ir.ListInts, dims), keep)
}

// matrix draws a contiguous matrix that is a whole storage.
func (b *builder) matrix() (ir.ValueID, bool) {
	v, ok := b.tensor()
	t := b.g.Types[v]
	return v, ok && len(t.Dims) == 2 && t.Strides == nil && b.g.Nodes[b.g.Def[v]].Op != ir.OpView
}

func (b *builder) transpose() {
	if v, ok := b.matrix(); ok {
		t := b.g.Types[v]
		t = ir.Type{DType: t.DType, Dims: []ir.Dim{t.Dims[1], t.Dims[0]}, Strides: []ir.Dim{ir.Const(1), t.Dims[1]}}
		b.add(ir.Node{Op: ir.OpView}, []ir.Arg{ir.Value(v)}, t)
	}
}

// rowOf returns the geometry of one of the first two rows, or of a column, of a matrix.
func (b *builder) rowOf(v ir.ValueID) (ir.Type, ir.Dim) {
	t := b.g.Types[v]
	if rapid.Bool().Draw(b.T, "column") {
		return ir.Type{DType: t.DType, Dims: t.Dims[:1:1], Strides: t.Dims[1:]}, 0
	}
	row := ir.Type{DType: t.DType, Dims: t.Dims[1:]}
	if t.Dims[0] != ir.Const(1) && rapid.Bool().Draw(b.T, "second") {
		return row, t.Dims[1]
	}
	return row, 0
}

func (b *builder) row() {
	if v, ok := b.matrix(); ok {
		t, offset := b.rowOf(v)
		b.add(ir.Node{Op: ir.OpView, Offset: offset}, []ir.Arg{ir.Value(v)}, t)
	}
}

// updateRow overwrites a row of a matrix with a copy of a row of the same matrix, negated if the dtype has neg.
func (b *builder) updateRow() {
	v, ok := b.matrix()
	if !ok {
		return
	}
	t, offset := b.rowOf(v)
	from := b.add(ir.Node{Op: ir.OpView}, []ir.Arg{ir.Value(v)}, t)
	y := b.add(ir.Node{Op: ir.OpCopy}, []ir.Arg{ir.Value(from)}, t)
	if d, err := b.g.Infer(ir.OpNeg, []ir.Arg{ir.Value(y)}, ir.Invalid); err == nil && d.DType == t.DType {
		y = b.add(ir.Node{Op: ir.OpNeg}, []ir.Arg{ir.Value(y)}, t)
	}
	b.add(ir.Node{Op: ir.OpUpdate, Offset: offset}, []ir.Arg{ir.Value(v), ir.Value(y)}, b.g.Types[v])
}

// follow adds an op on the last value, so that rules have nodes to simplify.
func (b *builder) follow() {
	v := ir.ValueID(len(b.g.Types) - 1)
	if len(b.g.Types) == 0 || !b.g.Types[v].DType.Valid() {
		return
	}
	n := &b.g.Nodes[b.g.Def[v]]
	op := rapid.SampledFrom([]ir.Op{n.Op, n.Op, ir.OpNeg, ir.OpAbs, ir.OpLogicalNot, ir.OpFloor, ir.OpCast, ir.OpAdd,
		ir.OpSub, ir.OpMul,
		ir.OpDiv, ir.OpMaximum, ir.OpWhere, ir.OpCopy}).Draw(b.T, "follow")
	x := ir.Value(v)
	switch {
	case op == ir.OpCopy:
		if !b.g.IsNumber(x) {
			b.add(ir.Node{Op: op}, []ir.Arg{x}, b.g.Types[v])
		}
	case ir.Info(op).Kind != ir.KindElementwise:
	case op == ir.OpCast:
		if d := b.g.Types[b.value()].DType; d.Valid() {
			b.own(op, d, x)
		}
	case op == ir.OpWhere:
		b.own(op, ir.Invalid, ir.Value(b.value()), x, x)
	case op == ir.OpFma:
		b.own(op, ir.Invalid, x, ir.Value(b.value()), x)
	case ir.Info(op).Arity() == 2:
		args := [][]ir.Arg{{x, x}, {x, ir.Value(b.value())}, {ir.Value(b.value()), x}}
		b.own(op, ir.Invalid, rapid.SampledFrom(args).Draw(b.T, "operands")...)
	default:
		b.own(op, ir.Invalid, x)
	}
}

// reload reads or writes the window of an update again.
func (b *builder) reload() {
	id := ir.NodeID(rapid.IntRange(0, len(b.g.Nodes)-1).Draw(b.T, "node"))
	n := b.g.Nodes[id]
	if n.Op != ir.OpUpdate {
		return
	}
	y := b.g.NodeArgs(id)[1]
	t := b.g.Types[y.V]
	read := b.add(ir.Node{Op: ir.OpView, Offset: n.Offset}, []ir.Arg{ir.Value(n.First)}, t)
	if rapid.Bool().Draw(b.T, "store") {
		with := rapid.SampledFrom([]ir.Arg{y, ir.Value(read)}).Draw(b.T, "with")
		b.add(ir.Node{Op: ir.OpUpdate, Offset: n.Offset}, []ir.Arg{ir.Value(n.First), with}, b.g.Types[n.First])
	}
}

// again repeats a node, so that cse has nodes to merge.
func (b *builder) again() {
	id := ir.NodeID(rapid.IntRange(0, len(b.g.Nodes)-1).Draw(b.T, "node"))
	n := b.g.Nodes[id]
	types := append([]ir.Type(nil), b.g.Types[n.First:n.First+ir.ValueID(n.N)]...)
	b.g.Add(n, append([]ir.Arg(nil), b.g.NodeArgs(id)...), types)
}

// call adds an opaque call with up to two results.
func (b *builder) call() {
	var args []ir.Arg
	for range rapid.IntRange(0, 4).Draw(b.T, "args") {
		args = append(args, b.arg(true))
	}
	n := ir.Node{Op: ir.OpCall, Flags: ir.Flags(rapid.IntRange(0, 3).Draw(b.T, "flags"))}
	n.Name = b.g.Intern(rapid.SampledFrom([]string{"my::op", "my::max.dim", "a b", "x::y.z.w"}).Draw(b.T, "name"))
	var types []ir.Type
	for range rapid.IntRange(0, 2).Draw(b.T, "results") {
		types = append(types, rapid.SampledFrom(append(b.g.Types, ir.Type{})).Draw(b.T, "type"))
	}
	b.add(n, args, types...)
}

// write adds a call that writes two operands, one of them in a list.
func (b *builder) write() {
	v, ok := b.tensor()
	w, ok2 := b.tensor()
	if !ok || !ok2 {
		return
	}
	one, two := ir.Value(v), ir.Value(w)
	one.Write, two.Write = true, true
	args := []ir.Arg{b.arg(true), b.g.AddList(ir.ListTensors, []ir.Arg{one, ir.Value(w)}), two}
	b.add(ir.Node{Op: ir.OpCall, Name: b.g.Intern("my::write_")}, args, ir.Type{DType: ir.F32, Dims: []ir.Dim{}},
		b.g.Types[v], b.g.Types[w])
}

// arg draws an argument of any kind.
func (b *builder) arg(lists bool) ir.Arg {
	kinds := []ir.ArgKind{ir.ArgNone, ir.ArgValue, ir.ArgDim, ir.ArgInt, ir.ArgFloat, ir.ArgBool, ir.ArgDType,
		ir.ArgLayout, ir.ArgDevice, ir.ArgMemFmt, ir.ArgStr, ir.ArgGen}
	if lists {
		kinds = append(kinds, ir.ArgList, ir.ArgList)
	}
	a := ir.Arg{Kind: rapid.SampledFrom(kinds).Draw(b.T, "kind")}
	switch a.Kind {
	case ir.ArgNone:
	case ir.ArgValue:
		v, ok := b.tensor()
		if !ok {
			return ir.Arg{Kind: ir.ArgNone}
		}
		return ir.Value(v)
	case ir.ArgDim:
		a.V = int64(rapid.SampledFrom(b.sizes).Draw(b.T, "dim"))
	case ir.ArgInt:
		a.V = rapid.Int64().Draw(b.T, "int")
	case ir.ArgFloat:
		a.V = int64(rapid.Uint64().Draw(b.T, "bits"))
		if rapid.Bool().Draw(b.T, "special") {
			f := rapid.SampledFrom([]float64{0, math.Copysign(0, -1), math.Inf(1), math.Inf(-1), math.NaN(), 1, 1e21,
				5e-324}).Draw(b.T, "float")
			a.V = int64(math.Float64bits(f))
		}
	case ir.ArgDType:
		a.V = int64(rapid.IntRange(1, int(ir.NumDTypes)-1).Draw(b.T, "dtype"))
	case ir.ArgGen:
		a.V = int64(b.param(0))
	case ir.ArgStr:
		a.V = int64(b.g.Intern(rapid.String().Draw(b.T, "string")))
	case ir.ArgList:
		return b.list()
	default:
		a.V = int64(rapid.IntRange(0, 1).Draw(b.T, "small"))
	}
	return a
}

// list draws a list of any kind, sometimes empty.
func (b *builder) list() ir.Arg {
	sub := uint8(rapid.IntRange(int(ir.ListTensors), int(ir.ListScalars)).Draw(b.T, "list"))
	var items []ir.Arg
	for range rapid.IntRange(0, 3).Draw(b.T, "items") {
		var a ir.Arg
		switch sub {
		case ir.ListTensors, ir.ListOptTensors:
			v, ok := b.tensor()
			if a = ir.Value(v); !ok || (sub == ir.ListOptTensors && rapid.Bool().Draw(b.T, "absent")) {
				a = ir.Arg{Kind: ir.ArgNone}
			}
			if sub == ir.ListTensors && !ok {
				continue
			}
		case ir.ListInts:
			a = ir.Arg{Kind: ir.ArgInt, V: rapid.Int64().Draw(b.T, "int")}
			if rapid.Bool().Draw(b.T, "dim") {
				a = ir.Arg{Kind: ir.ArgDim, V: int64(rapid.SampledFrom(b.sizes).Draw(b.T, "dim"))}
			}
		case ir.ListFloats:
			a = ir.Arg{Kind: ir.ArgFloat, V: int64(rapid.Uint64().Draw(b.T, "bits"))}
		case ir.ListBools:
			a = ir.Arg{Kind: ir.ArgBool, V: int64(rapid.IntRange(0, 1).Draw(b.T, "bool"))}
		case ir.ListScalars:
			a = ir.Arg{Kind: ir.ArgInt, V: 3}
		}
		items = append(items, a)
	}
	return b.g.AddList(sub, items)
}

// outputs makes some storages outputs, and at least one if there is a storage.
func (b *builder) outputs() {
	for v := range b.g.Types {
		if b.g.Nodes[b.g.Def[v]].Op == ir.OpView || b.g.Immediate(ir.ValueID(v)) {
			continue
		}
		if b.g.Types[v].DType.Valid() && (len(b.g.Outputs) == 0 || rapid.IntRange(0, 3).Draw(b.T, "output") == 0) {
			b.g.Outputs = append(b.g.Outputs, ir.Output{Value: ir.ValueID(v), Slot: 100 + uint32(v)})
		}
	}
	if err := ir.Verify(b.g); err != nil {
		panic(fmt.Sprintf("BUG: a random graph does not verify: %v\n%s", err, b.g))
	}
}
