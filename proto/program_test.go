// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	pb "google.golang.org/protobuf/proto"
)

func TestValidateAcceptsSample(t *testing.T) {
	require.NoError(t, Validate(sample()))
}

// Each case breaks one rule of the sample program and says what the message must tell.
func TestValidateRefuses(t *testing.T) {
	call := func(p *Program) *CallOp { return p.Steps[0].GetCall() }
	arg := func(a *Arg) func(*Program) {
		return func(p *Program) { call(p).Args = []*Arg{a} }
	}
	item := func(kind uint32, a *Arg) func(*Program) {
		return arg(&Arg{Kind: &Arg_List_{List: &Arg_List{Kind: kind, Items: []*Arg{a}}}})
	}
	for _, c := range []struct {
		name, want string
		edit       func(p *Program)
	}{
		{"key", "key of 3 bytes", func(p *Program) { p.Key = p.Key[:3] }},
		{"params", "4194305 parameters", func(p *Program) { p.Params = MaxParams + 1 }},
		{"buffers", "4294967295 buffers", func(p *Program) { p.Buffers = 1<<32 - 1 }},
		{"inputs", "65537 inputs", func(p *Program) { p.Inputs = make([]uint32, MaxRef+1) }},
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
		{"contiguous with strides", "tensor 1: contiguous, but has 2 strides", func(p *Program) { p.Tensors[1].Contiguous = true }},
		{"strides missing", "tensor 1: 1 strides for 2 sizes", func(p *Program) { p.Tensors[1].Strides = p.Tensors[1].Strides[:1] }},
		{"size missing", "tensor 0: size 1 is missing", func(p *Program) { p.Tensors[0].Sizes[1] = nil }},
		{"stride missing", "tensor 1: stride 0 is missing", func(p *Program) { p.Tensors[1].Strides[0] = &Dim{} }},
		{"size param", "tensor 0: size 0: parameter 6 of 6", func(p *Program) { p.Tensors[0].Sizes[0] = par(6) }},
		{"size const", "tensor 0: size 0: a constant of 9223372036854775808", func(p *Program) { p.Tensors[0].Sizes[0] = con(1 << 63) }},
		{"offset", "tensor 3: offset: parameter 4294967295 of 6", func(p *Program) { p.Tensors[3].Offset = par(1<<32 - 1) }},
		{"step", "step 1: is of no known kind", func(p *Program) { p.Steps[1] = &Step{} }},
		{"op name", "step 0: call: op name of 0 bytes", func(p *Program) { call(p).Op = "" }},
		{"op name long", "op name of 1025 bytes", func(p *Program) { call(p).Op = strings.Repeat("x", MaxOpName+1) }},
		{"args", `step 0: call "aten::everything.out": 1025 arguments`, func(p *Program) { call(p).Args = make([]*Arg, MaxArgs+1) }},
		{"results", "65537 results", func(p *Program) { call(p).Results = make([]uint32, MaxResults+1) }},
		{"result range", "result 1: tensor 4 of 4", func(p *Program) { call(p).Results[1] = 5 }},
		{"result alive", "result 1: buffer 0 is made while it exists", func(p *Program) { call(p).Results[1] = 1 }},
		{"result twice", "result 1: buffer 1 is made while it exists", func(p *Program) { call(p).Results = []uint32{2, 2} }},
		{"use before birth", "argument 0: tensor 1: buffer 1 is used but doesn't exist here", arg(tensorArg(1))},
		{"tensor range", "argument 0: tensor 4 of 4", arg(tensorArg(4))},
		{"arg kind", "argument 0: is of no known kind", arg(&Arg{})},
		{"arg nil", "argument 0: is of no known kind", arg(nil)},
		{"number kind", "argument 0: number of kind 5", arg(&Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: 5}}})},
		{"number param", "argument 0: parameter 6 of 6", arg(&Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberF64, Param: 6}}})},
		{"complex param", "argument 0: parameter 6 of 6", arg(&Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: NumberC128, Param: 5}}})},
		{"scalar dtype", "scalar of dtype 77", arg(&Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: 77}}})},
		{"scalar param", "parameter 6 of 6", arg(&Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: dtypeC128, Param: 5}}})},
		{"size arg", "parameter 6 of 6", arg(&Arg{Kind: &Arg_Size{Size: 6}})},
		{"generator", "parameter 8 of 6", arg(&Arg{Kind: &Arg_Generator{Generator: 8}})},
		{"dtype arg", "dtype 99 doesn't exist", arg(&Arg{Kind: &Arg_Dtype{Dtype: 99}})},
		{"string", "65537 bytes of string", arg(&Arg{Kind: &Arg_Str{Str: strings.Repeat("x", MaxString+1)}})},
		{"list kind", "argument 0: list of kind 7", item(7, intArg(1))},
		{"list item", "item 0: a *proto.Arg_Int in a list of kind 1", item(ListTensors, intArg(1))},
		{"list in list", "item 0: a *proto.Arg_List_ in a list of kind 6", item(ListScalars, &Arg{Kind: &Arg_List_{List: &Arg_List{Kind: ListInts}}})},
		{"list item range", "argument 0: item 0: tensor 4 of 4", item(ListTensors, tensorArg(4))},
		{"copy src", "step 1: copy: tensor 3: buffer 3 is used", func(p *Program) { p.Steps[1].GetCopy().Src = 3 }},
		{"copy dst", "step 1: copy: tensor 4 of 4", func(p *Program) { p.Steps[1].GetCopy().Dst = 4 }},
		{"alloc alive", "step 2: alloc: buffer 1 is made while it exists", func(p *Program) { p.Steps[2].GetAlloc().Buffer = 1 }},
		{"alloc bytes", "step 2: alloc: bytes: parameter 9 of 6", func(p *Program) { p.Steps[2].GetAlloc().Bytes = par(9) }},
		{"clone to", "step 3: clone: buffer 1 is made while it exists", func(p *Program) { p.Steps[3].GetClone().To = 1 }},
		{"clone from", "step 3: clone: buffer 4 is used but doesn't exist here", func(p *Program) { p.Steps[3].GetClone().From = 4 }},
		{"free", "step 4: free: buffer 5 of 5", func(p *Program) { p.Steps[4].GetFree().Buffer = 5 }},
		{"resize freed", "step 5: resize: buffer 0 is used but doesn't exist here", func(p *Program) { p.Steps[5].GetResize().Buffer = 0 }},
		{"resize bytes", "step 5: resize: bytes: parameter 6 of 6", func(p *Program) { p.Steps[5].GetResize().Bytes = par(6) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := sample()
			c.edit(p)
			require.ErrorContains(t, Validate(p), c.want)
		})
	}
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

// Whatever the bytes: no panic, and an accepted program survives its encoding to words.
func FuzzDecodeProgram(f *testing.F) {
	b, err := pb.Marshal(sample())
	require.NoError(f, err)
	f.Add(b)
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
