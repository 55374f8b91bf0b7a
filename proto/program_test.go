// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
)

func TestValidateAcceptsSample(t *testing.T) {
	require.NoError(t, Validate(sample()))
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
			require.ErrorContains(t, Validate(p), c.want)
		})
	}
}

func callOf(p *Program) *CallOp { return p.Steps[0].GetCall() }

func TestValidateRefuses(t *testing.T) {
	requireRefusals(t, []refusal{
		{"key", "key of 3 bytes", func(p *Program) { p.Key = p.Key[:3] }},
		{"params", "4194305 parameters", func(p *Program) { p.Params = MaxParams + 1 }},
		{"buffers", "4294967295 buffers", func(p *Program) { p.Buffers = 1<<32 - 1 }},
		{"inputs", "262145 inputs", func(p *Program) { p.Inputs = make([]uint32, MaxRef+1) }},
		{"input range", "input 0: buffer 5 of 5", func(p *Program) { p.Inputs[0] = 5 }},
		{"input twice", "input 1: buffer 0 is made while it exists", func(p *Program) { p.Inputs = []uint32{0, 0} }},
		{"output range", "output 0: buffer 9 of 5", func(p *Program) { p.Outputs[0] = 9 }},
		{"output twice", "output 1: buffer 4 is an output twice", func(p *Program) { p.Outputs[1] = 4 }},
		{"output freed", "output 0: buffer 0 doesn't exist at the end", func(p *Program) { p.Outputs[0] = 0 }},
		{"tensor missing", "tensor 3: is missing", func(p *Program) { p.Tensors[3] = nil }},
		{"tensor buffer", "tensor 0: buffer 7 of 5", func(p *Program) { p.Tensors[0].Buffer = 7 }},
		{"tensor dtype", "tensor 2: dtype 21 doesn't exist", func(p *Program) { p.Tensors[2].Dtype = 21 }},
		{"tensor dtype 0", "tensor 2: dtype 0 doesn't exist", func(p *Program) { p.Tensors[2].Dtype = 0 }},
		{"rank", "tensor 0: 256 dims", func(p *Program) { p.Tensors[0].Sizes = make([]*Dim, 256) }},
		{"contiguous with strides", "tensor 1: contiguous, but has 2 strides",
			func(p *Program) { p.Tensors[1].Contiguous = true }},
		{"strides missing", "tensor 1: 1 strides for 2 sizes",
			func(p *Program) { p.Tensors[1].Strides = p.Tensors[1].Strides[:1] }},
		{"size missing", "tensor 0: size 1 is missing", func(p *Program) { p.Tensors[0].Sizes[1] = nil }},
		{"stride missing", "tensor 1: stride 0 is missing", func(p *Program) { p.Tensors[1].Strides[0] = &Dim{} }},
		{"size param", "tensor 0: size 0: parameter 6 of 6", func(p *Program) { p.Tensors[0].Sizes[0] = par(6) }},
		{"size const", "tensor 0: size 0: a constant of 9223372036854775808",
			func(p *Program) { p.Tensors[0].Sizes[0] = con(1 << 63) }},
		{"offset", "tensor 3: offset: parameter 4294967295 of 6", func(p *Program) { p.Tensors[3].Offset = par(1<<32 - 1) }},
		{"step", "step 1: is of no known kind", func(p *Program) { p.Steps[1] = &Step{} }},
		{"op name", "step 0: call: op name of 0 bytes", func(p *Program) { callOf(p).Op = "" }},
		{"op name long", "op name of 1025 bytes", func(p *Program) { callOf(p).Op = strings.Repeat("x", MaxOpName+1) }},
		{"args", `step 0: call "aten::everything.out": 1025 arguments`,
			func(p *Program) { callOf(p).Args = make([]*Arg, MaxArgs+1) }},
		{"results", "65537 results", func(p *Program) { callOf(p).Results = make([]uint32, MaxResults+1) }},
		{"result range", "result 1: tensor 4 of 4", func(p *Program) { callOf(p).Results[1] = 5 }},
		{"result alive", "result 1: buffer 0 is made while it exists", func(p *Program) { callOf(p).Results[1] = 1 }},
		{"result twice", "result 1: buffer 1 is made while it exists",
			func(p *Program) { callOf(p).Results = []uint32{2, 2} }},
		{"copy src", "step 1: copy: tensor 3: buffer 3 is used", func(p *Program) { p.Steps[1].GetCopy().Src = 3 }},
		{"copy dst", "step 1: copy: tensor 4 of 4", func(p *Program) { p.Steps[1].GetCopy().Dst = 4 }},
		{"alloc alive", "step 2: alloc: buffer 1 is made while it exists",
			func(p *Program) { p.Steps[2].GetAlloc().Buffer = 1 }},
		{"alloc bytes", "step 2: alloc: bytes: parameter 9 of 6", func(p *Program) { p.Steps[2].GetAlloc().Bytes = par(9) }},
		{"clone to", "step 3: clone: buffer 1 is made while it exists", func(p *Program) { p.Steps[3].GetClone().To = 1 }},
		{"clone from", "step 3: clone: buffer 4 is used but doesn't exist here",
			func(p *Program) { p.Steps[3].GetClone().From = 4 }},
		{"free", "step 4: free: buffer 5 of 5", func(p *Program) { p.Steps[4].GetFree().Buffer = 5 }},
		{"resize freed", "step 5: resize: buffer 0 is used but doesn't exist here",
			func(p *Program) { p.Steps[5].GetResize().Buffer = 0 }},
		{"resize bytes", "step 5: resize: bytes: parameter 6 of 6",
			func(p *Program) { p.Steps[5].GetResize().Bytes = par(6) }},
	})
}

func TestValidateRefusesArguments(t *testing.T) {
	arg := func(a *Arg) func(*Program) {
		return func(p *Program) { callOf(p).Args = []*Arg{a} }
	}
	item := func(kind uint32, a *Arg) func(*Program) {
		return arg(&Arg{Kind: &Arg_List_{List: &Arg_List{Kind: kind, Items: []*Arg{a}}}})
	}
	requireRefusals(t, []refusal{
		{"use before birth", "argument 0: tensor 1: buffer 1 is used but doesn't exist here", arg(tensorArg(1))},
		{"tensor range", "argument 0: tensor 4 of 4", arg(tensorArg(4))},
		{"arg kind", "argument 0: is of no known kind", arg(&Arg{})},
		{"arg nil", "argument 0: is of no known kind", arg(nil)},
		{"number kind", "argument 0: number of kind 5", arg(&Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: 5}}})},
		{"number param", "argument 0: parameter 6 of 6",
			arg(&Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberF64, Param: 6}}})},
		{"complex param", "argument 0: parameter 6 of 6",
			arg(&Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberC128, Param: 5}}})},
		{"scalar dtype", "scalar of dtype 77", arg(&Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: 77}}})},
		{"scalar param", "parameter 6 of 6", arg(&Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: 11, Param: 5}}})},
		{"size arg", "parameter 6 of 6", arg(&Arg{Kind: &Arg_Size{Size: 6}})},
		{"generator", "parameter 8 of 6", arg(&Arg{Kind: &Arg_Generator{Generator: 8}})},
		{"dtype arg", "dtype 99 doesn't exist", arg(&Arg{Kind: &Arg_Dtype{Dtype: 99}})},
		{"string", "65537 bytes of string", arg(&Arg{Kind: &Arg_Str{Str: strings.Repeat("x", MaxString+1)}})},
		{"list kind", "argument 0: list of kind 7", item(7, intArg(1))},
		{"list item", "item 0: a *proto.Arg_Int in a list of kind 1", item(ListTensors, intArg(1))},
		{"list in list", "item 0: a *proto.Arg_List_ in a list of kind 6",
			item(ListScalars, &Arg{Kind: &Arg_List_{List: &Arg_List{Kind: ListInts}}})},
		{"list item range", "argument 0: item 0: tensor 4 of 4", item(ListTensors, tensorArg(4))},
	})
}

func TestDecodeProgramBoundsBytes(t *testing.T) {
	_, err := DecodeProgram(make([]byte, MaxProgramBytes+1))
	require.ErrorContains(t, err, "at most 16777216 are allowed")
	_, err = DecodeProgram([]byte{0xff})
	require.Error(t, err)
}

func TestValidateCall(t *testing.T) {
	good := func() *Call {
		return &Call{Params: make([]uint64, 6), Inputs: []uint64{7}, Outputs: []uint64{7, 0}}
	}
	p := sample()
	require.NoError(t, ValidateCall(p, good()))
	for want, edit := range map[string]func(c *Call){
		"5 parameters, the program has 6": func(c *Call) { c.Params = c.Params[:5] },
		"0 inputs, the program has 1":     func(c *Call) { c.Inputs = nil },
		"3 outputs, the program has 2":    func(c *Call) { c.Outputs = make([]uint64, 3) },
		"input 0 is storage 0":            func(c *Call) { c.Inputs[0] = 0 },
		"output 1 is storage 7":           func(c *Call) { c.Outputs[1] = 7 },
	} {
		c := good()
		edit(c)
		require.ErrorContains(t, ValidateCall(p, c), want)
	}
	p.Inputs = []uint32{0, 1}
	c := good()
	c.Inputs = []uint64{7, 7}
	require.ErrorContains(t, ValidateCall(p, c), "input 1 is storage 7")
}

// Each case breaks one rule of a program with a kernel.
func TestValidateRefusesKernels(t *testing.T) {
	require.NoError(t, Validate(fusedSample()))
	op := func(p *Program) *KernelOp { return p.Steps[1].GetKernel() }
	at := func(p *Program) *KernelOp_Instance { return op(p).Instances[0] }
	code := func(i int, n *Kernel_Instr) func(*Program) {
		return func(p *Program) { p.Kernels[0].Code[i] = n }
	}
	for _, c := range []struct {
		name, want string
		edit       func(p *Program)
	}{
		{"too many", "16385 kernels", func(p *Program) { p.Kernels = make([]*Kernel, MaxKernels+1) }},
		{"missing", "kernel 0: kernel: is missing", func(p *Program) { p.Kernels[0] = nil }},
		{"rank", "an index space's rank of 99", func(p *Program) { p.Kernels[0].Spaces[0] = 99 }},
		{"spaces", "9 index spaces", func(p *Program) { p.Kernels[0].Spaces = make([]uint32, 9) }},
		{"reduced", "3 dims of 2 are reduced", func(p *Program) { p.Kernels[0].Reduced = 3 }},
		{"wraps", "reduced dims of 4294967295", func(p *Program) { p.Kernels[0].Reduced = 1<<32 - 1 }},
		{"dtype", "operand 0: kernels don't compute in dtype 11", func(p *Program) { p.Kernels[0].Operands[0].Dtype = 11 }},
		{"dtype wraps", "operand 0: dtype 263", func(p *Program) { p.Kernels[0].Operands[0].Dtype = 256 + 7 }},
		{"access", "operand 0: access 0", func(p *Program) { p.Kernels[0].Operands[0].Access = 0 }},
		{"along", "dim 1 runs along dim 2 of 2", func(p *Program) { p.Kernels[0].Operands[0].Along[1] = 3 }},
		{"along twice", "two dims run along dim 0", func(p *Program) { p.Kernels[0].Operands[0].Along[1] = 1 }},
		{"op", "there is no op 13", code(0, &Kernel_Instr{Op: 13, Class: 1})},
		{"op wraps", "instruction 0: op 257", code(0, &Kernel_Instr{Op: 257, Class: 1})},
		{"class", "operand 0 is loaded as f32, not f64", code(0, &Kernel_Instr{Op: 1, Class: 2})},
		{"later register", "register 2 is not made before it", code(2, &Kernel_Instr{Op: 48, Class: 1, A: 0, B: 2})},
		{"operand", "operand 2 of 2", code(0, &Kernel_Instr{Op: 1, Class: 1, A: 2})},
		{"written", "operand 1 is only written", code(0, &Kernel_Instr{Op: 1, Class: 1, A: 1})},
		{"read", "operand 0 is only read", code(4, &Kernel_Instr{Op: 2, Class: 1, A: 0, B: 3})},
		{"never stored", "operand 1 is never written", code(4, &Kernel_Instr{Op: 16, Class: 1, A: 3})},
		{"store of points", "points would write one element of operand 1 together",
			code(4, &Kernel_Instr{Op: 2, Class: 1, A: 1, B: 2})},
		{"word", "word 2 is 1, and means nothing", code(2, &Kernel_Instr{Op: 48, Class: 1, A: 0, B: 1, C: 1})},
		{"classes", "of f32 and b8", func(p *Program) { p.Kernels[0].Code[1].Class = 4 }},
		{"number", "number 1 of 1", code(1, &Kernel_Instr{Op: 3, Class: 1, A: 1})},
		{"number's dtype", "a number of dtype 11", code(1, &Kernel_Instr{Op: 3, Class: 1, B: 11})},
		{"number's dtype wraps", "a number of dtype 262", code(1, &Kernel_Instr{Op: 3, Class: 1, B: 256 + 6})},
		{"reduction of nothing", "the kernel reduces no dims", func(p *Program) { p.Kernels[0].Reduced = 0 }},
		{"kernel index", "kernel 1 of 1", func(p *Program) { op(p).Kernel = 1 }},
		{"sizes", "1 sizes, 2 tensors, 1 numbers, not 2, 2, 1", func(p *Program) { at(p).Sizes = at(p).Sizes[:1] }},
		{"size missing", "size 0 is missing", func(p *Program) { at(p).Sizes[0] = nil }},
		{"tensor", "tensor 4 of 3", func(p *Program) { at(p).Tensors[0] = 8 }},
		{"tensor's rank", "operand 0 is of dtype 7 with 1 dims",
			func(p *Program) { p.Tensors[0].Sizes = p.Tensors[0].Sizes[:1] }},
		{"made and read", "operand 0 is read, and made only now", func(p *Program) { at(p).Tensors[0] = 1 }},
		{"not there", "buffer 1 is used but doesn't exist here", func(p *Program) { at(p).Tensors[1] = 2 }},
		{"complex", "number 0 is complex", func(p *Program) {
			at(p).Numbers[0] = &Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberC128, Param: 1}}}
		}},
		{"string", "number 0 is a *proto.Arg_Str", func(p *Program) { at(p).Numbers[0] = &Arg{Kind: &Arg_Str{Str: "x"}} }},
		{"alone", "a kernel outside the kernels of a fused step", func(p *Program) { p.Steps = p.Steps[1:] }},
		{"too long", "fused: 2 and 5 steps of the 6 that follow", func(p *Program) { p.Steps[0].GetFused().Plain = 5 }},
		{"a call among kernels", "a *proto.Step_Call doesn't belong there",
			func(p *Program) { p.Steps[0].GetFused().Kernels, p.Steps[0].GetFused().Plain = 3, 3 }},
		{"a call that reads and makes tensors", "a *proto.Step_Call doesn't belong there",
			func(p *Program) { p.Steps[1] = p.Steps[3] }},
		{"other buffers", "its kernels change buffers [0 1], the steps in their place [0 1 2]", func(p *Program) {
			p.Steps, p.Steps[0].GetFused().Plain = p.Steps[:6], 3
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := fusedSample()
			c.edit(p)
			require.ErrorContains(t, Validate(p), c.want)
		})
	}
}

// FuzzDecodeProgram: no bytes cause a panic, and Words encodes each accepted program.
func FuzzDecodeProgram(f *testing.F) {
	for _, p := range []*Program{sample(), fusedSample()} {
		b, err := protobuf.Marshal(p)
		require.NoError(f, err)
		f.Add(b)
	}
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := DecodeProgram(b)
		if err != nil {
			return
		}
		got, err := unwords(Words(p))
		require.NoError(t, err)
		requireSameRun(t, p, got)
	})
}
