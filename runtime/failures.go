// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"cmp"
	"fmt"
	"math"
	"runtime/debug"
	"slices"
	"strings"
	"sync"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	pb "github.com/mycelya/mycelya/proto"
)

// failures are the errors of a session that a user may still have to see: each is raised by the reads of what it has
// poisoned, and once by a sync if nothing has raised it before.
type failures struct {
	mu         *sync.Mutex
	steps      map[stepID]*Error
	order      []stepID // of steps, oldest first
	unreported []*Error // oldest first
	calls      map[uint64]*call
	callOrder  []uint64
}

type stepID struct {
	call uint64
	step uint32
}

// maxFailedCalls bounds the calls kept to explain steps that their Done didn't list.
const maxFailedCalls = 64

func newFailures() failures {
	return failures{mu: new(sync.Mutex), steps: map[stepID]*Error{}, calls: map[uint64]*call{}}
}

func (f *failures) add(e *Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.addLocked(e)
}

func (f *failures) addLocked(e *Error) {
	if len(f.unreported) < maxErrors {
		f.unreported = append(f.unreported, e)
	}
}

// addStep keeps the error of a step.
func (f *failures) addStep(call uint64, step uint32, e *Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	id := stepID{call, step}
	if len(f.order) >= maxErrors {
		delete(f.steps, f.order[0])
		f.order = f.order[1:]
	}
	f.steps[id] = e
	f.order = append(f.order, id)
	f.addLocked(e)
}

// keep holds on to a failed call if its Done listed only some of its failed steps.
func (f *failures) keep(c *call, partial bool) {
	if !partial {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.callOrder) >= maxFailedCalls {
		delete(f.calls, f.callOrder[0])
		f.callOrder = f.callOrder[1:]
	}
	f.calls[c.seq] = c
	f.callOrder = append(f.callOrder, c.seq)
}

// step returns the error of a step and notes that the user sees it, or the call to explain it from, or neither.
func (f *failures) step(id stepID) (*Error, *call) {
	f.mu.Lock()
	defer f.mu.Unlock()
	e := f.steps[id]
	if e != nil {
		f.reportLocked(e)
	}
	return e, f.calls[id.call]
}

func (f *failures) report(e *Error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reportLocked(e)
}

func (f *failures) reportLocked(e *Error) {
	for i, u := range f.unreported {
		if u == e {
			f.unreported = append(f.unreported[:i], f.unreported[i+1:]...)
			return
		}
	}
}

// oldest returns the oldest error that nobody has seen, and notes that it is seen now.
func (f *failures) oldest() *Error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.unreported) == 0 {
		return nil
	}
	e := f.unreported[0]
	f.unreported = f.unreported[1:]
	return e
}

// poisonOf is the error of an answer: that of the step which has poisoned what was asked for, or the answer's own.
func (s *session) poisonOf(st *pb.Status) *Error {
	if st.Call != 0 {
		e, c := s.failures.step(stepID{st.Call, st.Step})
		switch {
		case e != nil:
			return e
		case c != nil:
			return s.explain(c, st)
		}
	}
	return &Error{Kind(st.Kind), st.Text}
}

// inOrder puts the errors of steps in the order in which their ops were recorded, which need not be that of the steps.
func (c *call) inOrder(errors []*pb.Status) {
	records := c.variant.compiled.StepRecord
	record := func(st *pb.Status) int32 {
		if int(st.Step) < len(records) && records[st.Step] >= 0 {
			return records[st.Step]
		}
		return math.MaxInt32 // of the call as a whole
	}
	slices.SortStableFunc(errors, func(a, b *pb.Status) int { return cmp.Compare(record(a), record(b)) })
}

// explain says of a failed step which op it was, with what operands, and where it was recorded.
func (s *session) explain(c *call, st *pb.Status) *Error {
	text := strings.TrimRight(st.Text, "\n")
	compiled := c.variant.compiled
	if int(st.Step) >= len(compiled.StepRecord) {
		return &Error{Kind(st.Kind), text}
	}
	record := int(compiled.StepRecord[st.Step])
	name := "a copy"
	step, isCall := compiled.Program.Steps[st.Step].Kind.(*pb.Step_Call)
	switch {
	case record >= 0 && record < len(c.entry.ops):
		name = c.entry.ops[record]
	case isCall:
		name = step.Call.Op
	}
	if isCall {
		name += "(" + operands(compiled, step.Call.Args, c.meta.Params) + ")"
	}
	where := "at an unknown place"
	if record >= 0 && 2*record+1 < len(c.origins) {
		if o := s.frontend.Origin(c.origins[2*record], c.origins[2*record+1]); o.File != "" {
			where = fmt.Sprintf("at %s:%d", o.File, o.Line)
		}
	}
	text = fmt.Sprintf("%s\n  in %s, recorded %s", text, name, where)
	if Kind(st.Kind) == KindMemory {
		if planned := s.planned(compiled, c.meta.Params, c.entry.ops, c.origins); planned != "" {
			text += "\n  of program #" + fmt.Sprint(c.variant.account.number) + ". " + planned
		}
	}
	return &Error{Kind(st.Kind), text}
}

// operands lists the tensors of a call with their sizes: "f32[64,784], f32[100,10]".
func operands(c *codegen.Compiled, args []*pb.Arg, params []uint64) string {
	const most = 8
	var out []string
	var list func(args []*pb.Arg)
	list = func(args []*pb.Arg) {
		for _, a := range args {
			switch k := a.Kind.(type) {
			case *pb.Arg_List_:
				list(k.List.Items)
			case *pb.Arg_Tensor:
				t := c.Program.Tensors[k.Tensor]
				sizes := make([]string, len(t.Sizes))
				for i, d := range t.Sizes {
					if p, ok := d.Kind.(*pb.Dim_Param); ok {
						sizes[i] = fmt.Sprint(params[p.Param])
					} else {
						sizes[i] = fmt.Sprint(d.GetConst())
					}
				}
				out = append(out, fmt.Sprintf("%s[%s]", ir.DType(t.Dtype), strings.Join(sizes, ",")))
			}
		}
	}
	list(args)
	if len(out) > most {
		out = append(out[:most], fmt.Sprintf("… %d more", len(out)-most))
	}
	return strings.Join(out, ", ")
}

// bug is the error of a broken assumption of ours.
func bug(what any) *Error {
	return &Error{KindRuntime, fmt.Sprintf("BUG: %v. Please report this.\n%s", what, debug.Stack())}
}
