// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ref

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
)

// registers has the dtype in which ir/eval computes, by register class.
var registers = [...]ir.DType{kernel.F32: ir.F32, kernel.F64: ir.F64, kernel.I64: ir.I64, kernel.B8: ir.Bool}

// meaning has the own op that an instruction computes on registers, by instruction.
var meaning = func() (ops [1 << 8]ir.Op) {
	for _, i := range catalogue.Instrs() {
		if o := i.MeaningOf(); o != nil {
			ops[i.Number], _ = ir.ByName(o.Name)
		}
	}
	return ops
}()

// kernel runs a kernel instruction by instruction, each over the whole index space.
func (r *runner) kernel(op *program.Kernel) error {
	k := r.p.Kernels[op.Kernel]
	for i := range op.Instances {
		at := &op.Instances[i]
		for _, u := range at.Uses {
			if u.Made {
				st, err := made(r.window(u.Tensor))
				if err != nil {
					return err
				}
				r.buffers[r.p.Tensors[u.Tensor].Buffer] = st
			}
		}
		if err := guard(func() error { return r.instance(k, at) }); err != nil {
			return err
		}
	}
	return nil
}

// points returns an operand with one dim for each dim of its index space. The stride is 0 for dims that the operand
// lacks.
func points(o kernel.Operand, w *eval.Tensor, sizes []int64) (*eval.Tensor, error) {
	out := &eval.Tensor{
		DType: w.DType, Sizes: slices.Clone(sizes), Strides: make([]int64, len(sizes)), Offset: w.Offset, Data: w.Data,
	}
	for i, d := range o.Along {
		switch {
		case d == kernel.Taken:
		case d < 0 && w.Sizes[i] != 1, d >= 0 && w.Sizes[i] != sizes[d]:
			return nil, fmt.Errorf("dim %d of an operand has size %d, its kernel has %v", i, w.Sizes[i], sizes)
		case d >= 0:
			out.Strides[d] = w.Strides[i]
		}
	}
	return out, nil
}

// instance is one run of a kernel. A register is a tensor with one dim for each dim of index space 0. Its size is 1
// along dims that it does not depend on.
type instance struct {
	r       *runner
	k       *kernel.Kernel
	at      *program.Instance
	spaces  [][]int64
	kept    []int64 // index space 0 with size 1 along reduced dims
	reduced []int64 // dims of index space 0
	regs    []*eval.Tensor
	writes  []write
}

// write is a store that waits until all loads are done.
type write struct{ to, from *eval.Tensor }

func (r *runner) instance(k *kernel.Kernel, at *program.Instance) error {
	all := r.dims(at.Sizes)
	x := &instance{r: r, k: k, at: at, spaces: make([][]int64, len(k.Spaces)), regs: make([]*eval.Tensor, len(k.Code))}
	for i, rank := range k.Spaces {
		x.spaces[i], all = all[:rank], all[rank:]
	}
	x.kept = slices.Clone(x.spaces[0])
	for d := k.Spaces[0] - k.Reduced; d < k.Spaces[0]; d++ {
		x.kept[d] = 1
		x.reduced = append(x.reduced, int64(d))
	}
	for i, n := range k.Code {
		reg, err := x.run(n)
		if err != nil {
			return fmt.Errorf("instruction %d: %w", i, err)
		}
		x.regs[i] = reg
	}
	for _, w := range x.writes {
		if err := eval.Eval(ir.OpCopy, []eval.Arg{{Tensor: w.from}}, w.to); err != nil {
			return err
		}
	}
	return nil
}

// run returns the register of an instruction, nil for a store.
func (x *instance) run(n kernel.Instr) (*eval.Tensor, error) {
	switch n.Op.Row().Group {
	case catalogue.GroupMemory:
		switch n.Op {
		case kernel.Load:
			return x.load(n)
		case kernel.Store:
			return nil, x.store(n)
		case kernel.Take:
			return x.take(n)
		}
		return x.index(n)
	case catalogue.GroupValue:
		value, err := x.r.constant(x.k, n, x.at, x.spaces[0])
		if err != nil {
			return nil, err
		}
		return copied(n.Class, x.ones(), value)
	case catalogue.GroupReduce: // a value that is constant along the reduced dims counts once for each point
		whole, err := copied(n.Class, x.spaces[0], x.regs[n.A])
		if err != nil {
			return nil, err
		}
		return computed(meaning[n.Op], n.Class, x.kept, eval.Arg{Tensor: whole}, eval.Arg{Dims: x.reduced, KeepDim: true})
	}
	if n.Op == kernel.Round {
		narrow, err := eval.New(ir.DType(n.B), x.regs[n.A].Sizes, nil)
		if err == nil {
			err = eval.Eval(ir.OpCast, []eval.Arg{{Tensor: x.regs[n.A]}}, narrow)
		}
		if err != nil {
			return nil, err
		}
		return computed(ir.OpCast, n.Class, narrow.Sizes, eval.Arg{Tensor: narrow})
	}
	args, sizes := []eval.Arg{}, x.ones()
	for _, a := range []uint64{n.A, n.B, n.C}[:n.Op.Row().Operands] {
		args = append(args, eval.Arg{Tensor: x.regs[a]})
		for d, s := range x.regs[a].Sizes {
			if s != 1 {
				sizes[d] = s
			}
		}
	}
	if op := meaning[n.Op]; n.Class == kernel.I64 && ir.Info(op).Divides {
		return divided(op, sizes, args)
	}
	return computed(meaning[n.Op], n.Class, sizes, args...)
}

// divided returns a new register with a quotient or a remainder of integers, which is 0 where the divisor is 0.
func divided(op ir.Op, sizes []int64, args []eval.Arg) (*eval.Tensor, error) {
	number := func(v int64) (eval.Arg, error) {
		t, err := eval.New(ir.I64, nil, nil)
		if err == nil {
			binary.LittleEndian.PutUint64(t.Data, uint64(v))
		}
		return eval.Arg{Tensor: t}, err
	}
	zero, err := number(0)
	if err != nil {
		return nil, err
	}
	one, err := number(1)
	if err != nil {
		return nil, err
	}
	is, err := computed(ir.OpEq, kernel.B8, args[1].Tensor.Sizes, args[1], zero)
	if err != nil {
		return nil, err
	}
	divisor, err := computed(ir.OpWhere, kernel.I64, is.Sizes, eval.Arg{Tensor: is}, one, args[1])
	if err != nil {
		return nil, err
	}
	quotient, err := computed(op, kernel.I64, sizes, args[0], eval.Arg{Tensor: divisor})
	if err != nil {
		return nil, err
	}
	return computed(ir.OpWhere, kernel.I64, sizes, eval.Arg{Tensor: is}, zero, eval.Arg{Tensor: quotient})
}

// ones returns the sizes of a register with one value.
func (x *instance) ones() []int64 { return slices.Repeat([]int64{1}, len(x.kept)) }

// computed returns a new register with the result of an own op.
func computed(op ir.Op, c kernel.Class, sizes []int64, args ...eval.Arg) (*eval.Tensor, error) {
	out, err := eval.New(registers[c], sizes, nil)
	if err == nil {
		err = eval.Eval(op, args, out)
	}
	return out, err
}

// copied returns a new register with the elements of a tensor, broadcast to sizes.
func copied(c kernel.Class, sizes []int64, from *eval.Tensor) (*eval.Tensor, error) {
	out, err := eval.New(registers[c], sizes, nil)
	if err == nil {
		err = eval.Copy(out, from)
	}
	return out, err
}

// operand returns the operand of an instruction in its index space.
func (x *instance) operand(n kernel.Instr) (kernel.Operand, *eval.Tensor, error) {
	o := x.k.Operands[n.A]
	t, err := points(o, x.r.tensor(x.at.Uses[n.A].Tensor), x.spaces[o.Space])
	return o, t, err
}

func (x *instance) load(n kernel.Instr) (*eval.Tensor, error) {
	o, t, err := x.operand(n)
	if err != nil {
		return nil, err
	}
	for d := range t.Sizes { // one value for all points of a reduction
		if o.Space == 0 && d >= x.k.Spaces[0]-x.k.Reduced && !slices.Contains(o.Along, int8(d)) {
			t.Sizes[d] = 1
		}
	}
	reg, err := computed(ir.OpCast, n.Class, t.Sizes, eval.Arg{Tensor: t})
	if err == nil && o.Space > 0 { // index space 0 has the same points in the same order
		reg.Sizes, reg.Strides = x.spaces[0], eval.Contiguous(x.spaces[0])
	}
	return reg, err
}

// take returns a register with the elements at the positions in another.
func (x *instance) take(n kernel.Instr) (*eval.Tensor, error) {
	o, t, err := x.operand(n)
	if err != nil {
		return nil, err
	}
	at := x.regs[n.B]
	for d := range t.Sizes {
		if !slices.Contains(o.Along, int8(d)) {
			t.Sizes[d] = at.Sizes[d]
		}
	}
	positions, err := copied(kernel.I64, t.Sizes, at)
	if err != nil {
		return nil, err
	}
	from := x.r.tensor(x.at.Uses[n.A].Tensor)
	d := o.Takes()
	size, stride := from.Sizes[d], from.Strides[d]
	if size == 0 {
		return nil, fmt.Errorf("operand %d has nothing to take", n.A)
	}
	reg, err := eval.New(registers[n.Class], t.Sizes, nil)
	if err != nil {
		return nil, err
	}
	index := make([]int64, len(t.Sizes))
	for i := range len(positions.Data) / 8 {
		one := &eval.Tensor{DType: t.DType, Data: t.Data, Offset: t.Offset}
		for d, p := range index {
			one.Offset += p * t.Strides[d]
		}
		one.Offset += min(max(int64(binary.LittleEndian.Uint64(positions.Data[8*i:])), 0), size-1) * stride
		to := &eval.Tensor{DType: reg.DType, Data: reg.Data, Offset: int64(i)}
		if err := eval.Eval(ir.OpCast, []eval.Arg{{Tensor: one}}, to); err != nil {
			return nil, err
		}
		for d := len(index) - 1; d >= 0; d-- {
			if index[d]++; index[d] < t.Sizes[d] {
				break
			}
			index[d] = 0
		}
	}
	return reg, nil
}

func (x *instance) store(n kernel.Instr) error {
	o, to, err := x.operand(n)
	if err != nil {
		return err
	}
	from := x.regs[n.B]
	for d := range to.Sizes {
		if o.Space == 0 && !slices.Contains(o.Along, int8(d)) {
			to.Sizes[d] = 1
		}
	}
	if o.Space > 0 {
		if from, err = copied(n.Class, x.spaces[0], from); err != nil {
			return err
		}
		from.Sizes, from.Strides = x.spaces[o.Space], eval.Contiguous(x.spaces[o.Space])
	}
	x.writes = append(x.writes, write{to, from})
	return nil
}

// index returns a register with the index of each point along dim n.A.
func (x *instance) index(n kernel.Instr) (*eval.Tensor, error) {
	sizes := x.ones()
	sizes[n.A] = x.spaces[0][n.A]
	reg, err := eval.New(registers[n.Class], sizes, nil)
	if err == nil {
		for i := range sizes[n.A] {
			putInt(reg.Data[8*i:], i)
		}
	}
	return reg, err
}

// constant returns the value of a constant, of a number of the instance, or the number of points of a reduction.
func (r *runner) constant(
	k *kernel.Kernel, n kernel.Instr, at *program.Instance, space []int64,
) (*eval.Tensor, error) {
	bits, d := n.A, registers[n.Class]
	switch {
	case n.Op == kernel.Count:
		count := int64(1)
		for _, s := range space[len(space)-k.Reduced:] {
			count *= s
		}
		bits, d = uint64(count), ir.I64
	case n.Op == kernel.Number:
		a := &at.Numbers[n.A]
		switch bits = a.Value; a.Tag {
		case catalogue.TagNumber:
			d, _ = ir.ParseDType(catalogue.NumberKinds[a.Head-1].DType)
			bits = r.params[a.Value]
		case catalogue.TagScalar:
			d, bits = ir.DType(a.Head), r.params[a.Value]
		case catalogue.TagFloat:
			d = ir.F64
		default:
			d = ir.I64
		}
	case d == ir.F32:
		d = ir.F64
	}
	e, err := eval.New(d, nil, nil)
	if err != nil {
		return nil, err
	}
	var b [8]byte
	putInt(b[:], int64(bits))
	copy(e.Data, b[:])
	return e, nil
}

func putInt(b []byte, v int64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}
