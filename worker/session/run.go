// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"fmt"
	"math"
	"slices"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
)

// run runs one call: it finds the program, checks inputs and outputs, runs, frees storages, and answers Done.
func (s *session) run(seq uint64, meta []byte) (known bool, err error) {
	if err := decodeCall(meta, &s.call); err != nil {
		return true, faultf("A Call frame does not decode: %v.", err)
	}
	var p *loaded
	if len(s.call.Key) == proto.KeyBytes {
		p = s.store.Get([proto.KeyBytes]byte(s.call.Key))
	}
	if p == nil {
		return false, s.c.Send(transport.Done, seq, &proto.Done{UnknownProgram: true}, nil)
	}
	c, err := p.whole(seq, &s.call)
	if err != nil {
		return true, faultf("A Call frame does not decode: %v.", err)
	}
	if err := s.check(p, c); err != nil {
		return true, err
	}
	done := &proto.Done{}
	switch {
	case s.halt != nil:
		s.skip(p, c)
		done.Skipped = true
	case p.err != nil:
		e := *asError(p.err)
		e.Call, e.Step = seq, math.MaxUint32 // no step ran
		done.Failed, done.Errors = 1, []*proto.Status{executor.Status(&e)}
		s.fail(&e)
		s.skip(p, c)
	default:
		if s.call.Busy != s.busy {
			s.busy = s.call.Busy
			s.x.Leave(int(min(s.busy, math.MaxInt16)))
		}
		s.journal.Call(seq, &p.noted, &s.call, c)
		began := time.Now()
		s.progress.Called(began)
		var steps []uint64
		if s.call.Timed {
			steps = make([]uint64, 2*p.steps)
			s.x.Time(steps)
		}
		failed, errs := s.x.Run(p.prepared, c.Params, s.inputs, s.outputs, c.Frees, seq)
		done.Failed, done.Kernels = uint32(failed), s.x.Fused()
		for _, e := range errs[:min(len(errs), executor.MaxErrors)] {
			done.Errors = append(done.Errors, executor.Status(&e.Cause))
		}
		if failed > 0 {
			s.fail(&errs[0].Cause)
		}
		if s.call.Timed {
			done.Times = timesOf(began, steps)
		}
	}
	// A client that waits for the end of an iteration does not need the Dones of its parts, which would wake it.
	if s.call.Busy > 0 && done.Failed == 0 && !s.call.Timed {
		return true, s.c.Hold(transport.Done, seq, done, nil)
	}
	if done.Failed > 0 || s.call.Timed { // the client must know of it, or compares the clocks
		return true, s.c.Send(transport.Done, seq, done, nil)
	}
	return true, s.c.Defer(transport.Done, seq, done)
}

// timesOf is the message of a call that ends now. steps: see Executor.Time.
func timesOf(began time.Time, steps []uint64) *proto.Times {
	out := &proto.Times{Began: uint64(began.UnixNano()), Ended: uint64(time.Now().UnixNano()), Steps: steps}
	for i := 0; i < len(steps); i += 2 {
		switch begin, end := steps[i], steps[i+1]; {
		case begin == 0:
			steps[i+1] = 0
		case begin < out.Began || end < begin: // the clock was set back
			steps[i], steps[i+1] = 0, 0
		default:
			steps[i], steps[i+1] = 1+begin-out.Began, end-begin
		}
	}
	return out
}

// decodeCall decodes into c and reuses its lists: a call of a large step has thousands of parameters.
func decodeCall(meta []byte, c *proto.Call) error {
	c.Key, c.Params = c.Key[:0], c.Params[:0]
	c.Inputs, c.Outputs, c.Frees = c.Inputs[:0], c.Outputs[:0], c.Frees[:0]
	c.Base, c.Delta, c.Busy, c.Timed = 0, c.Delta[:0], 0, false
	return protobuf.UnmarshalOptions{Merge: true, DiscardUnknown: true}.Unmarshal(meta, c)
}

// whole returns a call with all its lists: those of c, or those of the program's last call with the differences in c
// applied. The result becomes the program's last call.
func (p *loaded) whole(seq uint64, c *proto.Call) (*proto.Call, error) {
	switch {
	case c.Base == 0:
		last := &p.last
		last.Params, last.Inputs = append(last.Params[:0], c.Params...), append(last.Inputs[:0], c.Inputs...)
		last.Outputs, last.Frees = append(last.Outputs[:0], c.Outputs...), append(last.Frees[:0], c.Frees...)
	case c.Base != p.lastSeq:
		return nil, fmt.Errorf("it differs from call %d, but call %d is the last of its program", c.Base, p.lastSeq)
	default:
		if err := proto.ApplyDelta(c.Delta, &p.last); err != nil {
			return nil, err
		}
	}
	p.lastSeq = seq
	return &p.last, nil
}

// check compares a call with its program and makes the pairs (buffer, storage) of inputs and outputs. An output
// without a storage gets no pair.
func (s *session) check(p *loaded, c *proto.Call) error {
	if len(c.Params) != p.params || len(c.Inputs) != len(p.inputs) || len(c.Outputs) != len(p.outputs) {
		return faultf("A call has %d parameters, %d inputs and %d outputs; its program has %d, %d and %d.",
			len(c.Params), len(c.Inputs), len(c.Outputs), p.params, len(p.inputs), len(p.outputs))
	}
	if s.arrives(c.Inputs) || s.arrives(c.Outputs) || s.arrives(c.Frees) {
		return faultf("A call uses a storage whose upload arrives.")
	}
	if s.seen == nil {
		s.seen = make(map[uint64]struct{})
	}
	s.inputs, s.outputs = s.inputs[:0], s.outputs[:0]
	clear(s.seen)
	for i, id := range c.Inputs {
		if _, twice := s.seen[id]; twice || id == 0 {
			return faultf("A call's input %d is storage %d, which is 0 or an input already.", i, id)
		}
		s.seen[id] = struct{}{}
		s.inputs = append(s.inputs, uint64(p.inputs[i]), id)
	}
	clear(s.seen)
	for i, id := range c.Outputs {
		if id == 0 {
			continue
		}
		if _, twice := s.seen[id]; twice {
			return faultf("A call's output %d is storage %d, which is an output already.", i, id)
		}
		s.seen[id] = struct{}{}
		s.outputs = append(s.outputs, uint64(p.outputs[i]), id)
	}
	return nil
}

// fail stops calls from running until the client resumes. The first failure counts.
func (s *session) fail(cause *executor.Error) {
	if s.halt == nil {
		s.halt = cause
	}
}

// skip is what a call does that does not run because of a failure: it frees, sets flags, and ends the groups of the
// collectives that it would have begun. The storages that it should have made are poisoned; those that exist keep their
// content.
func (s *session) skip(p *loaded, c *proto.Call) {
	if p.acts && p.err == nil {
		s.x.SetFlags(p.prepared, c.Params)
	}
	s.x.Poison(slices.DeleteFunc(slices.Clone(c.Outputs), func(id uint64) bool { return id == 0 }), s.halt)
	s.free(c.Frees)
}

// failed takes a Fail: the client has no program for some ops.
func (s *session) failed(h transport.Header, meta []byte) error {
	var m proto.Fail
	if err := decode(h, meta, &m); err != nil {
		return err
	}
	s.fail(&executor.Error{Kind: m.Status.GetKind(), Text: m.Status.GetText()})
	s.x.Poison(m.Storages, s.halt)
	return nil
}

// resume takes a Resume: the client's user has seen the failure.
func (s *session) resume() { s.halt = nil }
