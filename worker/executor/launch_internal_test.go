// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package executor

import (
	"bytes"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/worker/kernels"
)

// instant is a compiler that takes no time.
type instant struct{}

func (instant) Version() string { return "instant" }
func (instant) Compile(string, string, []string) ([]byte, string, error) {
	return []byte("code"), "", nil
}

// scaled returns the plans of y = x * number for vectors: parameter 0 is their length, parameter 1 the number.
func scaled(t *testing.T) *plans {
	k := &kernel.Kernel{
		Spaces:  []int{1},
		Numbers: 1,
		Operands: []kernel.Operand{
			{DType: 7, Access: kernel.Read, Along: []int8{0}},
			{DType: 7, Access: kernel.Write, Along: []int8{0}},
		},
		Code: []kernel.Instr{
			{Op: kernel.Load, Class: kernel.F32},
			{Op: kernel.Number, Class: kernel.F32},
			{Op: kernel.Mul, Class: kernel.F32, A: 0, B: 1},
			{Op: kernel.Store, Class: kernel.F32, A: 1, B: 2},
		},
	}
	n := []program.Dim{program.Param(0)}
	number := program.Number(catalogue.NumberF64, 1)
	p := &program.Program{
		Params:  2,
		Buffers: 2,
		Inputs:  []uint32{0},
		Outputs: []uint32{1},
		Kernels: []*kernel.Kernel{k},
		Tensors: []program.Tensor{{DType: 7, Sizes: n}, {Buffer: 1, DType: 7, Sizes: n}},
		Steps: []program.Step{
			&program.Fused{Kernels: 1, Plain: 1},
			&program.Kernel{Instances: []program.Instance{
				{Sizes: n, Uses: []program.Use{{}, {Tensor: 1, Made: true}}, Numbers: []program.Arg{number}},
			}},
			&program.Call{Op: "aten::mul.Tensor", Args: []program.Arg{program.Window(0), number}, Results: []uint32{2}},
		},
		Records: make([]uint32, 3),
	}
	require.NoError(t, p.Validate())
	compiler := Kernels{Compiler: func() (kernels.Compiler, error) { return instant{}, nil }, Threads: 1}
	l, err := newLauncher(
		compiler,
		"",
		Info{Arch: "sm_90", Processors: 100},
		nil,
		func(cubin []byte, entries []string) (any, error) {
			c := &code{entries: map[string]uint64{}}
			for _, e := range entries {
				c.entries[e] = 77
			}
			return c, nil
		},
	)
	require.NoError(t, err)
	t.Cleanup(l.cache.Close)
	return newPlans(l, p)
}

// ready returns the words of a call after its kernels are ready.
func ready(t *testing.T, s *plans, params ...uint64) []uint64 {
	s.launches(params)
	for _, k := range s.made {
		require.Equal(t, kernels.Ready, k.Wait())
	}
	words, waiting := s.launches(params)
	require.Zero(t, waiting)
	return words
}

// TestLaunchWords checks the words of a launch, which csrc/abi/mycelya.h describes, and how they depend on a call's
// parameters.
func TestLaunchWords(t *testing.T) {
	s := scaled(t)
	two, half := math.Float64bits(2), math.Float64bits(0.5)
	words := slices.Clone(ready(t, s, 1000, two))
	require.Equal(t, []uint64{
		0, 1, // step 0: one launch
		1, 77, 2, 32, 1, 0, 0, 0, // of step 1: two blocks of 32 threads, which have 16 elements each
		2, 0, 1, // the operands
		4, 1, 0, 0, 0, uint64(math.Float32bits(2)), 1000, // instance 0: two addresses, the number, the points
		0,
	}, words)
	require.Len(t, s.ready(), 1)
	require.Empty(t, s.ready(), "a kernel is reported once")

	again, _ := s.launches([]uint64{1000, half})
	require.Equal(t, uint64(math.Float32bits(0.5)), again[18])
	again[18] = words[18]
	require.Equal(t, words, again)

	other := ready(t, s, 1004, two) // the same text
	require.EqualValues(t, 1004, other[19])
	require.Len(t, s.made, 1)
	require.Empty(t, ready(t, s, 1<<40, two), "more points than a launch has")
	require.Equal(t, []uint64{0, 0}, ready(t, s, 0, two), "no points, but the buffer must be made")
}

// TestLaunchesAreKept checks that a call with cached sizes allocates nothing, and that maxPlans sizes are cached.
func TestLaunchesAreKept(t *testing.T) {
	s := scaled(t)
	for n := range uint64(3 * maxPlans) {
		words := ready(t, s, 4*n, 0)
		if n > 0 {
			require.Equal(t, 4*n, words[19])
		}
	}
	require.Len(t, s.recent, maxPlans)
	params := []uint64{4, 0}
	ready(t, s, params...)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		params[1] ^= 1
		s.launches(params)
	}))
	first := s.recent[0]
	ready(t, s, 8, 0)
	s.launches(params)
	require.Same(t, first, s.recent[0])
}

// TestFusedThatIsNotLaunched checks that a group that begins with a call has no launches, because the call draws random
// numbers as PyTorch's CPU does.
func TestFusedThatIsNotLaunched(t *testing.T) {
	s := scaled(t)
	draw := &program.Call{Op: "mycelya::dropout_mask", Results: []uint32{1}}
	p := &program.Program{Kernels: s.p.Kernels, Tensors: s.p.Tensors, Steps: []program.Step{
		&program.Fused{Kernels: 2, Plain: 1}, draw, s.p.Steps[1], s.p.Steps[2]}}
	require.Nil(t, newPlans(s.l, p))
	p.Steps = append(p.Steps, s.p.Steps...)
	some := newPlans(s.l, p)
	require.Equal(t, []group{{step: 4, kernels: []uint32{5}}}, some.groups)
}

// TestTorchsCompiler checks that the default compiler is the NVRTC of torch's packages, and that its cubins have the
// entries of the launches.
func TestTorchsCompiler(t *testing.T) {
	found, err := filepath.Glob(filepath.Join("..", ".venv", "lib", "python3*", "site-packages", "torch", "lib"))
	require.NoError(t, err)
	if len(found) == 0 || kernels.Find(found[0]) == "" {
		t.Skip("torch has come without NVRTC")
	}
	var cubin []byte
	l, err := newLauncher(
		Kernels{Folder: t.TempDir()},
		found[0],
		Info{Arch: "sm_90", Processors: 132},
		nil,
		func(data []byte, _ []string) (any, error) {
			cubin = data
			return &code{entries: map[string]uint64{"run": 1}}, nil
		},
	)
	require.NoError(t, err)
	defer l.cache.Close()
	s := newPlans(l, scaled(t).p)
	require.NotEmpty(t, ready(t, s, 1000, 0))
	for _, k := range s.ready() {
		require.Positive(t, k.Compiled())
	}
	require.True(t, bytes.HasPrefix(cubin, []byte("\x7fELF")))
	require.Nil(t, l.warning.Load())

	none, err := newLauncher(Kernels{}, t.TempDir(), Info{Arch: "sm_90"}, nil, nil)
	require.NoError(t, err)
	defer none.cache.Close()
	s = newPlans(none, s.p)
	s.launches([]uint64{1000, 0})
	for _, k := range s.made {
		require.Equal(t, kernels.Failed, k.Wait())
	}
	require.Contains(t, *none.warning.Load(), "torch has come without NVRTC")
}
