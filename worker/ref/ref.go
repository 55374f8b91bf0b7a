// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package ref is a backend on ir/eval alone. It is the oracle for other backends, and a test worker for hosts without
// PyTorch. It runs the operators that are forms of own ops and little else, one element after another, so it is slow.
package ref

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/ir/eval"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/executor"
)

// Backend is the reference backend.
type Backend struct {
	// Kernels selects kernels instead of the operators that they replace.
	Kernels bool
	// Progress is where executors note what they run; nil: nowhere.
	Progress *crash.Progress
}

// New implements executor.Backend.
func (b Backend) New(device string) (executor.Executor, error) {
	if device != "" && device != "cpu" {
		return nil, executor.Errorf(proto.ErrValue, "The reference worker has no device %q; it has cpu.", device)
	}
	return &evaluator{kernels: b.Kernels, progress: b.Progress, storages: map[uint64]*storage{}}, nil
}

// Trim implements executor.Backend. The backend caches no memory.
func (b Backend) Trim() {}

// storage is the memory of a storage id or of a buffer; buffers of inputs are the storages themselves.
type storage struct {
	data    []byte
	poison  *executor.Error
	missing uint64 // the id, if no storage has it
}

type evaluator struct {
	kernels  bool
	progress *crash.Progress
	storages map[uint64]*storage
	pending  map[uint64][]byte // uploads that have begun
	fused    proto.Kernels     // counts since the last call of Fused
	times    []uint64          // of the next run; nil: it is not timed
}

// maxBytes bounds one storage, because this backend is for tests: the end of Go's memory ends the process.
const maxBytes = 1 << 28

func (x *evaluator) Info() executor.Info {
	return executor.Info{Device: "cpu", Name: "reference worker, without PyTorch"}
}

func (x *evaluator) Prepare(p *program.Program, _ []uint64) (executor.Prepared, error) { return p, nil }
func (x *evaluator) Drop(executor.Prepared)                                            {}
func (x *evaluator) Sync() error                                                       { return nil }
func (x *evaluator) Close()                                                            { x.storages = nil }

func (x *evaluator) UploadBegin(id, bytes uint64) ([]byte, error) {
	if x.storages[id] != nil || x.pending[id] != nil {
		return nil, executor.Errorf(proto.ErrValue, "Storage %d exists already; an upload makes a new one.", id)
	}
	b, err := alloc(bytes)
	if err != nil {
		return nil, err
	}
	if x.pending == nil {
		x.pending = map[uint64][]byte{}
	}
	x.pending[id] = b
	return b, nil
}

func (x *evaluator) UploadEnd(id uint64) error {
	b, ok := x.pending[id]
	if !ok {
		return executor.Errorf(proto.ErrValue, "No upload of storage %d has begun.", id)
	}
	delete(x.pending, id)
	x.storages[id] = &storage{data: b}
	return nil
}

func alloc(bytes uint64) ([]byte, error) {
	if bytes > maxBytes {
		return nil, executor.Errorf(proto.ErrMemory, "The reference worker has no memory for %d bytes.", bytes)
	}
	return make([]byte, bytes), nil
}

func (x *evaluator) Read(v *proto.Read, use func([]byte) error) error {
	st := x.storages[v.Storage]
	switch {
	case st == nil:
		return executor.Errorf(proto.ErrRuntime, "Storage %d doesn't exist on the worker.", v.Storage)
	case st.poison != nil:
		e := *st.poison
		return &e
	case catalogue.DTypeSize(uint64(v.Dtype)) == 0 || len(v.Sizes) != len(v.Strides) || len(v.Sizes) > program.MaxRank:
		return executor.Errorf(proto.ErrValue, "A view of dtype %d with sizes %v and strides %v doesn't exist.",
			v.Dtype, v.Sizes, v.Strides)
	}
	src := &eval.Tensor{DType: ir.DType(v.Dtype), Sizes: v.Sizes, Strides: v.Strides, Offset: v.Offset, Data: st.data}
	var out *eval.Tensor
	err := guard(func() (err error) {
		if out, err = eval.New(src.DType, src.Sizes, nil); err != nil {
			return err
		}
		return eval.Eval(ir.OpCopy, []eval.Arg{{Tensor: src}}, out)
	})
	if err != nil {
		return executor.Errorf(proto.ErrValue, "This view of storage %d cannot be read: %v.", v.Storage, err)
	}
	return use(out.Data)
}

func (x *evaluator) Free(ids []uint64) {
	for _, id := range ids {
		delete(x.storages, id)
		delete(x.pending, id)
	}
}

// Contents implements executor.Executor.
func (x *evaluator) Contents() []executor.Content {
	var out []executor.Content
	for _, id := range slices.Sorted(maps.Keys(x.storages)) {
		st := x.storages[id]
		out = append(out, executor.Content{ID: id, Bytes: uint64(len(st.data)), Poisoned: st.poison != nil})
	}
	return out
}

// State implements executor.Executor. This executor has no generators, and no flag changes what it computes.
func (x *evaluator) State() ([]byte, error) { return nil, nil }

// SetState implements executor.Executor.
func (x *evaluator) SetState(state []byte) error {
	if len(state) > 0 {
		return executor.Errorf(proto.ErrValue, "The state of another executor, of %d bytes, cannot be used.", len(state))
	}
	return nil
}

// SetFlags implements executor.Executor. No flag changes what this executor computes.
func (x *evaluator) SetFlags(executor.Prepared, []uint64) {}

// Poison implements executor.Executor.
func (x *evaluator) Poison(ids []uint64, e *executor.Error) {
	for _, id := range ids {
		if x.storages[id] == nil {
			x.storages[id] = &storage{poison: e}
		}
	}
}

func (x *evaluator) Usage() (storages, bytes uint64) {
	for _, st := range x.storages {
		bytes += uint64(len(st.data))
	}
	return uint64(len(x.storages)), bytes
}

// guard turns a panic of ir/eval into an error, because a client chooses the arguments.
func guard(f func() error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
	}()
	return f()
}

// Run implements executor.Executor.
func (x *evaluator) Run(
	p executor.Prepared, params, inputs, outputs, frees []uint64, call uint64,
) (int, []executor.StepError) {
	r := runner{p: p.(*program.Program), params: params, callID: call, times: x.times, writer: map[uint32]uint32{}}
	x.times = nil
	r.buffers = make([]*storage, r.p.Buffers)
	for i := 0; i < len(inputs); i += 2 {
		b := &storage{missing: inputs[i+1]} // the first step that needs it fails
		if st := x.storages[inputs[i+1]]; st != nil {
			b = &storage{data: st.data, poison: st.poison} // what the run finds out is not about st
		}
		r.buffers[inputs[i]] = b
	}
	x.Free(frees)
	skip, to := 0, 0 // the steps [skip, to) are not run
	for i, s := range r.p.Steps {
		if skip <= i && i < to {
			continue
		}
		if f, ok := s.(*program.Fused); ok {
			plain := i + 1 + int(f.Kernels)
			skip, to = i+1, plain
			if x.kernels && f.Kernels > 0 && count[*program.Call](r.p.Steps[i+1:i+2]) == 0 && r.cause == nil &&
				!r.poisoned(r.p.Steps[i+1:plain]) {
				skip, to = plain, plain+int(f.Plain)
				x.fused.Groups++
				x.fused.Launched += count[*program.Kernel](r.p.Steps[i+1 : plain])
				x.fused.Ops += count[*program.Call](r.p.Steps[plain:to])
			} else {
				x.fused.Unfused++
			}
			continue
		}
		x.progress.Note(call, uint32(i))
		r.runStep(i, s)
	}
	x.progress.Idle()
	r.bind(x, inputs, outputs)
	return r.failed, r.errs
}

// count counts the steps of a kind.
func count[T program.Step](steps []program.Step) (n uint32) {
	for _, s := range steps {
		if _, is := s.(T); is {
			n++
		}
	}
	return n
}

// Leave implements executor.Executor.
func (x *evaluator) Leave(int) {}

// Time implements executor.Executor.
func (x *evaluator) Time(times []uint64) { x.times = times }

// Fused implements executor.Executor.
func (x *evaluator) Fused() *proto.Kernels {
	out := &x.fused
	if out.Groups+out.Unfused == 0 {
		return nil
	}
	out = protobuf.Clone(out).(*proto.Kernels)
	protobuf.Reset(&x.fused)
	return out
}

// runner runs one call of a program.
type runner struct {
	p       *program.Program
	params  []uint64
	buffers []*storage
	callID  uint64
	times   []uint64 // by step, two each; nil: the run is not timed

	// See failure.go.
	failed int
	errs   []executor.StepError
	cause  *executor.Error   // the first in the order of the ops; nil: nothing has failed
	record uint32            // of the cause's op
	writer map[uint32]uint32 // by buffer: the record of the last step that has written it
}

func (r *runner) dims(ds []program.Dim) []int64 {
	out := make([]int64, len(ds))
	for i, d := range ds {
		out[i] = d.At(r.params)
	}
	return out
}

// window returns tensor i of the program, without memory.
func (r *runner) window(i uint32) *eval.Tensor {
	t := &r.p.Tensors[i]
	w := &eval.Tensor{DType: ir.DType(t.DType), Sizes: r.dims(t.Sizes), Offset: t.Offset.At(r.params)}
	if t.Strides == nil {
		w.Strides = eval.Contiguous(w.Sizes)
	} else {
		w.Strides = r.dims(t.Strides)
	}
	return w
}

func (r *runner) buffer(tensor uint32) *storage { return r.buffers[r.p.Tensors[tensor].Buffer] }

// tensor returns tensor i of the program, with its memory.
func (r *runner) tensor(i uint32) *eval.Tensor {
	w := r.window(i)
	w.Data = r.buffer(i).data
	return w
}

// made returns the smallest memory for a window.
func made(w *eval.Tensor) (*storage, error) {
	// eval.New assumes an offset of 0; the bytes before the offset are added.
	end, err := eval.New(w.DType, w.Sizes, w.Strides)
	if err != nil {
		return nil, err
	}
	b, err := alloc(uint64(len(end.Data)) + uint64(max(w.Offset, 0))*uint64(w.DType.Size()))
	return &storage{data: b}, err
}

func (r *runner) bytes(d program.Dim) ([]byte, error) {
	n := d.At(r.params)
	if n < 0 {
		return nil, executor.Errorf(proto.ErrValue, "A storage can't have %d bytes.", n)
	}
	return alloc(uint64(n))
}

// uses lists the buffers that a step reads or changes.
func (r *runner) uses(s program.Step) (out []uint32) {
	switch k := s.(type) {
	case *program.Call:
		for _, t := range operands(k.Args) {
			out = append(out, r.p.Tensors[t].Buffer)
		}
	case *program.Copy:
		out = append(out, r.p.Tensors[k.Src].Buffer, r.p.Tensors[k.Dst].Buffer)
	case *program.Kernel:
		for _, at := range k.Instances {
			for _, u := range at.Uses {
				if !u.Made {
					out = append(out, r.p.Tensors[u.Tensor].Buffer)
				}
			}
		}
	case *program.Clone:
		out = append(out, k.From)
	case *program.Resize:
		out = append(out, k.Buffer)
	}
	return out
}

// poisoned reports whether a buffer that the steps use is missing or poisoned.
func (r *runner) poisoned(steps []program.Step) bool {
	for _, s := range steps {
		for _, b := range r.uses(s) {
			if st := r.buffers[b]; st != nil && (st.missing != 0 || st.poison != nil) {
				return true
			}
		}
	}
	return false
}

// do runs one step, whose operands are not poisoned.
func (r *runner) do(s program.Step) error {
	for _, b := range r.uses(s) {
		if st := r.buffers[b]; st != nil && st.missing != 0 && st.poison == nil {
			return executor.Errorf(proto.ErrRuntime, "Storage %d doesn't exist on the worker.", st.missing)
		}
	}
	switch k := s.(type) {
	case *program.Call:
		return r.call(k)
	case *program.Copy:
		return r.copy(k.Dst, k.Src)
	case *program.Kernel:
		return r.kernel(k)
	case *program.Alloc:
		b, err := r.bytes(k.Bytes)
		r.buffers[k.Buffer] = &storage{data: b}
		return err
	case *program.Clone:
		from := r.buffers[k.From]
		r.buffers[k.To] = &storage{data: append([]byte(nil), from.data...)}
	case *program.Free:
		r.buffers[k.Buffer] = nil
	case *program.Resize:
		b, err := r.bytes(k.Bytes)
		if err != nil {
			return err
		}
		st := r.buffers[k.Buffer]
		copy(b, st.data)
		st.data = b
	}
	return nil
}

func (r *runner) copy(dst, src uint32) error {
	if r.buffer(dst) == nil {
		var st *storage
		err := guard(func() (err error) { st, err = made(r.window(dst)); return err })
		if err != nil {
			return err
		}
		r.buffers[r.p.Tensors[dst].Buffer] = st
	}
	return guard(func() error { return eval.Eval(ir.OpCopy, []eval.Arg{{Tensor: r.tensor(src)}}, r.tensor(dst)) })
}

// element returns the little-endian bytes of a number or scalar in the parameters.
func (r *runner) element(d ir.DType, slot uint32) []byte {
	var b [16]byte
	for i := range (d.Size() + 7) / 8 {
		binary.LittleEndian.PutUint64(b[8*i:], r.params[int(slot)+i])
	}
	return b[:d.Size()]
}
