// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ref

import (
	"fmt"
	"math"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/proto"
)

// registers says in which dtype ir/eval has a class.
var registers = map[kernel.Class]ir.DType{kernel.F32: ir.F32, kernel.F64: ir.F64, kernel.I64: ir.I64, kernel.B8: ir.Bool}

// meaning is the own op that an instruction computes on registers, by instruction.
var meaning = func() (ops [1 << 8]ir.Op) {
	for _, i := range catalogue.Instrs() {
		if o := i.MeaningOf(); o != nil {
			ops[i.Number], _ = ir.ByName(o.Name)
		}
	}
	return ops
}()

// kernel runs a kernel: each instruction over the whole index space, a register being a tensor of all its points, with size 1 along
// folded dims where it has one value for all of them.
func (r *runner) kernel(op *proto.KernelOp) error {
	k, err := r.p.Kernels[op.GetKernel()].Decode()
	if err != nil {
		return err
	}
	for _, at := range op.GetInstances() {
		for _, t := range at.Tensors {
			if t&1 != 0 {
				st, err := made(r.window(t / 2))
				if err != nil {
					return err
				}
				r.buffers[r.p.Tensors[t/2].Buffer] = st
			}
		}
		if err := guard(func() error { return r.instance(k, at) }); err != nil {
			return err
		}
	}
	return nil
}

// points is the geometry of an operand as the index space sees it: its strides along the dims of its frame.
func points(o kernel.Operand, w *eval.Tensor, sizes []int64) (*eval.Tensor, error) {
	out := &eval.Tensor{DType: w.DType, Sizes: slices.Clone(sizes), Strides: make([]int64, len(sizes)), Offset: w.Offset, Data: w.Data}
	for i, d := range o.Along {
		switch {
		case d < 0 && w.Sizes[i] != 1, d >= 0 && w.Sizes[i] != sizes[d]:
			return nil, fmt.Errorf("dim %d of an operand has size %d, its kernel has %v", i, w.Sizes[i], sizes)
		case d >= 0:
			out.Strides[d] = w.Strides[i]
		}
	}
	return out, nil
}

func (r *runner) instance(k *kernel.Kernel, at *proto.KernelOp_Instance) error {
	all := r.dims(at.Sizes)
	frames := make([][]int64, len(k.Spaces))
	for i, rank := range k.Spaces {
		frames[i], all = all[:rank], all[rank:]
	}
	kept := slices.Clone(frames[0])
	var fold []int64
	for d := k.Spaces[0] - k.Reduced; d < k.Spaces[0]; d++ {
		kept[d] = 1
		fold = append(fold, int64(d))
	}
	regs := make([]*eval.Tensor, len(k.Code))
	fresh := func(c kernel.Class, sizes []int64) (*eval.Tensor, error) { return eval.New(registers[c], sizes, nil) }
	type write struct {
		to   *eval.Tensor
		from *eval.Tensor
	}
	var writes []write // last, so that no load sees them
	for i, n := range k.Code {
		var err error
		switch n.Op {
		case kernel.Load:
			o := k.Operands[n.A]
			x, why := points(o, r.tensor(at.Tensors[n.A]/2), frames[o.Space])
			if why != nil {
				return why
			}
			x.Sizes = slices.Clone(x.Sizes)
			for d := range x.Sizes { // one value for all that is folded together
				if o.Space == 0 && d >= k.Spaces[0]-k.Reduced && !slices.Contains(o.Along, int8(d)) {
					x.Sizes[d] = 1
				}
			}
			if regs[i], err = fresh(n.Class, x.Sizes); err == nil {
				err = eval.Eval(ir.OpCast, []eval.Arg{{Tensor: x}}, regs[i])
			}
			if o.Space > 0 && err == nil { // the same points in the same order
				regs[i].Sizes, regs[i].Strides = frames[0], eval.Contiguous(frames[0])
			}
		case kernel.Store:
			o := k.Operands[n.A]
			to, why := points(o, r.tensor(at.Tensors[n.A]/2), frames[o.Space])
			if why != nil {
				return why
			}
			from := regs[n.B]
			for d := range to.Sizes {
				if o.Space == 0 && !slices.Contains(o.Along, int8(d)) {
					to.Sizes[d] = 1
				}
			}
			if o.Space > 0 {
				whole, err := fresh(n.Class, frames[0])
				if err == nil {
					err = eval.Copy(whole, from)
				}
				if err != nil {
					return err
				}
				whole.Sizes, whole.Strides = frames[o.Space], eval.Contiguous(frames[o.Space])
				from = whole
			}
			writes = append(writes, write{to, from})
		case kernel.Number, kernel.Const, kernel.Count:
			var e *eval.Tensor
			if e, err = r.constant(k, n, at, frames[0]); err == nil {
				if regs[i], err = fresh(n.Class, slices.Repeat([]int64{1}, len(kept))); err == nil {
					err = eval.Copy(regs[i], e)
				}
			}
		case kernel.Index:
			sizes := slices.Repeat([]int64{1}, len(kept))
			sizes[n.A] = frames[0][n.A]
			if regs[i], err = fresh(n.Class, sizes); err == nil {
				for j := range sizes[n.A] {
					putInt(regs[i].Data[8*j:], j)
				}
			}
		case kernel.Round:
			var narrow *eval.Tensor
			if narrow, err = eval.New(ir.DType(n.B), regs[n.A].Sizes, nil); err == nil {
				err = eval.Eval(ir.OpCast, []eval.Arg{{Tensor: regs[n.A]}}, narrow)
			}
			if err == nil {
				if regs[i], err = fresh(n.Class, narrow.Sizes); err == nil {
					err = eval.Eval(ir.OpCast, []eval.Arg{{Tensor: narrow}}, regs[i])
				}
			}
		case kernel.Sum, kernel.Max, kernel.Min:
			var whole *eval.Tensor // a fold of one value for all of them folds it as often
			if whole, err = fresh(n.Class, frames[0]); err == nil {
				err = eval.Copy(whole, regs[n.A])
			}
			if err == nil {
				if regs[i], err = fresh(n.Class, kept); err == nil {
					err = eval.Eval(meaning[n.Op], []eval.Arg{{Tensor: whole}, {Dims: fold, KeepDim: true}}, regs[i])
				}
			}
		default:
			args := []eval.Arg{}
			sizes := slices.Repeat([]int64{1}, len(kept))
			own := meaning[n.Op]
			for _, a := range []uint64{n.A, n.B, n.C}[:max(1, ir.Info(own).Arity())] {
				args = append(args, eval.Arg{Tensor: regs[a]})
				for d, s := range regs[a].Sizes {
					if s != 1 {
						sizes[d] = s
					}
				}
			}
			if regs[i], err = fresh(n.Class, sizes); err == nil {
				err = eval.Eval(own, args, regs[i])
			}
		}
		if err != nil {
			return fmt.Errorf("instruction %d: %w", i, err)
		}
	}
	for _, w := range writes {
		if err := eval.Eval(ir.OpCopy, []eval.Arg{{Tensor: w.from}}, w.to); err != nil {
			return err
		}
	}
	return nil
}

// constant is a value that the whole kernel has.
func (r *runner) constant(k *kernel.Kernel, n kernel.Instr, at *proto.KernelOp_Instance, space []int64) (*eval.Tensor, error) {
	bits, d := n.A, registers[n.Class]
	switch {
	case n.Op == kernel.Count:
		count := int64(1)
		for _, s := range space[len(space)-k.Reduced:] {
			count *= s
		}
		bits, d = uint64(count), ir.I64
	case n.Op == kernel.Number:
		switch a := at.Numbers[n.A].Kind.(type) {
		case *proto.Arg_Number_:
			d = map[uint32]ir.DType{proto.NumberF64: ir.F64, proto.NumberI64: ir.I64, proto.NumberBool: ir.Bool}[a.Number.Kind]
			bits = r.params[a.Number.Param]
		case *proto.Arg_Scalar_:
			d, bits = ir.DType(a.Scalar.Dtype), r.params[a.Scalar.Param]
		case *proto.Arg_Int:
			d, bits = ir.I64, uint64(a.Int)
		case *proto.Arg_Float:
			d, bits = ir.F64, math.Float64bits(a.Float)
		case *proto.Arg_Bool:
			d, bits = ir.I64, 0
			if a.Bool {
				bits = 1
			}
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
