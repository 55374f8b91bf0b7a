// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// failure is the error that the next wait or cut raises. From the failure on, the worker runs no calls until it is told
// that a caller has raised the error: the program goes on as if it had stopped at the failing line.
type failure struct {
	err      error
	seq      uint64 // of the call that failed, or of the Fail
	resuming int    // resumes in the queue
	resumed  uint64 // the number of the last Resume
}

// resume is the submission of a Raise.
type resume struct{}

// Failure is the error that no caller has raised; nil if there is none. The caller who raises it steps Raise.
func (s *State) Failure() error { return s.failure.err }

// fail notes a failure. The first one counts. What was submitted before a Raise has failed with the error that was
// raised then.
func (s *State) fail(seq uint64, err error, out []Action) []Action {
	f := &s.failure
	if f.resuming > 0 || seq < f.resumed || f.err != nil && f.seq < seq {
		return out
	}
	f.err, f.seq = err, seq
	return append(out, Failing{true})
}

func (s *State) raise(out []Action) []Action {
	if s.failure.err == nil {
		return out
	}
	s.failure.err = nil
	out = append(out, Failing{false})
	if s.why != nil {
		return out
	}
	s.failure.resuming++
	return s.submit(resume{}, out)
}

// sendResume tells the worker to run calls again.
func (s *State) sendResume(out []Action) []Action {
	s.failure.resuming--
	s.failure.resumed = s.nextSeq()
	s.guesses.forget()
	return s.send(Send{Type: transport.Resume, Seq: s.failure.resumed}, out)
}

// failedSteps holds the errors of failed steps. What they have poisoned raises them.
type failedSteps struct {
	errors map[stepID]error
	order  []stepID // oldest first
}

// stepID names a step of a call. Statuses of the worker name the step that poisoned a storage.
type stepID struct {
	call uint64
	step uint32
}

// maxErrors bounds the errors that are kept.
const maxErrors = 4096

func newFailedSteps() failedSteps { return failedSteps{errors: map[stepID]error{}} }

// first is the error of a call that has failed. Its cause may be a step of an earlier call, which has poisoned what a
// step needs.
func (f *failedSteps) first(seq uint64, call Ref, cause *proto.Status, explain Explain) error {
	if cause.Call != seq {
		return f.of(cause, explain)
	}
	if len(f.order) >= maxErrors {
		delete(f.errors, f.order[0])
		f.order = f.order[1:]
	}
	id, err := stepID{seq, cause.Step}, explain(call, cause)
	f.errors[id] = err
	f.order = append(f.order, id)
	return err
}

// of is the error of an answer: the error of the step that poisoned what was asked for, or the answer's own.
func (f *failedSteps) of(st *proto.Status, explain Explain) error {
	if err := f.errors[stepID{st.Call, st.Step}]; err != nil && st.Call != 0 {
		return err
	}
	return explain(nil, st)
}

// failTrace reports a trace without a program to the worker: the storages that it should have made are poisoned.
func (s *State) failTrace(ev *Prepared, out []Action) []Action {
	var dead, lost []uint64
	dead = append(dead, ev.Frees...)
	for i, id := range ev.Storages {
		switch {
		case ev.Alive[i] == 0:
			dead = append(dead, id) // if the worker never had the storage, freeing it does nothing
		case ev.Changed == nil || ev.Changed[i]:
			lost = append(lost, id)
		}
	}
	s.guesses.forget()
	out = s.free(ev.Trace, dead, out)
	seq := s.nextSeq()
	out = s.send(Send{Type: transport.Fail, Seq: seq, Ref: ev.Trace, Storages: lost, Err: ev.Err}, out)
	return s.takeBack(s.fail(seq, ev.Err, out))
}
