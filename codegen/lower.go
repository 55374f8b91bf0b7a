// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"fmt"
	"math"

	"github.com/mycelya/mycelya/fusion"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/decomp"
	"github.com/mycelya/mycelya/kernel"
)

// lowered is the kernel of one loop, with the values of the group's graph that it is bound to.
type lowered struct {
	kernel   *kernel.Kernel
	spaces   [][]ir.Dim // sizes
	operands []ir.ValueID
	numbers  []ir.ValueID
	uses     []use // of operands, while they are bound
}

// coder writes the code of one loop. Ops compute as in ir/eval, each rounded to its dtype.
type coder struct {
	g     *ir.Graph // of primitives
	group *fusion.Group
	loop  int
	out   lowered
	regs  map[ir.ValueID]uint64 // registers of values that the loop computes
	loads map[loadKey]uint64    // registers of operands that it reads, and of numbers
}

// loadKey identifies the content of a register: a number of a dtype, a constant, or an operand read at an offset.
type loadKey struct {
	kind     uint8 // ir.ArgValue for an operand or a number, else the kind of the constant
	space    int8  // of an operand
	to, must ir.DType
	v        int64
	along    string // of an operand: its dims as bytes
}

// refused is why a group has no kernels. It then runs as its operators.
type refused string

// lower makes the kernel of a loop. stored are the values that the kernel writes to memory.
func lower(group *fusion.Group, loop int, stored []ir.ValueID) (out *lowered, why refused) {
	defer func() {
		if r := recover(); r != nil {
			text, ok := r.(refused)
			if !ok {
				panic(r)
			}
			out, why = nil, text
		}
	}()
	l := &group.Loops[loop]
	c := &coder{g: group.Graph, group: group, loop: loop, regs: map[ir.ValueID]uint64{}, loads: map[loadKey]uint64{}}
	c.out.kernel = &kernel.Kernel{Reduced: l.Reduced}
	c.out.spaces = l.Spaces
	for _, space := range l.Spaces {
		c.out.kernel.Spaces = append(c.out.kernel.Spaces, len(space))
	}
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

func (c *coder) emit(n kernel.Instr) uint64 {
	if len(c.out.kernel.Code) == kernel.MaxInstrs {
		refuse("a kernel has at most %d instructions", kernel.MaxInstrs)
	}
	c.out.kernel.Code = append(c.out.kernel.Code, n)
	return uint64(len(c.out.kernel.Code) - 1)
}

// narrow reports whether a register of a dtype must be rounded to it.
func narrow(d ir.DType) bool { return kernel.Rounds(uint8(d)) }

// class returns the register class of a dtype.
func class(d ir.DType) kernel.Class {
	k := kernel.ClassOf(uint8(d))
	if k == 0 {
		panic("BUG: a loop computes in " + d.String())
	}
	return k
}

// round rounds a register to a dtype of its class.
func (c *coder) round(r uint64, d ir.DType) uint64 {
	if !narrow(d) {
		return r
	}
	return c.emit(kernel.Instr{Op: kernel.Round, Class: class(d), A: r, B: uint64(d)})
}

// convert returns a register of one dtype as one of another.
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
	if a == kernel.B8 || a == b && (!narrow(to) || widens(from, to)) { // all dtypes have 0 and 1
		return r
	}
	return c.round(r, to)
}

// widens reports whether a narrow integer dtype has all numbers of another.
func widens(from, to ir.DType) bool {
	switch from {
	case ir.U8, ir.I8:
		return to == ir.I16 || to == ir.I32
	case ir.I16:
		return to == ir.I32
	}
	return false
}

// to32 gives an integer that was a float the value of an x86 conversion to 32 bits: the least integer if it does not
// fit.
func (c *coder) to32(r uint64) uint64 {
	least := c.emit(kernel.Instr{Op: kernel.Const, Class: kernel.I64, A: uint64(math.MaxUint64 - math.MaxInt32)})
	most := c.emit(kernel.Instr{Op: kernel.Const, Class: kernel.I64, A: math.MaxInt32})
	below := c.emit(kernel.Instr{Op: kernel.Lt, Class: kernel.B8, A: r, B: least})
	above := c.emit(kernel.Instr{Op: kernel.Gt, Class: kernel.B8, A: r, B: most})
	out := c.emit(kernel.Instr{Op: kernel.Or, Class: kernel.B8, A: below, B: above})
	return c.emit(kernel.Instr{Op: kernel.Where, Class: kernel.I64, A: out, B: least, C: r})
}

// operand returns the register of argument index of a node, in a dtype.
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
		return c.number(v, to, c.group.Must[user])
	}
	if _, counts := c.group.Count(v); counts {
		return c.number(v, to, ir.Invalid)
	}
	root := g.Root(v)
	if c.group.In(g.Def[root]) == c.loop {
		return c.convert(c.regs[root], g.Types[root].DType, to)
	}
	space, along := c.group.Sees(user, index)
	var dims [kernel.MaxRank]byte
	for i, d := range along {
		dims[i] = byte(d)
	}
	key := loadKey{kind: uint8(ir.ArgValue), space: int8(space), v: int64(v), along: string(dims[:len(along)])}
	r, ok := c.loads[key]
	if !ok {
		at := c.bind(v, kernel.Read, space, along)
		r = c.emit(kernel.Instr{Op: kernel.Load, Class: class(from), A: at})
		c.loads[key] = r
	}
	return c.convert(r, from, to)
}

// number returns the register of a number that each instance brings, in a dtype. If must is valid, that dtype must hold
// the number too.
func (c *coder) number(v ir.ValueID, to, must ir.DType) uint64 {
	key := loadKey{kind: uint8(ir.ArgValue), space: -1, to: to, must: must, v: int64(v)}
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

// bind adds an operand to the kernel.
func (c *coder) bind(v ir.ValueID, access kernel.Access, space int, along []int8) uint64 {
	k := c.out.kernel
	if len(k.Operands) == kernel.MaxOperands {
		refuse("a kernel has at most %d operands", kernel.MaxOperands)
	}
	o := kernel.Operand{DType: uint8(c.g.Types[v].DType), Access: access, Space: space, Along: along}
	k.Operands = append(k.Operands, o)
	c.out.operands = append(c.out.operands, v)
	return uint64(len(k.Operands) - 1)
}

func (c *coder) constant(a ir.Arg, to ir.DType) uint64 {
	key := loadKey{kind: uint8(a.Kind), to: to, v: a.V}
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
	space, along := c.group.Mapping(v)
	at := c.bind(v, kernel.Write, space, along)
	c.emit(kernel.Instr{Op: kernel.Store, Class: class(c.g.Types[v].DType), A: at, B: c.regs[v]})
}

// node emits the code of a primitive.
func (c *coder) node(id ir.NodeID) {
	g := c.g
	n := &g.Nodes[id]
	result := g.Types[n.First].DType
	args := g.NodeArgs(id)
	var r uint64
	switch kind := ir.Info(n.Op).Kind; {
	case kind == ir.KindFill:
		r = c.operand(id, 1, result)
	case kind == ir.KindReduce:
		r = c.reduce(id, n.Op, result)
	case n.Op == ir.OpCast || n.Op == ir.OpCopy:
		r = c.operand(id, 0, result)
	case n.Op == ir.OpCall && g.CallName(id) == decomp.Take:
		r = c.take(id)
	case n.Op == ir.OpCall:
		r = c.iota(id)
	case n.Op == ir.OpWhere:
		d := fusion.ComputeOf(g, id).DType
		cond, x, y := c.operand(id, 0, ir.Bool), c.operand(id, 1, d), c.operand(id, 2, d)
		r = c.emit(kernel.Instr{Op: kernel.Where, Class: class(d), A: cond, B: x, C: y})
		r = c.convert(r, d, result)
	default:
		r = c.elementwise(id, n.Op, args, result)
	}
	c.regs[n.First] = r
}

// take emits the element of the first operand at the position in the second.
func (c *coder) take(id ir.NodeID) uint64 {
	position := c.operand(id, 1, ir.I64)
	v := ir.ValueID(c.g.NodeArgs(id)[0].V)
	space, along := c.group.Sees(id, 0)
	at := c.bind(v, kernel.Read, space, along)
	return c.emit(kernel.Instr{Op: kernel.Take, Class: class(c.g.Types[v].DType), A: at, B: position})
}

// iota emits the position of a point along a dim of the node's operand.
func (c *coder) iota(id ir.NodeID) uint64 {
	space, along := c.group.Mapping(c.g.Nodes[id].First)
	d := along[c.g.NodeArgs(id)[1].V]
	if d < 0 { // it has one element
		return c.constant(ir.Arg{Kind: ir.ArgInt}, ir.I64)
	}
	if space != 0 {
		panic("BUG: a loop with several index spaces needs positions")
	}
	return c.emit(kernel.Instr{Op: kernel.Index, Class: kernel.I64, A: uint64(d)})
}

func (c *coder) elementwise(id ir.NodeID, op ir.Op, args []ir.Arg, result ir.DType) uint64 {
	how := fusion.ComputeOf(c.g, id)
	d := how.DType
	switch how.Form {
	case fusion.FormTruth:
		x, y := c.convert(c.operand(id, 0, d), d, ir.Bool), c.convert(c.operand(id, 1, d), d, ir.Bool)
		return c.emit(kernel.Instr{Op: how.Op, Class: kernel.B8, A: x, B: y})
	case fusion.FormFalse:
		return c.constant(ir.Arg{Kind: ir.ArgBool}, ir.Bool)
	case fusion.FormOperand:
		return c.convert(c.operand(id, 0, d), d, result)
	case fusion.FormPower:
		if r, ok := c.power(id, args, d); ok {
			return c.convert(r, d, result)
		}
	}
	in := kernel.Instr{Op: how.Op, Class: class(d)}
	made := d
	if ir.Info(op).DType == ir.DTypeBool {
		in.Class, made = kernel.B8, ir.Bool
	}
	for i, word := range []*uint64{&in.A, &in.B, &in.C}[:len(args)] {
		*word = c.factor(id, op, i, args, d)
	}
	return c.convert(c.round(c.emit(in), made), made, result)
}

// factor returns an operand of an op that computes in d. A number in a product or quotient of 16-bit floats keeps its
// precision, and its value if it exceeds the largest f16, as the divisor of a mean's gradient may.
func (c *coder) factor(id ir.NodeID, op ir.Op, index int, args []ir.Arg, d ir.DType) uint64 {
	half := ir.Info(op).WideNumber && (d == ir.F16 || d == ir.BF16)
	if is := c.g.Types[args[index].V].DType; half && c.g.IsNumber(args[index]) && (is == ir.F64 || is == ir.I64) {
		return c.operand(id, index, ir.F32)
	}
	return c.operand(id, index, d)
}

// power writes a power with a constant exponent as PyTorch computes it, false if that is a plain power.
func (c *coder) power(id ir.NodeID, args []ir.Arg, d ir.DType) (uint64, bool) {
	a := c.g.Args[c.g.Nodes[c.g.Def[args[1].V]].ArgLo]
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
		k := kernel.Max
		if op == ir.OpAmin {
			k = kernel.Min
		}
		return c.combine(id, kernel.Instr{Op: k, Class: class(from), A: c.operand(id, 0, from)})
	case from == ir.F16 || from == ir.BF16:
		wide = ir.F32
	case from.Is(ir.Bools | ir.Ints):
		wide = ir.I64
	}
	r := c.combine(id, kernel.Instr{Op: kernel.Sum, Class: class(wide), A: c.operand(id, 0, wide)})
	if op == ir.OpMean && c.group.Reduces(id) {
		n := c.emit(kernel.Instr{Op: kernel.Count, Class: class(wide)})
		r = c.emit(kernel.Instr{Op: kernel.Div, Class: class(wide), A: r, B: n})
	}
	return c.convert(r, wide, result)
}

// combine emits a reduction. A reduction over dims of size 1 only is its operand, except that a sum of one -0 is 0.
func (c *coder) combine(id ir.NodeID, n kernel.Instr) uint64 {
	switch {
	case c.group.Reduces(id):
		return c.emit(n)
	case n.Op == kernel.Sum && n.Class != kernel.I64:
		zero := c.emit(kernel.Instr{Op: kernel.Const, Class: n.Class})
		return c.emit(kernel.Instr{Op: kernel.Add, Class: n.Class, A: n.A, B: zero})
	}
	return n.A
}
