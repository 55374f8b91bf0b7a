// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ref

import (
	"slices"
	"time"

	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/executor"
)

// runStep runs one step. After a failure only the steps of earlier ops run, and those that set flags or free.
func (r *runner) runStep(i int, s program.Step) {
	_, frees := s.(*program.Free)
	if r.cause != nil && !program.SetsFlag(s) && (frees || r.p.Records[i] == 0 || r.p.Records[i] >= r.record) {
		r.spoil(s, r.cause)
		return
	}
	if e := r.inherited(s); e != nil {
		if e.Call != r.callID {
			r.fail(i, *e)
		}
		r.spoil(s, e)
		return
	}
	began := time.Now()
	err := r.do(s)
	if r.times != nil {
		r.times[2*i], r.times[2*i+1] = uint64(began.UnixNano()), uint64(time.Now().UnixNano())
	}
	if err == nil {
		for _, b := range r.changes(s) {
			if r.writer[b] = r.p.Records[i]; r.writer[b] == 0 {
				r.writer[b] = unknownWriter
			}
		}
		return
	}
	e := executor.Error{Kind: proto.ErrRuntime, Text: err.Error(), Call: r.callID, Step: uint32(i)}
	if own, ok := err.(*executor.Error); ok {
		e.Kind = own.Kind
	}
	r.fail(i, e)
	r.spoil(s, &e)
}

// unknownWriter is the record of a step that has none.
const unknownWriter = ^uint32(0)

// fail notes a failure of a step.
func (r *runner) fail(step int, e executor.Error) {
	r.failed++
	if len(r.errs) < executor.MaxErrors {
		r.errs = append(r.errs, executor.StepError{Step: uint32(step), Cause: e})
	}
	if record := r.p.Records[step]; r.cause == nil || record < r.record {
		r.cause, r.record = &e, record
		if n := len(r.errs); r.failed == n {
			r.errs[0], r.errs[n-1] = r.errs[n-1], r.errs[0]
		} else {
			r.errs[0] = executor.StepError{Step: uint32(step), Cause: e}
		}
	}
}

// inherited is the poison of an operand.
func (r *runner) inherited(s program.Step) *executor.Error {
	for _, b := range r.uses(s) {
		if st := r.buffers[b]; st != nil && st.poison != nil {
			return st.poison
		}
	}
	return nil
}

// changes lists the buffers that a step makes or writes.
func (r *runner) changes(s program.Step) (out []uint32) {
	switch k := s.(type) {
	case *program.Call:
		for _, t := range r.touched(k) {
			out = append(out, r.p.Tensors[t].Buffer)
		}
	case *program.Copy:
		out = append(out, r.p.Tensors[k.Dst].Buffer)
	case *program.Kernel:
		for _, at := range k.Instances {
			for i, u := range at.Uses {
				if r.p.Kernels[k.Kernel].Operands[i].Access&kernel.Write != 0 {
					out = append(out, r.p.Tensors[u.Tensor].Buffer)
				}
			}
		}
	case *program.Alloc:
		out = append(out, k.Buffer)
	case *program.Clone:
		out = append(out, k.To)
	case *program.Resize:
		out = append(out, k.Buffer)
	}
	return out
}

// spoil says that the buffers do not have the content that a step should have made or written.
func (r *runner) spoil(s program.Step, e *executor.Error) {
	for _, b := range r.changes(s) {
		if r.buffers[b] == nil {
			r.buffers[b] = &storage{missing: noStorage}
		}
		r.buffers[b].poison = e
	}
}

// noStorage is the id of the storage of a buffer that no step has made.
const noStorage = ^uint64(0)

// bind gives the outputs to their storages.
func (r *runner) bind(x *evaluator, inputs, outputs []uint64) {
	buffer := map[uint64]uint64{} // by storage
	for i := 0; i < len(inputs); i += 2 {
		buffer[inputs[i+1]] = inputs[i]
	}
	for i := 0; i < len(outputs); i += 2 {
		id := outputs[i+1]
		old := x.storages[id]
		if r.cause == nil {
			st := r.buffers[outputs[i]]
			if st.missing != 0 {
				st = &storage{poison: executor.Errorf(proto.ErrRuntime, "Storage %d doesn't exist on the worker.", st.missing)}
			}
			x.storages[id] = st
			continue
		}
		if old != nil && old.poison != nil {
			continue
		}
		record, places := r.version(uint32(outputs[i]))
		switch {
		case record == 0 && old == nil:
			x.storages[id] = &storage{poison: r.cause}
		case record == 0:
			if in, is := buffer[id]; is && r.writer[uint32(in)] != 0 {
				x.storages[id] = &storage{poison: r.cause}
			}
		default:
			x.storages[id] = &storage{poison: r.cause}
			for _, at := range places {
				if b := r.buffers[at.buffer]; b != nil && b.missing == 0 && r.writer[at.buffer] == at.writer {
					x.storages[id] = &storage{data: slices.Clone(b.data)}
				}
			}
		}
	}
}

// at is a buffer that holds a version, if its last writer is the step of that record.
type at struct{ buffer, writer uint32 }

// version is the last version of an output before the failure: its record, 0 for none, and where it may lie.
func (r *runner) version(output uint32) (record uint32, places []at) {
	index := slices.Index(r.p.Outputs, output)
	for _, v := range r.p.Versions {
		if int(v.Output) != index || v.Record >= r.record {
			continue
		}
		if v.Record != record {
			record, places = v.Record, nil
		}
		if v.Buffer != 0 {
			places = append(places, at{v.Buffer - 1, v.Writer})
		}
	}
	return record, places
}
