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

// The bytes of version 1, of the program and of each message.
func TestGoldenBytes(t *testing.T) {
	status := &Status{Kind: ErrIndex, Text: "index 5 is out of range", Call: 9, Step: 2}
	for name, m := range map[string]protobuf.Message{
		"program": sample(),
		"fused":   fusedSample(),
		"hello": &Hello{Protocol: 1, Build: "0.1.0", Abi: 1, Device: "cpu", DeviceName: "x", Torch: "2.15.0",
			Pid: 77, Error: "No."},
		"call":        &Call{Key: sample().Key, Params: []uint64{1, math.MaxUint64}, Inputs: []uint64{1}, Outputs: []uint64{0, 300}, Frees: []uint64{4}},
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

// requireSameRun compares what the executor sees of two programs.
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
	next := func() uint64 { v := w[0]; w = w[1:]; return v }
	u32 := func() uint32 { return uint32(next()) }
	dim := func() *Dim {
		if next() == 1 {
			return par(u32())
		}
		return con(next())
	}
	str := func() string {
		n := next()
		var b []byte
		for i := uint64(0); i < (n+7)/8; i++ {
			b = binary.LittleEndian.AppendUint64(b, next())
		}
		return string(b[:n])
	}
	var arg func() *Arg
	arg = func() *Arg {
		switch tag := next(); tag {
		case 2:
			return &Arg{Kind: &Arg_None{None: true}}
		case 3:
			return tensorArg(u32())
		case 4:
			return &Arg{Kind: &Arg_Number_{Number: &Arg_Number{Kind: u32(), Param: u32()}}}
		case 5:
			return &Arg{Kind: &Arg_Scalar_{Scalar: &Arg_Scalar{Dtype: u32(), Param: u32()}}}
		case 6:
			return &Arg{Kind: &Arg_Size{Size: u32()}}
		case 7:
			return intArg(int64(next()))
		case 8:
			return &Arg{Kind: &Arg_Float{Float: math.Float64frombits(next())}}
		case 9:
			return &Arg{Kind: &Arg_Bool{Bool: next() == 1}}
		case 10:
			return &Arg{Kind: &Arg_Dtype{Dtype: u32()}}
		case 11:
			return &Arg{Kind: &Arg_Layout{Layout: u32()}}
		case 12:
			return &Arg{Kind: &Arg_Device{Device: next() == 0}}
		case 13:
			return &Arg{Kind: &Arg_MemoryFormat{MemoryFormat: u32()}}
		case 14:
			return &Arg{Kind: &Arg_Str{Str: str()}}
		case 15:
			return &Arg{Kind: &Arg_Generator{Generator: u32()}}
		case 16:
			l := &Arg_List{Kind: u32()}
			for n := next(); n > 0; n-- {
				l.Items = append(l.Items, arg())
			}
			return &Arg{Kind: &Arg_List_{List: l}}
		default:
			panic(fmt.Sprintf("argument tag %d", tag))
		}
	}
	p = &Program{Params: u32(), Buffers: u32()}
	for n := next(); n > 0; n-- {
		t := &Tensor{Buffer: u32(), Dtype: u32()}
		rank := next()
		for range rank {
			t.Sizes = append(t.Sizes, dim())
		}
		if t.Contiguous = next() == 1; !t.Contiguous {
			for range rank {
				t.Strides = append(t.Strides, dim())
			}
		}
		t.Offset = dim()
		p.Tensors = append(p.Tensors, t)
	}
	for n := next(); n > 0; n-- {
		k := &Kernel{}
		for n := next(); n > 0; n-- {
			k.Frames = append(k.Frames, u32())
		}
		k.Folded = u32()
		for n := next(); n > 0; n-- {
			o := &Kernel_Operand{Dtype: u32(), Access: u32(), Frame: u32()}
			for n := next(); n > 0; n-- {
				o.Along = append(o.Along, u32())
			}
			k.Operands = append(k.Operands, o)
		}
		k.Numbers = u32()
		for n := next(); n > 0; n-- {
			head := next()
			k.Code = append(k.Code, &Kernel_Instr{Op: uint32(head & 0xff), Class: uint32(head >> 8), A: next(), B: next(), C: next()})
		}
		p.Kernels = append(p.Kernels, k)
	}
	for n := next(); n > 0; n-- {
		s := &Step{}
		switch tag := next(); tag {
		case 1:
			c := &CallOp{Op: str()}
			for n := next(); n > 0; n-- {
				c.Args = append(c.Args, arg())
			}
			for n := next(); n > 0; n-- {
				c.Results = append(c.Results, u32())
			}
			c.Flags = u32()
			s.Kind = &Step_Call{Call: c}
		case 2:
			s.Kind = &Step_Copy{Copy: &Copy{Dst: u32(), Src: u32()}}
		case 3:
			s.Kind = &Step_Alloc{Alloc: &Alloc{Buffer: u32(), Bytes: dim()}}
		case 4:
			s.Kind = &Step_Clone{Clone: &Clone{To: u32(), From: u32()}}
		case 5:
			s.Kind = &Step_Free{Free: &Free{Buffer: u32()}}
		case 6:
			s.Kind = &Step_Resize{Resize: &Resize{Buffer: u32(), Bytes: dim()}}
		case 7:
			s.Kind = &Step_Fused{Fused: &Fused{Kernels: u32(), Plain: u32()}}
		case 8:
			c := &KernelOp{Kernel: u32()}
			k := p.Kernels[c.Kernel]
			for n := next(); n > 0; n-- {
				at := &KernelOp_Instance{}
				for _, rank := range k.Frames {
					for range rank {
						at.Sizes = append(at.Sizes, dim())
					}
				}
				for range k.Operands {
					at.Tensors = append(at.Tensors, 2*u32()+u32())
				}
				for range k.Numbers {
					at.Numbers = append(at.Numbers, arg())
				}
				c.Instances = append(c.Instances, at)
			}
			s.Kind = &Step_Kernel{Kernel: c}
		default:
			panic(fmt.Sprintf("step tag %d", tag))
		}
		p.Steps = append(p.Steps, s)
	}
	if len(w) != 0 {
		return nil, fmt.Errorf("%d words are left over", len(w))
	}
	return p, nil
}
