// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package core

import (
	"slices"

	"github.com/mycelya/mycelya/proto"
)

// poison holds the errors that the user may still have to see, and what depends on them. Each error is raised by the
// reads of what it has poisoned, and once by a sync if no read has raised it before.
type poison struct {
	storages   map[uint64]error // that a trace without a program should have made or written
	steps      map[stepID]error
	order      []stepID // of steps, oldest first
	calls      map[uint64]Ref
	callOrder  []uint64 // of calls, oldest first
	unreported []error  // oldest first
}

// stepID names a step of a call. Statuses of the worker name the step that poisoned a storage.
type stepID struct {
	call uint64
	step uint32
}

const (
	maxErrors = 4096
	// maxFailedCalls bounds the calls that are kept to explain failed steps which their Done did not list.
	maxFailedCalls = 64
)

func newPoison() poison {
	return poison{storages: map[uint64]error{}, steps: map[stepID]error{}, calls: map[uint64]Ref{}}
}

// inherited is the error of the first input of a trace that is poisoned; nil if there is none.
func (p *poison) inherited(ev *Prepared) error {
	if len(p.storages) == 0 {
		return nil
	}
	for i, in := range ev.Inputs {
		if err := p.storages[ev.Storages[i]]; in && err != nil {
			return err
		}
	}
	return nil
}

// free forgets storages that no tensor holds.
func (p *poison) free(ids []uint64) {
	if len(p.storages) == 0 {
		return
	}
	for _, id := range ids {
		delete(p.storages, id)
	}
}

// add notes an error for the next sync.
func (p *poison) add(err error) {
	if len(p.unreported) < maxErrors {
		p.unreported = append(p.unreported, err)
	}
}

// addStep keeps the error of a failed step.
func (p *poison) addStep(id stepID, err error) {
	if len(p.order) >= maxErrors {
		delete(p.steps, p.order[0])
		p.order = p.order[1:]
	}
	p.steps[id] = err
	p.order = append(p.order, id)
	p.add(err)
}

// keep holds a call whose Done did not list all failed steps.
func (p *poison) keep(seq uint64, call Ref) {
	if len(p.callOrder) >= maxFailedCalls {
		delete(p.calls, p.callOrder[0])
		p.callOrder = p.callOrder[1:]
	}
	p.calls[seq] = call
	p.callOrder = append(p.callOrder, seq)
}

// of is the error of an answer: the error of the step that poisoned what was asked for, or the answer's own.
func (p *poison) of(st *proto.Status, explain Explain) error {
	if st.Call == 0 {
		return explain(nil, st)
	}
	if err := p.steps[stepID{st.Call, st.Step}]; err != nil {
		p.report(err)
		return err
	}
	return explain(p.calls[st.Call], st) // a nil call: the status explains itself
}

// report notes that the user sees an error.
func (p *poison) report(err error) {
	if i := slices.Index(p.unreported, err); i >= 0 {
		p.unreported = slices.Delete(p.unreported, i, i+1)
	}
}

// oldest is the oldest error that the user has not seen, and is about to see; nil if there is none.
func (p *poison) oldest() error {
	if len(p.unreported) == 0 {
		return nil
	}
	err := p.unreported[0]
	p.unreported = p.unreported[1:]
	return err
}
