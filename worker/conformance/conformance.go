// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package conformance is the test suite that every backend of the worker must pass: programs with known results. It
// never depends on how a backend works, nor on its speed.
package conformance

import (
	"errors"
	"maps"
	goruntime "runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/executor"
)

const callID = 77

// RunAll runs every test on a backend.
func RunAll(t *testing.T, b executor.Backend) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { c.run(t, fresh(t, b)) })
	}
	t.Run("missing input", func(t *testing.T) { missingInput(t, fresh(t, b)) })
	t.Run("unknown operator", func(t *testing.T) { unknownOperator(t, fresh(t, b)) })
	t.Run("poison goes on through calls", func(t *testing.T) { poisonAcross(t, fresh(t, b)) })
	t.Run("storages", func(t *testing.T) { storages(t, fresh(t, b)) })
	t.Run("reads", func(t *testing.T) { reads(t, fresh(t, b)) })
	t.Run("one program, many sizes", func(t *testing.T) { manySizes(t, fresh(t, b)) })
	t.Run("executors share nothing", func(t *testing.T) {
		x, y := fresh(t, b), fresh(t, b)
		upload(t, x, 1, f32(1))
		require.Error(t, y.Read(whole(1, 4), func([]byte) error { return nil }))
	})
	t.Run("times of steps", func(t *testing.T) { times(t, fresh(t, b)) })
	t.Run("info", func(t *testing.T) {
		i := fresh(t, b).Info()
		require.NotEmpty(t, i.Device)
		require.NotEmpty(t, i.Name)
	})
}

func fresh(t *testing.T, b executor.Backend) executor.Executor {
	t.Helper()
	goruntime.LockOSThread() // an executor is used from one thread; this one ends with the test
	x, err := b.New("")
	require.NoError(t, err)
	t.Cleanup(x.Close)
	return x
}

func upload(t *testing.T, x executor.Executor, id uint64, data []byte) {
	t.Helper()
	dst, err := x.UploadBegin(id, uint64(len(data)))
	require.NoError(t, err)
	require.Len(t, dst, len(data))
	copy(dst, data)
	require.NoError(t, x.UploadEnd(id))
}

// whole returns a view of all bytes of a storage.
func whole(id uint64, bytes int) *proto.Read {
	return &proto.Read{Storage: id, Dtype: uint32(ir.U8), Sizes: []int64{int64(bytes)}, Strides: []int64{1}}
}

func read(t *testing.T, x executor.Executor, v *proto.Read) []byte {
	t.Helper()
	var out []byte
	require.NoError(t, x.Read(v, func(b []byte) error { out = slices.Clone(b); return nil }))
	return out
}

// readError returns the error of a read of a poisoned storage.
func readError(t *testing.T, x executor.Executor, id uint64) *executor.Error {
	t.Helper()
	err := x.Read(whole(id, 0), func([]byte) error { t.Error("a poisoned storage was read"); return nil })
	var e *executor.Error
	require.True(t, errors.As(err, &e), "%v", err)
	require.NotEmpty(t, e.Text)
	require.NotZero(t, e.Kind)
	return e
}

// prepared finishes a program, validates it as the worker does, and prepares it. Each step gets a record of its own,
// with its number plus one, unless the program has records.
func prepared(
	t *testing.T, x executor.Executor, build func(*builder), in []uint32, outs []uint32, params int,
) executor.Prepared {
	t.Helper()
	p := &program.Program{}
	build(&builder{p})
	p.Params = uint32(params)
	p.Inputs, p.Outputs = in, outs
	for i := len(p.Records); i < len(p.Steps); i++ {
		p.Records = append(p.Records, uint32(i+1))
	}
	require.NoError(t, p.Validate())
	prep, err := x.Prepare(p, p.Words())
	require.NoError(t, err)
	t.Cleanup(func() { x.Drop(prep) })
	return prep
}

func (c *testCase) run(t *testing.T, x executor.Executor) {
	for id, data := range c.uploads {
		upload(t, x, id, data)
	}
	var inputs, outputs []uint64
	for i, b := range c.in {
		inputs = append(inputs, uint64(b), uint64(i+1))
	}
	outs := slices.Sorted(maps.Keys(c.out))
	for _, b := range outs {
		if id := c.out[b]; id != 0 {
			outputs = append(outputs, uint64(b), id)
		}
	}
	prep := prepared(t, x, c.build, c.in, outs, len(c.params))
	failed, errs := x.Run(prep, c.params, inputs, outputs, nil, callID)
	require.Equal(t, c.failed, failed, "%v", errs)
	require.Len(t, errs, failed)
	for _, e := range errs {
		require.NotEmpty(t, e.Cause.Text)
		require.NotZero(t, e.Cause.Kind)
	}
	for id, want := range c.want {
		require.Equal(t, want, append([]byte{}, read(t, x, whole(id, len(want)))...), "storage %d", id)
	}
	for id, step := range c.poison {
		e := readError(t, x, id)
		require.EqualValues(t, callID, e.Call)
		require.Equal(t, step, e.Step)
		i := slices.IndexFunc(errs, func(e executor.StepError) bool { return e.Step == step })
		require.GreaterOrEqual(t, i, 0)
		require.Equal(t, errs[i].Cause.Kind, e.Kind)
	}
	require.NoError(t, x.Sync())
}

func neg(b *builder) {
	x, y := b.tensor(0, ir.F32, par(0)), b.tensor(1, ir.F32, par(0))
	b.call("aten::neg", y+1, ten(x))
}

// times runs a timed program, and again with a poisoned input, so that no step runs.
func times(t *testing.T, x executor.Executor) {
	upload(t, x, 1, f32(1, 2))
	steps := func(b *builder) {
		x, y, z := b.tensor(0, ir.F32, par(0)), b.tensor(1, ir.F32, par(0)), b.tensor(2, ir.F32, par(0))
		b.call("aten::neg", y+1, ten(x))
		b.call("aten::neg", z+1, ten(y))
	}
	prep := prepared(t, x, steps, []uint32{0}, []uint32{2}, 1)
	got := make([]uint64, 4)
	began := uint64(time.Now().UnixNano())
	x.Time(got)
	failed, errs := x.Run(prep, []uint64{2}, []uint64{0, 1}, []uint64{2, 2}, nil, callID)
	ended := uint64(time.Now().UnixNano())
	require.Zero(t, failed, "%v", errs)
	require.IsNonDecreasing(t, append(append([]uint64{began}, got...), ended))

	untimed := slices.Clone(got)
	failed, _ = x.Run(prep, []uint64{2}, []uint64{0, 1}, []uint64{2, 3}, nil, callID+1) // Time holds for one run
	require.Zero(t, failed)
	require.Equal(t, untimed, got)

	x.Poison([]uint64{99}, executor.Errorf(proto.ErrRuntime, "lost"))
	got = make([]uint64, 4)
	x.Time(got)
	failed, _ = x.Run(prep, []uint64{2}, []uint64{0, 99}, []uint64{2, 4}, nil, callID+2)
	require.NotZero(t, failed)
	require.Equal(t, make([]uint64, 4), got)
}

func missingInput(t *testing.T, x executor.Executor) {
	prep := prepared(t, x, neg, []uint32{0}, []uint32{1}, 1)
	failed, errs := x.Run(prep, []uint64{2}, []uint64{0, 123}, []uint64{1, 9}, nil, callID)
	require.Equal(t, 1, failed, "the step that needs it fails: %v", errs)
	require.Contains(t, errs[0].Cause.Text, "123")
	e := readError(t, x, 9)
	require.Contains(t, e.Text, "123")
	require.EqualValues(t, callID, e.Call)
}

// unknownOperator: an operator that does not exist fails Prepare, or its step.
func unknownOperator(t *testing.T, x executor.Executor) {
	p := &program.Program{Buffers: 2, Inputs: []uint32{0}, Outputs: []uint32{1}}
	b := builder{p: p}
	b.call("aten::no_such_operator", b.tensor(1, ir.F32, two)+1, ten(b.tensor(0, ir.F32, two)))
	p.Records = []uint32{1}
	require.NoError(t, p.Validate())
	prep, err := x.Prepare(p, p.Words())
	if err != nil {
		var e *executor.Error
		require.ErrorAs(t, err, &e)
		require.EqualValues(t, proto.ErrNotImplemented, e.Kind)
		require.Contains(t, e.Text, "aten::no_such_operator")
		return
	}
	upload(t, x, 1, f32(1, 2))
	failed, errs := x.Run(prep, nil, []uint64{0, 1}, []uint64{1, 5}, nil, callID)
	require.Equal(t, 1, failed)
	require.EqualValues(t, proto.ErrNotImplemented, errs[0].Cause.Kind)
	require.Contains(t, errs[0].Cause.Text, "aten::no_such_operator")
	x.Drop(prep)
}

func poisonAcross(t *testing.T, x executor.Executor) {
	upload(t, x, 1, f32(1, 2))
	bad := prepared(t, x, func(b *builder) { // the result has another size than the program says
		b.call("aten::neg", b.tensor(1, ir.F32, three)+1, ten(b.tensor(0, ir.F32, two)))
	}, []uint32{0}, []uint32{1}, 0)
	failed, _ := x.Run(bad, nil, []uint64{0, 1}, []uint64{1, 5}, nil, callID)
	require.Equal(t, 1, failed)
	good := prepared(t, x, neg, []uint32{0}, []uint32{1}, 1)
	failed, errs := x.Run(good, []uint64{2}, []uint64{0, 5}, []uint64{1, 6}, nil, callID+1)
	require.Equal(t, 1, failed)
	require.EqualValues(t, callID, errs[0].Cause.Call, "the call that failed, not the one that needs the poison")
	require.Equal(t, readError(t, x, 6), readError(t, x, 5))
	// A storage that is freed and made again is not poisoned.
	x.Free([]uint64{5})
	upload(t, x, 5, f32(3, 4))
	failed, _ = x.Run(good, []uint64{2}, []uint64{0, 5}, []uint64{1, 6}, nil, callID+2)
	require.Zero(t, failed)
	require.Equal(t, f32(-3, -4), read(t, x, whole(6, 8)))
}

func storages(t *testing.T, x executor.Executor) {
	n, bytes := x.Usage()
	require.Zero(t, n)
	require.Zero(t, bytes)
	upload(t, x, 1, make([]byte, 100))
	upload(t, x, 2, nil)
	n, bytes = x.Usage()
	require.EqualValues(t, 2, n)
	require.EqualValues(t, 100, bytes)
	_, err := x.UploadBegin(1, 4)
	require.ErrorContains(t, err, "1", "a storage cannot be uploaded twice")
	x.Free([]uint64{1, 2, 99})
	n, bytes = x.Usage()
	require.Zero(t, n)
	require.Zero(t, bytes)
	require.Error(t, x.Read(whole(1, 4), func([]byte) error { return nil }))
	upload(t, x, 1, f32(5))
	require.Equal(t, f32(5), read(t, x, whole(1, 4)))
}

func reads(t *testing.T, x executor.Executor) {
	upload(t, x, 1, f32(1, 2, 3, 4, 5, 6))
	view := func(d ir.DType, sizes, strides []int64, offset int64) *proto.Read {
		return &proto.Read{Storage: 1, Dtype: uint32(d), Sizes: sizes, Strides: strides, Offset: offset}
	}
	require.Equal(t, f32(4), read(t, x, view(ir.F32, nil, nil, 3)))
	require.Equal(t, f32(1, 4, 2, 5, 3, 6), read(t, x, view(ir.F32, []int64{3, 2}, []int64{1, 3}, 0)))
	require.Equal(t, f32(2, 2, 2), read(t, x, view(ir.F32, []int64{3}, []int64{0}, 1)))
	require.Empty(t, read(t, x, view(ir.F32, []int64{0, 5}, []int64{5, 1}, 0)))
	require.Len(t, read(t, x, view(ir.C64, []int64{3}, []int64{1}, 0)), 24)
	for name, v := range map[string]*proto.Read{
		"past the end":     view(ir.F32, []int64{7}, []int64{1}, 0),
		"offset":           view(ir.F32, []int64{1}, []int64{1}, 6),
		"negative offset":  view(ir.F32, []int64{1}, []int64{1}, -1),
		"negative size":    view(ir.F32, []int64{-1}, []int64{1}, 0),
		"negative stride":  view(ir.F32, []int64{2}, []int64{-1}, 3),
		"overflow":         view(ir.F32, []int64{1 << 62, 1 << 62}, []int64{1 << 62, 1}, 0),
		"overflowing step": view(ir.F32, []int64{3}, []int64{1 << 62}, 0),
		"dtype":            view(ir.NumDTypes, []int64{1}, []int64{1}, 0),
		"strides":          view(ir.F32, []int64{1}, nil, 0),
	} {
		err := x.Read(v, func([]byte) error { t.Errorf("%s: was read", name); return nil })
		require.Error(t, err, name)
	}
	stop := errors.New("stop")
	require.ErrorIs(t, x.Read(whole(1, 4), func([]byte) error { return stop }), stop, "Read returns the error of use")
}

func manySizes(t *testing.T, x executor.Executor) {
	prep := prepared(t, x, neg, []uint32{0}, []uint32{1}, 1)
	for n := range 20 {
		id := uint64(10 + 2*n)
		in, want := make([]float32, n), make([]float32, n)
		for i := range in {
			in[i], want[i] = float32(i+1), -float32(i+1)
		}
		upload(t, x, id, f32(in...))
		failed, errs := x.Run(prep, []uint64{uint64(n)}, []uint64{0, id}, []uint64{1, id + 1}, nil, uint64(n+1))
		require.Zero(t, failed, "%v", errs)
		require.Equal(t, append([]byte{}, f32(want...)...), append([]byte{}, read(t, x, whole(id+1, 4*n))...))
	}
}
