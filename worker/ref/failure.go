// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ref

import (
	"slices"

	"github.com/mycelya/mycelya/kernel"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker"
)

// runStep runs one step. After a failure only the steps of earlier ops run, and those that set flags or free.
func (r *runner) runStep(i int, s *proto.Step) {
	if r.cause != nil && !settles(s) && (r.recordOf(i) == 0 || r.recordOf(i) >= r.record) {
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
	err := r.do(s)
	if err == nil {
		for _, b := range r.changes(s) {
			r.wrote[b] = true
		}
		return
	}
	e := worker.Error{Kind: proto.ErrRuntime, Text: err.Error(), Call: r.callID, Step: uint32(i)}
	if own, ok := err.(*worker.Error); ok {
		e.Kind = own.Kind
	}
	r.fail(i, e)
	r.spoil(s, &e)
}

func settles(s *proto.Step) bool {
	op := s.GetCall().GetOp()
	return s.GetFree() != nil || op == "mycelya::set_default_dtype" || op == "mycelya::set_flag"
}

func (r *runner) recordOf(step int) uint32 {
	if len(r.p.Records) == 0 {
		return 0
	}
	return r.p.Records[step]
}

// fail notes a failure of a step.
func (r *runner) fail(step int, e worker.Error) {
	r.failed++
	if len(r.errs) < worker.MaxErrors {
		r.errs = append(r.errs, worker.StepError{Step: uint32(step), Cause: e})
	}
	if r.cause == nil {
		r.step = step
	}
	if record := r.recordOf(step); r.cause == nil || record < r.record {
		r.cause, r.record = &e, record
	}
}

// inherited is the poison of an operand.
func (r *runner) inherited(s *proto.Step) *worker.Error {
	for _, b := range r.uses(s) {
		if st := r.buffers[b]; st != nil && st.poison != nil {
			return st.poison
		}
	}
	return nil
}

// changes lists the buffers that a step makes or writes.
func (r *runner) changes(s *proto.Step) (out []uint32) {
	switch k := s.Kind.(type) {
	case *proto.Step_Call:
		for _, t := range r.touched(k.Call) {
			out = append(out, r.p.Tensors[t].Buffer)
		}
	case *proto.Step_Copy:
		out = append(out, r.p.Tensors[k.Copy.GetDst()].Buffer)
	case *proto.Step_Kernel:
		for _, at := range k.Kernel.GetInstances() {
			for i, t := range at.GetTensors() {
				if r.p.Kernels[k.Kernel.GetKernel()].Operands[i].Access&uint32(kernel.Write) != 0 {
					out = append(out, r.p.Tensors[t/2].Buffer)
				}
			}
		}
	case *proto.Step_Alloc:
		out = append(out, k.Alloc.GetBuffer())
	case *proto.Step_Clone:
		out = append(out, k.Clone.GetTo())
	case *proto.Step_Resize:
		out = append(out, k.Resize.GetBuffer())
	}
	return out
}

// spoil says that the buffers have no content that a step should have made or written.
func (r *runner) spoil(s *proto.Step, e *worker.Error) {
	for _, b := range r.changes(s) {
		r.buffers[b] = &storage{poison: e}
	}
}

// bind gives the outputs to their storages.
func (r *runner) bind(x *executor, inputs, outputs []uint64) {
	buffer := map[uint64]uint32{} // by storage
	for i := 0; i < len(inputs); i += 2 {
		buffer[inputs[i+1]] = uint32(inputs[i])
	}
	for i := 0; i < len(outputs); i += 2 {
		id, st := outputs[i+1], r.buffers[outputs[i]]
		old := x.storages[id]
		switch first, last := r.written(uint32(outputs[i])); {
		case r.cause == nil || last < r.record && (old == nil || old.poison == nil):
			if st.missing != 0 {
				st = &storage{poison: worker.Errorf(proto.ErrRuntime, "Storage %d doesn't exist on the worker.", st.missing)}
			}
			x.storages[id] = st
		case old == nil:
			x.storages[id] = &storage{poison: r.cause}
		case old.poison != nil:
		default:
			in, is := buffer[id]
			failing := slices.Contains(r.changes(r.p.Steps[r.step]), in) && r.record != first
			if r.record > first || is && (r.wrote[in] || failing) {
				x.storages[id] = &storage{poison: r.cause}
			}
		}
	}
}

// written are the records that make or write the storage of an output.
func (r *runner) written(output uint32) (first, last uint32) {
	if i := slices.Index(r.p.Outputs, output); len(r.p.Written) > 0 && i >= 0 {
		return r.p.Written[2*i], r.p.Written[2*i+1]
	}
	return 0, ^uint32(0)
}
