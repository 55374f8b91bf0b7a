// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"encoding/binary"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "v1", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got, "version 1 of the wire is fixed: a changed encoding is a new version")
}

// TestGoldenBytes compares the bytes of a program and of each message with those of version 1.
func TestGoldenBytes(t *testing.T) {
	status := &Status{Kind: ErrIndex, Text: "index 5 is out of range", Call: 9, Step: 2}
	for name, m := range map[string]protobuf.Message{
		"program": sample(),
		"fused":   fusedSample(),
		"hello": &Hello{Protocol: 1, Build: "0.1.0", Abi: 1, Device: "cpu", DeviceName: "x", Torch: "2.15.0",
			Pid: 77, Error: "No."},
		"call": &Call{Key: sample().Key, Params: []uint64{1, math.MaxUint64}, Inputs: []uint64{1},
			Outputs: []uint64{0, 300}, Frees: []uint64{4}},
		"upload":      &Upload{Storage: 300, Bytes: 1 << 33},
		"free":        &FreeStorages{Storages: []uint64{1, 2, 300}},
		"read":        &Read{Storage: 1, Dtype: 7, Sizes: []int64{2, 3}, Strides: []int64{3, 1}, Offset: 5},
		"readreply":   &ReadReply{Bytes: 24, Status: status},
		"sync":        &Sync{},
		"syncreply":   &SyncReply{Status: status, Storages: 3, Bytes: 4096},
		"done":        &Done{Errors: []*Status{status}, Failed: 40, UnknownProgram: true},
		"share":       &Share{Block: 3, Bytes: 4 << 20},
		"unshare":     &Unshare{Block: 3},
		"uploadfrom":  &UploadFrom{Storage: 9, Block: 3, Offset: 64 << 10, Bytes: 1 << 16},
		"uploaded":    &Uploaded{},
		"helloblocks": &Hello{Protocol: 1, Build: "0.1.0", Abi: 2, Device: "cpu", Blocks: 256},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := protobuf.MarshalOptions{Deterministic: true}.Marshal(m)
			require.NoError(t, err)
			golden(t, name+".binpb", b)
			back := m.ProtoReflect().New().Interface()
			require.NoError(t, protobuf.Unmarshal(b, back))
			require.True(t, protobuf.Equal(m, back))
		})
	}
}

func TestGoldenWords(t *testing.T) {
	var s strings.Builder
	for _, w := range Words(sample()) {
		fmt.Fprintf(&s, "%016x\n", w)
	}
	golden(t, "program.words", []byte(s.String()))
}

func TestWordsRoundTrip(t *testing.T) {
	for _, p := range []*Program{sample(), fusedSample()} {
		got, err := unwords(Words(p))
		require.NoError(t, err)
		requireSameRun(t, p, got)
	}
}

// requireSameRun compares the parts of two programs that the executor reads.
func requireSameRun(t *testing.T, want, got *Program) {
	t.Helper()
	require.Equal(t, Words(want), Words(got))
	require.Equal(t, want.Params, got.Params)
	require.Equal(t, want.Buffers, got.Buffers)
	require.Len(t, got.Steps, len(want.Steps))
	for i := range want.Steps {
		if want.Steps[i].GetCall() == nil {
			continue
		}
		w, g := want.Steps[i].GetCall(), got.Steps[i].GetCall()
		require.Equal(t, w.Op, g.Op)
		require.Len(t, g.Args, len(w.Args))
		for j := range w.Args {
			require.IsType(t, w.Args[j].Kind, g.Args[j].Kind)
		}
	}
}

// unwords is the test's own reader of the grammar in csrc/abi/mycelya.h.
func unwords(w []uint64) (p *Program, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("words end too early: %v", r)
		}
	}()
	r := wordReader(w)
	p = &Program{Params: r.u32(), Buffers: r.u32()}
	for n := r.next(); n > 0; n-- {
		p.Tensors = append(p.Tensors, r.tensor())
	}
	for n := r.next(); n > 0; n-- {
		p.Kernels = append(p.Kernels, r.kernel())
	}
	for n := r.next(); n > 0; n-- {
		p.Records = append(p.Records, uint32(r[0]>>32))
		r[0] &= math.MaxUint32
		p.Steps = append(p.Steps, r.step(p.Kernels))
	}
	for n := r.next(); n > 0; n-- {
		output := r.u32()
		if !slices.Contains(p.Outputs, output) {
			p.Outputs = append(p.Outputs, output)
		}
		p.Versions = append(p.Versions, uint32(slices.Index(p.Outputs, output)), r.u32(), r.u32(), r.u32())
	}
	if len(r) != 0 {
		return nil, fmt.Errorf("%d words are left over", len(r))
	}
	return p, nil
}

// wordReader holds the words that have not been read yet. Reading beyond the end panics.
type wordReader []uint64

func (r *wordReader) next() uint64 {
	v := (*r)[0]
	*r = (*r)[1:]
	return v
}

func (r *wordReader) u32() uint32 { return uint32(r.next()) }

func (r *wordReader) dim() *Dim {
	if r.next() == 1 {
		return par(r.u32())
	}
	return con(r.next())
}

func (r *wordReader) text() string {
	n := r.next()
	var b []byte
	for i := uint64(0); i < (n+7)/8; i++ {
		b = binary.LittleEndian.AppendUint64(b, r.next())
	}
	return string(b[:n])
}

func (r *wordReader) arg() *Arg {
	switch tag := r.next(); tag {
	case 2:
		return &Arg{Kind: &Arg_None{None: true}}
	case 3:
		return tensorArg(r.u32())
	case 4:
		return &Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: r.u32(), Param: r.u32()}}}
	case 5:
		return &Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: r.u32(), Param: r.u32()}}}
	case 6:
		return &Arg{Kind: &Arg_Size{Size: r.u32()}}
	case 7:
		return intArg(int64(r.next()))
	case 8:
		return &Arg{Kind: &Arg_Float{Float: math.Float64frombits(r.next())}}
	case 9:
		return &Arg{Kind: &Arg_Bool{Bool: r.next() == 1}}
	case 10:
		return &Arg{Kind: &Arg_Dtype{Dtype: r.u32()}}
	case 11:
		return &Arg{Kind: &Arg_Layout{Layout: r.u32()}}
	case 12:
		return &Arg{Kind: &Arg_Device{Device: r.next() == 0}}
	case 13:
		return &Arg{Kind: &Arg_MemoryFormat{MemoryFormat: r.u32()}}
	case 14:
		return &Arg{Kind: &Arg_Str{Str: r.text()}}
	case 15:
		return &Arg{Kind: &Arg_Generator{Generator: r.u32()}}
	case 16:
		l := &Arg_List{Kind: r.u32()}
		for n := r.next(); n > 0; n-- {
			l.Items = append(l.Items, r.arg())
		}
		return &Arg{Kind: &Arg_List_{List: l}}
	default:
		panic(fmt.Sprintf("argument tag %d", tag))
	}
}

func (r *wordReader) tensor() *Tensor {
	t := &Tensor{Buffer: r.u32(), Dtype: r.u32()}
	rank := r.next()
	for range rank {
		t.Sizes = append(t.Sizes, r.dim())
	}
	if t.Contiguous = r.next() == 1; !t.Contiguous {
		for range rank {
			t.Strides = append(t.Strides, r.dim())
		}
	}
	t.Offset = r.dim()
	return t
}

func (r *wordReader) kernel() *Kernel {
	k := &Kernel{}
	for n := r.next(); n > 0; n-- {
		k.Spaces = append(k.Spaces, r.u32())
	}
	k.Reduced = r.u32()
	for n := r.next(); n > 0; n-- {
		o := &Kernel_Operand{Dtype: r.u32(), Access: r.u32(), Space: r.u32()}
		for n := r.next(); n > 0; n-- {
			o.Along = append(o.Along, r.u32())
		}
		k.Operands = append(k.Operands, o)
	}
	k.Numbers = r.u32()
	for n := r.next(); n > 0; n-- {
		head := r.next()
		k.Code = append(k.Code, &Kernel_Instr{
			Op: uint32(head & 0xff), Class: uint32(head >> 8), A: r.next(), B: r.next(), C: r.next(),
		})
	}
	return k
}

func (r *wordReader) step(kernels []*Kernel) *Step {
	switch tag := r.next(); tag {
	case 1:
		return &Step{Kind: &Step_Call{Call: r.call()}}
	case 2:
		return &Step{Kind: &Step_Copy{Copy: &Copy{Dst: r.u32(), Src: r.u32()}}}
	case 3:
		return &Step{Kind: &Step_Alloc{Alloc: &Alloc{Buffer: r.u32(), Bytes: r.dim()}}}
	case 4:
		return &Step{Kind: &Step_Clone{Clone: &Clone{To: r.u32(), From: r.u32()}}}
	case 5:
		return &Step{Kind: &Step_Free{Free: &Free{Buffer: r.u32()}}}
	case 6:
		return &Step{Kind: &Step_Resize{Resize: &Resize{Buffer: r.u32(), Bytes: r.dim()}}}
	case 7:
		return &Step{Kind: &Step_Fused{Fused: &Fused{Kernels: r.u32(), Plain: r.u32()}}}
	case 8:
		c := &KernelOp{Kernel: r.u32()}
		for n := r.next(); n > 0; n-- {
			c.Instances = append(c.Instances, r.instance(kernels[c.Kernel]))
		}
		return &Step{Kind: &Step_Kernel{Kernel: c}}
	default:
		panic(fmt.Sprintf("step tag %d", tag))
	}
}

func (r *wordReader) call() *CallOp {
	c := &CallOp{Op: r.text()}
	for n := r.next(); n > 0; n-- {
		c.Args = append(c.Args, r.arg())
	}
	for n := r.next(); n > 0; n-- {
		c.Results = append(c.Results, r.u32())
	}
	c.Flags = r.u32()
	return c
}

func (r *wordReader) instance(k *Kernel) *KernelOp_Instance {
	at := &KernelOp_Instance{}
	for _, rank := range k.Spaces {
		for range rank {
			at.Sizes = append(at.Sizes, r.dim())
		}
	}
	for range k.Operands {
		at.Tensors = append(at.Tensors, 2*r.u32()+r.u32())
	}
	for range k.Numbers {
		at.Numbers = append(at.Numbers, r.arg())
	}
	return at
}
