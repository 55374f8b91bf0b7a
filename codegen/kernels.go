// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
	"github.com/mycelya/mycelya/kernel"
)

// lowered is the kernel of one loop, and what it is bound to, in values of the expansion.
type lowered struct {
	kernel   *kernel.Kernel
	frames   [][]ir.Dim // the sizes, in the kernel's order
	operands []ir.ValueID
	numbers  []ir.ValueID
}

// coder writes the code of one loop. Operators compute as ir/eval says, each rounded to its dtype.
type coder struct {
	g     *ir.Graph  // the expansion
	must  []ir.DType // by node: see decomp.Expansion
	loops *fusion.Loops
	loop  int
	order [][]int8 // by frame of the loop and its dim: the dim in the kernel
	out   lowered
	regs  map[ir.ValueID]uint64 // of values that the loop makes
	loads map[string]uint64     // registers of operands that it reads, and of numbers
}

// refused is why a group has no kernel; it then runs as its operators.
type refused string

// lower makes the kernel of a loop; stored are the values that somebody outside of it needs.
func lower(e *decomp.Expansion, loops *fusion.Loops, loop int, stored []ir.ValueID) (out *lowered, why refused) {
	defer func() {
		if r := recover(); r != nil {
			text, ok := r.(refused)
			if !ok {
				panic(r)
			}
			out, why = nil, text
		}
	}()
	l := &loops.Loops[loop]
	c := &coder{g: e.Graph, must: e.Must, loops: loops, loop: loop, regs: map[ir.ValueID]uint64{}, loads: map[string]uint64{}}
	c.out.kernel = &kernel.Kernel{}
	c.frames(l)
	for _, id := range l.Members {
		c.node(id)
	}
	for _, v := range stored {
		c.store(v)
	}
	if err := c.out.kernel.Verify(); err != nil {
		panic(fmt.Sprintf("BUG: %v\n%s", err, c.out.kernel))
	}
	return &c.out, ""
}

func refuse(format string, args ...any) { panic(refused(fmt.Sprintf(format, args...))) }

// frames sets the index space: of a loop that folds, dims that are kept first. Frames have their dims in the order in which they have
// the same points one after the other: that in which a value lies in memory that is read in another shape.
func (c *coder) frames(l *fusion.Loop) {
	k := c.out.kernel
	c.order = make([][]int8, len(l.Frames))
	if len(l.Frames) > 1 {
		c.alike(l)
	}
	for f, frame := range l.Frames {
		if c.order[f] == nil {
			c.order[f] = make([]int8, len(frame))
			at := int8(0)
			for _, folded := range []bool{false, true} {
				for i := range frame {
					if (f == 0 && l.Folds != nil && l.Folds[i]) == folded {
						c.order[f][i] = at
						at++
					}
				}
			}
		}
		dims := make([]ir.Dim, len(frame))
		for i, at := range c.order[f] {
			dims[at] = frame[i]
		}
		c.out.frames = append(c.out.frames, dims)
		k.Frames = append(k.Frames, len(dims))
		if len(dims) > kernel.MaxRank {
			refuse("a kernel has at most %d dims, it would take %d", kernel.MaxRank, len(dims))
		}
	}
	for _, folded := range l.Folds {
		if folded {
			k.Folded++
		}
	}
	if len(k.Frames) > kernel.MaxFrames {
		refuse("a kernel has at most %d frames, it would take %d", kernel.MaxFrames, len(k.Frames))
	}
}

// alike finds the order of dims in each frame, by the values that one frame has and another reads in its shape.
func (c *coder) alike(l *fusion.Loop) {
	g := c.g
	set := func(frame int, t ir.Type, along []int8) {
		order := make([]int8, len(l.Frames[frame]))
		for at, d := range byStride(g, t, along) {
			order[d] = int8(at)
		}
		switch {
		case c.order[frame] == nil:
			c.order[frame] = order
		case !slices.Equal(c.order[frame], order):
			refuse("it is read in two orders")
		}
	}
	for _, id := range l.Members {
		index := -1
		g.EachArg(id, func(a ir.Arg) {
			index++
			v := ir.ValueID(a.V)
			if a.Kind != ir.ArgValue {
				return
			}
			root := g.Root(v)
			if root == v || c.loops.In(g.Def[root]) != c.loop {
				return
			}
			from, lies := c.loops.Place(root)
			to, seen, why := c.loops.Sees(id, v, index)
			if why != "" {
				refuse("an operand of %s: %s", g.Nodes[id].Op, why)
			}
			if from != to {
				set(from, g.Types[root], lies)
				set(to, g.Types[v], seen)
			}
		})
	}
}

// byStride lists the dims of a frame along which a value runs, those first whose elements lie farthest apart.
func byStride(g *ir.Graph, t ir.Type, along []int8) []int8 {
	var dims []int
	for i, d := range along {
		if d >= 0 {
			dims = append(dims, i)
		}
	}
	if t.Strides != nil {
		slices.SortStableFunc(dims, func(a, b int) int { return cmp.Compare(g.First(t.Strides[b]), g.First(t.Strides[a])) })
	}
	out := make([]int8, len(dims))
	for i, d := range dims {
		out[i] = along[d]
	}
	return out
}

func (c *coder) emit(n kernel.Instr) uint64 {
	if len(c.out.kernel.Code) == kernel.MaxInstrs {
		refuse("a kernel has at most %d instructions", kernel.MaxInstrs)
	}
	c.out.kernel.Code = append(c.out.kernel.Code, n)
	return uint64(len(c.out.kernel.Code) - 1)
}

// narrow says whether a register of a dtype is rounded to it, and class what it is.
func narrow(d ir.DType) bool { return d == ir.F16 || d == ir.BF16 || d.Is(ir.Ints) && d != ir.I64 }

func class(d ir.DType) kernel.Class {
	k := kernel.ClassOf(uint8(d))
	if k == 0 {
		refuse("kernels don't compute in %s", d)
	}
	return k
}

// round makes a register one of a dtype of its class.
func (c *coder) round(r uint64, d ir.DType) uint64 {
	if !narrow(d) {
		return r
	}
	return c.emit(kernel.Instr{Op: kernel.Round, Class: class(d), A: r, B: uint64(d)})
}

// convert makes a register of one dtype one of another.
func (c *coder) convert(r uint64, from, to ir.DType) uint64 {
	if from == to {
		return r
	}
	a, b := class(from), class(to)
	if a != b {
		r = c.emit(kernel.Instr{Op: kernel.Cast, Class: b, A: r})
		if (a == kernel.F32 || a == kernel.F64) && (to == ir.I32 || to == ir.I16 || to == ir.I8) {
			r = c.to32(r)
		}
	}
	exact := a == b && (!narrow(to) || from == ir.U8 && (to == ir.I16 || to == ir.I32) || from == ir.I8 && (to == ir.I16 || to == ir.I32) || from == ir.I16 && to == ir.I32)
	if exact || a == kernel.B8 { // 0 and 1 are in all
		return r
	}
	return c.round(r, to)
}

// to32 makes an integer that a float has become what x86 gives where it converts to 32 bits: the least one, of what doesn't fit.
func (c *coder) to32(r uint64) uint64 {
	least := c.emit(kernel.Instr{Op: kernel.Const, Class: kernel.I64, A: uint64(math.MaxUint64 - math.MaxInt32)})
	most := c.emit(kernel.Instr{Op: kernel.Const, Class: kernel.I64, A: math.MaxInt32})
	below := c.emit(kernel.Instr{Op: kernel.Lt, Class: kernel.B8, A: r, B: least})
	above := c.emit(kernel.Instr{Op: kernel.Gt, Class: kernel.B8, A: r, B: most})
	out := c.emit(kernel.Instr{Op: kernel.Or, Class: kernel.B8, A: below, B: above})
	return c.emit(kernel.Instr{Op: kernel.Where, Class: kernel.I64, A: out, B: least, C: r})
}

// operand is the register of argument index of a node, in a dtype.
func (c *coder) operand(user ir.NodeID, index int, to ir.DType) uint64 {
	g := c.g
	a := g.NodeArgs(user)[index]
	v := ir.ValueID(a.V)
	n := &g.Nodes[g.Def[v]]
	from := g.Types[v].DType
	switch n.Op {
	case ir.OpConst:
		return c.constant(g.Args[n.ArgLo], to)
	case ir.OpParam, ir.OpScalar:
		return c.number(v, to, c.must[user])
	}
	if c.loops.Counts(g.Def[v]) {
		return c.number(v, to, ir.Invalid)
	}
	root := g.Root(v)
	if c.loops.In(g.Def[root]) == c.loop {
		return c.convert(c.regs[root], g.Types[root].DType, to)
	}
	frame, along, why := c.loops.Sees(user, v, index)
	if why != "" {
		refuse("an operand of %s: %s", g.Nodes[user].Op, why)
	}
	along = c.along(frame, along)
	key := fmt.Sprintf("load %d %d %v", v, frame, along)
	r, ok := c.loads[key]
	if !ok {
		at := c.bind(v, kernel.Read, frame, along)
		r = c.emit(kernel.Instr{Op: kernel.Load, Class: class(from), A: at})
		c.loads[key] = r
	}
	return c.convert(r, from, to)
}

// number is the register of one that each instance is given, in a dtype; another one, if valid, must have it.
func (c *coder) number(v ir.ValueID, to, must ir.DType) uint64 {
	key := fmt.Sprintf("number %d %s %s", v, to, must)
	r, ok := c.loads[key]
	if !ok {
		r = c.emit(kernel.Instr{Op: kernel.Number, Class: class(to), A: uint64(c.out.kernel.Numbers), B: uint64(must)})
		c.out.kernel.Numbers++
		c.out.numbers = append(c.out.numbers, v)
		r = c.round(r, to)
		c.loads[key] = r
	}
	return r
}

// along is that of a loop's frame in the kernel's order.
func (c *coder) along(frame int, along []int8) []int8 {
	out := make([]int8, len(along))
	for i, d := range along {
		out[i] = d
		if d >= 0 {
			out[i] = c.order[frame][d]
		}
	}
	return out
}

func (c *coder) bind(v ir.ValueID, access kernel.Access, frame int, along []int8) uint64 {
	k := c.out.kernel
	switch {
	case len(k.Operands) == kernel.MaxOperands:
		refuse("a kernel has at most %d operands", kernel.MaxOperands)
	case len(along) > kernel.MaxRank:
		refuse("an operand of a kernel has at most %d dims, it would have %d", kernel.MaxRank, len(along))
	}
	k.Operands = append(k.Operands, kernel.Operand{DType: uint8(c.g.Types[v].DType), Access: access, Frame: frame, Along: along})
	c.out.operands = append(c.out.operands, v)
	return uint64(len(k.Operands) - 1)
}

func (c *coder) constant(a ir.Arg, to ir.DType) uint64 {
	key := fmt.Sprintf("const %d %d %s", a.Kind, a.V, to)
	if r, ok := c.loads[key]; ok {
		return r
	}
	real, whole := float64(a.V), a.V
	if a.Kind == ir.ArgFloat {
		real = math.Float64frombits(uint64(a.V))
		whole = int64(real)
	}
	n := kernel.Instr{Op: kernel.Const, Class: class(to)}
	switch n.Class {
	case kernel.F32, kernel.F64:
		n.A = math.Float64bits(real)
	case kernel.I64:
		n.A = uint64(whole)
	case kernel.B8:
		if real != 0 { // a NaN too
			n.A = 1
		}
	}
	r := c.round(c.emit(n), to)
	c.loads[key] = r
	return r
}

func (c *coder) store(v ir.ValueID) {
	frame, along := c.loops.Place(v)
	at := c.bind(v, kernel.Write, frame, c.along(frame, along))
	c.emit(kernel.Instr{Op: kernel.Store, Class: class(c.g.Types[v].DType), A: at, B: c.regs[v]})
}

// common is the dtype in which an elementwise op computes.
func (c *coder) common(id ir.NodeID, operands []ir.Arg) ir.DType {
	list := make([]ir.PromoteOperand, len(operands))
	for i, a := range operands {
		t := c.g.Types[a.V]
		list[i] = ir.PromoteOperand{DType: t.DType, Rank: len(t.Dims), Number: c.g.IsNumber(a)}
	}
	d, err := ir.ResultType(list...)
	if err != nil {
		refuse("%s: %v", c.g.Nodes[id].Op, err)
	}
	if ir.Info(c.g.Nodes[id].Op).DType == ir.DTypeFloat && d.Is(ir.Bools|ir.Ints) {
		d = c.g.Types[c.g.Nodes[id].First].DType
	}
	return d
}

// instrOf has the ops that are one instruction.
var instrOf = map[ir.Op]kernel.Op{
	ir.OpNeg: kernel.Neg, ir.OpAbs: kernel.Abs, ir.OpSqrt: kernel.Sqrt, ir.OpRsqrt: kernel.Rsqrt, ir.OpExp: kernel.Exp, ir.OpLog: kernel.Log,
	ir.OpSin: kernel.Sin, ir.OpCos: kernel.Cos, ir.OpTanh: kernel.Tanh, ir.OpSigmoid: kernel.Sigmoid, ir.OpRelu: kernel.Relu,
	ir.OpReciprocal: kernel.Reciprocal, ir.OpFloor: kernel.Floor, ir.OpCeil: kernel.Ceil, ir.OpSign: kernel.Sign, ir.OpErf: kernel.Erf,
	ir.OpExp2: kernel.Exp2, ir.OpLog2: kernel.Log2, ir.OpLog1p: kernel.Log1p, ir.OpExpm1: kernel.Expm1, ir.OpTrunc: kernel.Trunc,
	ir.OpRound: kernel.Nearest, ir.OpIsNaN: kernel.IsNaN, ir.OpBitNot: kernel.Not,
	ir.OpAdd: kernel.Add, ir.OpSub: kernel.Sub, ir.OpMul: kernel.Mul, ir.OpDiv: kernel.Div, ir.OpPow: kernel.Pow, ir.OpMaximum: kernel.Maximum,
	ir.OpMinimum: kernel.Minimum, ir.OpEq: kernel.Eq, ir.OpNe: kernel.Ne, ir.OpLt: kernel.Lt, ir.OpLe: kernel.Le, ir.OpGt: kernel.Gt, ir.OpGe: kernel.Ge,
	ir.OpLogicalAnd: kernel.And, ir.OpLogicalOr: kernel.Or, ir.OpLogicalXor: kernel.Xor, ir.OpBitAnd: kernel.And, ir.OpBitOr: kernel.Or,
	ir.OpBitXor: kernel.Xor, ir.OpAtan2: kernel.Atan2, ir.OpFmod: kernel.Fmod, ir.OpRemainder: kernel.Remainder, ir.OpFma: kernel.Fma,
}

// node writes the code of a primitive.
func (c *coder) node(id ir.NodeID) {
	g := c.g
	n := &g.Nodes[id]
	result := g.Types[n.First].DType
	args := g.NodeArgs(id)
	var r uint64
	switch kind := ir.Info(n.Op).Kind; {
	case kind == ir.KindFill:
		if v := ir.ValueID(args[1].V); !g.Immediate(v) {
			refuse("a fill with a tensor")
		}
		c.computed(n.Op, args[:1])
		r = c.operand(id, 1, result)
	case kind == ir.KindReduce:
		r = c.reduce(id, n.Op, result)
	case n.Op == ir.OpCast || n.Op == ir.OpCopy:
		r = c.operand(id, 0, result)
	case n.Op == ir.OpWhere:
		c.computed(n.Op, args[1:3])
		d := c.common(id, args[1:3])
		r = c.emit(kernel.Instr{Op: kernel.Where, Class: class(d), A: c.operand(id, 0, ir.Bool), B: c.operand(id, 1, d), C: c.operand(id, 2, d)})
		r = c.convert(r, d, result)
	default:
		r = c.elementwise(id, n.Op, args, result)
	}
	c.regs[n.First] = r
}

func (c *coder) elementwise(id ir.NodeID, op ir.Op, args []ir.Arg, result ir.DType) uint64 {
	c.computed(op, args)
	d := c.common(id, args)
	switch op {
	case ir.OpLogicalNot:
		return c.emit(kernel.Instr{Op: kernel.Not, Class: kernel.B8, A: c.operand(id, 0, ir.Bool)})
	case ir.OpLogicalAnd, ir.OpLogicalOr, ir.OpLogicalXor: // of what they are in the dtype in which they meet
		x, y := c.convert(c.operand(id, 0, d), d, ir.Bool), c.convert(c.operand(id, 1, d), d, ir.Bool)
		return c.emit(kernel.Instr{Op: instrOf[op], Class: kernel.B8, A: x, B: y})
	case ir.OpIsNaN:
		if !d.Is(ir.Floats) {
			return c.constant(ir.Arg{Kind: ir.ArgBool}, ir.Bool)
		}
	case ir.OpPow:
		if r, ok := c.power(id, args, d); ok {
			return c.convert(r, d, result)
		}
	case ir.OpSign:
		if d == ir.Bool {
			return c.convert(c.operand(id, 0, d), d, result)
		}
	case ir.OpFloor, ir.OpCeil, ir.OpTrunc, ir.OpRound:
		if d.Is(ir.Ints) {
			return c.convert(c.operand(id, 0, d), d, result)
		}
	}
	k := instrOf[op]
	if d == ir.Bool { // or and and, in PyTorch's arithmetic of truth
		switch k {
		case kernel.Add:
			k = kernel.Or
		case kernel.Mul:
			k = kernel.And
		}
	}
	if k == 0 || !k.Takes(class(d)) {
		refuse("no kernel computes %s of %s", op, d)
	}
	in := kernel.Instr{Op: k, Class: class(d)}
	made := d
	if ir.Info(op).DType == ir.DTypeBool {
		in.Class, made = kernel.B8, ir.Bool
	}
	for i, word := range []*uint64{&in.A, &in.B, &in.C}[:len(args)] {
		*word = c.factor(id, op, i, args, d)
	}
	return c.convert(c.round(c.emit(in), made), made, result)
}

// computed refuses what PyTorch doesn't compute: of these dtypes it has little more than copies. Its operator says so.
func (c *coder) computed(op ir.Op, args []ir.Arg) {
	for _, a := range args {
		if d := c.g.Types[a.V].DType; d == ir.U16 || d == ir.U32 || d == ir.U64 {
			refuse("no kernel computes %s of %s", op, d)
		}
	}
}

// factor is an operand of an op that computes in d. Numbers that products and quotients of 16-bit floats take keep their precision, and those
// beyond the largest f16, as a mean's gradient divides by, their value.
func (c *coder) factor(id ir.NodeID, op ir.Op, index int, args []ir.Arg, d ir.DType) uint64 {
	half := (op == ir.OpMul || op == ir.OpDiv) && (d == ir.F16 || d == ir.BF16)
	if is := c.g.Types[args[index].V].DType; half && c.g.IsNumber(args[index]) && (is == ir.F64 || is == ir.I64) {
		return c.operand(id, index, ir.F32)
	}
	return c.operand(id, index, d)
}

// power writes the powers that PyTorch computes as something else. Of a number that is only known when the program is called, nobody can
// tell whether it is one of those.
func (c *coder) power(id ir.NodeID, args []ir.Arg, d ir.DType) (uint64, bool) {
	v := ir.ValueID(args[1].V)
	if !c.g.IsNumber(args[1]) {
		return 0, false
	}
	def := &c.g.Nodes[c.g.Def[v]]
	if def.Op != ir.OpConst {
		refuse("a power to a number that each call has anew")
	}
	a := c.g.Args[def.ArgLo]
	p := float64(a.V)
	if a.Kind == ir.ArgFloat {
		p = math.Float64frombits(uint64(a.V))
	}
	switch p {
	case 0:
		return c.constant(ir.Arg{Kind: ir.ArgInt, V: 1}, d), true
	case 1:
		return c.operand(id, 0, d), true
	}
	if !d.Is(ir.Floats) || d == ir.F16 {
		return 0, false
	}
	x := c.operand(id, 0, d)
	do := func(op kernel.Op, args ...uint64) uint64 {
		in := kernel.Instr{Op: op, Class: class(d), A: args[0]}
		if len(args) > 1 {
			in.B = args[1]
		}
		return c.round(c.emit(in), d)
	}
	switch p {
	case 0.5:
		return do(kernel.Sqrt, x), true
	case 2:
		return do(kernel.Mul, x, x), true
	case 3:
		return do(kernel.Mul, do(kernel.Mul, x, x), x), true
	case -0.5:
		return do(kernel.Rsqrt, x), true
	case -1:
		return do(kernel.Reciprocal, x), true
	case -2:
		return do(kernel.Reciprocal, do(kernel.Mul, x, x)), true
	}
	return 0, false
}

func (c *coder) reduce(id ir.NodeID, op ir.Op, result ir.DType) uint64 {
	from := c.g.Types[c.g.NodeArgs(id)[0].V].DType
	wide := from
	switch {
	case op == ir.OpAmax || op == ir.OpAmin:
		c.computed(op, c.g.NodeArgs(id)[:1])
		k := kernel.Max
		if op == ir.OpAmin {
			k = kernel.Min
		}
		return c.fold(id, kernel.Instr{Op: k, Class: class(from), A: c.operand(id, 0, from)})
	case from == ir.F16 || from == ir.BF16:
		wide = ir.F32
	case from.Is(ir.Bools | ir.Ints):
		wide = ir.I64
	}
	r := c.fold(id, kernel.Instr{Op: kernel.Sum, Class: class(wide), A: c.operand(id, 0, wide)})
	if op == ir.OpMean && c.folds(id) {
		n := c.emit(kernel.Instr{Op: kernel.Count, Class: class(wide)})
		r = c.emit(kernel.Instr{Op: kernel.Div, Class: class(wide), A: r, B: n})
	}
	return c.convert(r, wide, result)
}

// fold emits a reduction. What folds nothing, since all its dims have size 1, is its operand; a sum of one -0 is 0 though.
func (c *coder) fold(id ir.NodeID, n kernel.Instr) uint64 {
	switch {
	case c.folds(id):
		return c.emit(n)
	case n.Op == kernel.Sum && n.Class != kernel.I64:
		zero := c.emit(kernel.Instr{Op: kernel.Const, Class: n.Class})
		return c.emit(kernel.Instr{Op: kernel.Add, Class: n.Class, A: n.A, B: zero})
	}
	return n.A
}

func (c *coder) folds(id ir.NodeID) bool {
	args := c.g.NodeArgs(id)
	dims := c.g.Types[args[0].V].Dims
	list := c.g.List(args[1])
	for i, d := range dims {
		named := len(list) == 0
		for _, a := range list {
			named = named || int(a.V) == i
		}
		if named && !c.g.Same(d, ir.Const(1)) {
			return true
		}
	}
	return false
}
