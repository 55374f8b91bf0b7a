// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package program

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
)

func TestValidateAcceptsSamples(t *testing.T) {
	require.NoError(t, sample().Validate())
	require.NoError(t, fusedSample().Validate())
}

// refusal breaks one rule of the sample program, with a text that the error must contain.
type refusal struct {
	name, want string
	edit       func(p *Program)
}

func requireRefusals(t *testing.T, cases []refusal) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := sample()
			c.edit(p)
			require.ErrorContains(t, p.Validate(), c.want)
		})
	}
}

func callOf(p *Program) *Call { return p.Steps[0].(*Call) }

func TestValidateRefuses(t *testing.T) {
	requireRefusals(t, []refusal{
		{"params", "4194305 parameters", func(p *Program) { p.Params = MaxParams + 1 }},
		{"buffers", "4294967295 buffers", func(p *Program) { p.Buffers = 1<<32 - 1 }},
		{"inputs", "262145 inputs", func(p *Program) { p.Inputs = make([]uint32, MaxRef+1) }},
		{"input range", "input 0: buffer 5 of 5", func(p *Program) { p.Inputs[0] = 5 }},
		{"input twice", "input 1: buffer 0 is made while it exists", func(p *Program) { p.Inputs = []uint32{0, 0} }},
		{"output range", "output 0: buffer 9 of 5", func(p *Program) { p.Outputs[0] = 9 }},
		{"output twice", "output 1: buffer 4 is an output twice", func(p *Program) { p.Outputs[1] = 4 }},
		{"records", "records of 5 steps, it has 6", func(p *Program) { p.Records = p.Records[1:] }},
		{"version's output", "a version of output 2 of 2", func(p *Program) { p.Versions[1].Output = 2 }},
		{"version's buffer", "in buffer 6 of 5", func(p *Program) { p.Versions[0].Buffer = 6 }},
		{"version's record", "version 0 of output 0 is out of order", func(p *Program) { p.Versions[0].Record = 0 }},
		{"versions' order", "version 1 of output 0 is out of order", func(p *Program) { p.Versions[1].Output = 0 }},
		{"output freed", "output 0: buffer 0 doesn't exist at the end", func(p *Program) { p.Outputs[0] = 0 }},
		{"tensor buffer", "tensor 0: buffer 7 of 5", func(p *Program) { p.Tensors[0].Buffer = 7 }},
		{"tensor dtype", "tensor 2: dtype 21 doesn't exist", func(p *Program) { p.Tensors[2].DType = 21 }},
		{"tensor dtype 0", "tensor 2: dtype 0 doesn't exist", func(p *Program) { p.Tensors[2].DType = 0 }},
		{"rank", "tensor 0: 256 dims", func(p *Program) { p.Tensors[0].Sizes = make([]Dim, 256) }},
		{"strides missing", "tensor 1: 1 strides for 2 sizes",
			func(p *Program) { p.Tensors[1].Strides = p.Tensors[1].Strides[:1] }},
		{"size param", "tensor 0: size 0: parameter 6 of 6", func(p *Program) { p.Tensors[0].Sizes[0] = Param(6) }},
		{"offset", "tensor 3: offset 0: parameter 4294967295 of 6",
			func(p *Program) { p.Tensors[3].Offset = Param(1<<32 - 1) }},
		{"step", "step 1: is of no known kind", func(p *Program) { p.Steps[1] = nil }},
		{"op name", "step 0: call: op name of 0 bytes", func(p *Program) { callOf(p).Op = "" }},
		{"op name long", "op name of 1025 bytes", func(p *Program) { callOf(p).Op = strings.Repeat("x", MaxOpName+1) }},
		{"args", `step 0: call "aten::everything.out": 1025 arguments`,
			func(p *Program) { callOf(p).Args = make([]Arg, MaxArgs+1) }},
		{"results", "65537 results", func(p *Program) { callOf(p).Results = make([]uint32, MaxResults+1) }},
		{"result range", "result 1: tensor 4 of 4", func(p *Program) { callOf(p).Results[1] = 5 }},
		{"result alive", "result 1: buffer 0 is made while it exists", func(p *Program) { callOf(p).Results[1] = 1 }},
		{"result twice", "result 1: buffer 1 is made while it exists",
			func(p *Program) { callOf(p).Results = []uint32{2, 2} }},
		{"copy src", "step 1: copy: tensor 3: buffer 3 is used", func(p *Program) { p.Steps[1].(*Copy).Src = 3 }},
		{"copy dst", "step 1: copy: tensor 4 of 4", func(p *Program) { p.Steps[1].(*Copy).Dst = 4 }},
		{"alloc alive", "step 2: alloc: buffer 1 is made while it exists",
			func(p *Program) { p.Steps[2].(*Alloc).Buffer = 1 }},
		{"alloc bytes", "step 2: alloc: parameter 9 of 6", func(p *Program) { p.Steps[2].(*Alloc).Bytes = Param(9) }},
		{"clone to", "step 3: clone: buffer 1 is made while it exists", func(p *Program) { p.Steps[3].(*Clone).To = 1 }},
		{"clone from", "step 3: clone: buffer 4 is used but doesn't exist here",
			func(p *Program) { p.Steps[3].(*Clone).From = 4 }},
		{"free", "step 4: free: buffer 5 of 5", func(p *Program) { p.Steps[4].(*Free).Buffer = 5 }},
		{"resize freed", "step 5: resize: buffer 0 is used but doesn't exist here",
			func(p *Program) { p.Steps[5].(*Resize).Buffer = 0 }},
		{"resize bytes", "step 5: resize: parameter 6 of 6",
			func(p *Program) { p.Steps[5].(*Resize).Bytes = Param(6) }},
	})
}

func TestValidateRefusesArguments(t *testing.T) {
	arg := func(a Arg) func(*Program) {
		return func(p *Program) { callOf(p).Args = []Arg{a} }
	}
	item := func(kind uint8, a Arg) func(*Program) { return arg(List(kind, a)) }
	requireRefusals(t, []refusal{
		{"use before birth", "argument 0: tensor 1: buffer 1 is used but doesn't exist here", arg(Window(1))},
		{"tensor range", "argument 0: tensor 4 of 4", arg(Window(4))},
		{"arg kind", "argument 0: is of no known kind", arg(Arg{})},
		{"number kind", "argument 0: number of kind 5", arg(Number(5, 0))},
		{"number param", "argument 0: parameter 6 of 6",
			arg(Number(catalogue.NumberF64, 6))},
		{"complex param", "argument 0: parameter 6 of 6",
			arg(Number(catalogue.NumberC128, 5))},
		{"scalar dtype", "scalar of dtype 77", arg(Scalar(77, 0))},
		{"scalar param", "parameter 6 of 6", arg(Scalar(11, 5))},
		{"size arg", "parameter 6 of 6", arg(literal(catalogue.TagSize, 6))},
		{"generator", "parameter 8 of 6", arg(literal(catalogue.TagGen, 8))},
		{"dtype arg", "dtype 99 doesn't exist", arg(literal(catalogue.TagDType, 99))},
		{"string", "65537 bytes of string", arg(text(strings.Repeat("x", MaxString+1)))},
		{"list kind", "argument 0: list of kind 7", item(7, Int(1))},
		{"list item", "item 0: an argument of tag 7 in a list of kind 1", item(catalogue.ListTensors, Int(1))},
		{"list in list", "item 0: an argument of tag 16 in a list of kind 6",
			item(catalogue.ListScalars, List(catalogue.ListInts))},
		{"list item range", "argument 0: item 0: tensor 4 of 4", item(catalogue.ListTensors, Window(4))},
	})
}

// Each case breaks one rule of a program with a kernel.
func TestValidateRefusesKernels(t *testing.T) {
	op := func(p *Program) *Kernel { return p.Steps[1].(*Kernel) }
	at := func(p *Program) *Instance { return &op(p).Instances[0] }
	code := func(i int, n kernel.Instr) func(*Program) {
		return func(p *Program) { p.Kernels[0].Code[i] = n }
	}
	for _, c := range []struct {
		name, want string
		edit       func(p *Program)
	}{
		{"too many", "16385 kernels", func(p *Program) { p.Kernels = make([]*kernel.Kernel, MaxKernels+1) }},
		{"rank", "index space 0 has 99 dims", func(p *Program) { p.Kernels[0].Spaces[0] = 99 }},
		{"reduced", "3 dims of 2 are reduced", func(p *Program) { p.Kernels[0].Reduced = 3 }},
		{"dtype", "operand 0: kernels don't compute in dtype 11", func(p *Program) { p.Kernels[0].Operands[0].DType = 11 }},
		{"access", "operand 0: access 0", func(p *Program) { p.Kernels[0].Operands[0].Access = 0 }},
		{"along", "dim 1 runs along dim 2 of 2", func(p *Program) { p.Kernels[0].Operands[0].Along[1] = 2 }},
		{"along twice", "two dims run along dim 0", func(p *Program) { p.Kernels[0].Operands[0].Along[1] = 0 }},
		{"op", "there is no op 13", code(0, kernel.Instr{Op: 13, Class: 1})},
		{"class", "operand 0 is loaded as f32, not f64", code(0, kernel.Instr{Op: 1, Class: 2})},
		{"later register", "register 2 is not made before it", code(2, kernel.Instr{Op: 48, Class: 1, A: 0, B: 2})},
		{"operand", "operand 2 of 2", code(0, kernel.Instr{Op: 1, Class: 1, A: 2})},
		{"written", "operand 1 is only written", code(0, kernel.Instr{Op: 1, Class: 1, A: 1})},
		{"read", "operand 0 is only read", code(4, kernel.Instr{Op: 2, Class: 1, A: 0, B: 3})},
		{"never stored", "operand 1 is never written", code(4, kernel.Instr{Op: 16, Class: 1, A: 3})},
		{"store of points", "points would write one element of operand 1 together",
			code(4, kernel.Instr{Op: 2, Class: 1, A: 1, B: 2})},
		{"word", "word 2 is 1, and means nothing", code(2, kernel.Instr{Op: 48, Class: 1, A: 0, B: 1, C: 1})},
		{"classes", "of f32 and b8", func(p *Program) { p.Kernels[0].Code[1].Class = 4 }},
		{"number", "number 1 of 1", code(1, kernel.Instr{Op: 3, Class: 1, A: 1})},
		{"number's dtype", "a number of dtype 11", code(1, kernel.Instr{Op: 3, Class: 1, B: 11})},
		{"number's dtype wraps", "a number of dtype 262", code(1, kernel.Instr{Op: 3, Class: 1, B: 256 + 6})},
		{"reduction of nothing", "the kernel reduces no dims", func(p *Program) { p.Kernels[0].Reduced = 0 }},
		{"kernel index", "kernel 1 of 1", func(p *Program) { op(p).Kernel = 1 }},
		{"sizes", "1 sizes, 2 tensors, 1 numbers, not 2, 2, 1", func(p *Program) { at(p).Sizes = at(p).Sizes[:1] }},
		{"tensor", "tensor 4 of 3", func(p *Program) { at(p).Uses[0].Tensor = 4 }},
		{"tensor's rank", "operand 0: a tensor of dtype 7 with 1 dims",
			func(p *Program) { p.Tensors[0].Sizes = p.Tensors[0].Sizes[:1] }},
		{"made and read", "operand 0: is read, and made only now", func(p *Program) { at(p).Uses[0].Made = true }},
		{"not there", "buffer 1 is used but doesn't exist here", func(p *Program) { at(p).Uses[1].Made = false }},
		{"complex", "number 0: is complex", func(p *Program) {
			at(p).Numbers[0] = Number(catalogue.NumberC128, 1)
		}},
		{"string", "number 0: an argument of tag 14 is no number", func(p *Program) { at(p).Numbers[0] = text("x") }},
		{"alone", "a kernel outside the kernels of a fused step",
			func(p *Program) { p.Steps, p.Records = p.Steps[1:], p.Records[1:] }},
		{"too long", "fused: 2 and 5 steps of the 6 that follow", func(p *Program) { p.Steps[0].(*Fused).Plain = 5 }},
		{"a call among kernels", "a *program.Call doesn't belong there",
			func(p *Program) { p.Steps[0].(*Fused).Kernels, p.Steps[0].(*Fused).Plain = 3, 3 }},
		{"a call that reads and makes tensors", "a *program.Call doesn't belong there",
			func(p *Program) { p.Steps[1] = p.Steps[3] }},
		{"other buffers", "its kernels change buffers [0 1], the steps in their place [0 1 2]", func(p *Program) {
			p.Steps, p.Records, p.Steps[0].(*Fused).Plain = p.Steps[:6], p.Records[:6], 3
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := fusedSample()
			c.edit(p)
			require.ErrorContains(t, p.Validate(), c.want)
		})
	}
}
