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

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/core"
)

// inOrder puts the errors of steps in the order in which their ops were recorded, which need not be that of the steps.
func (c *call) inOrder(errors []*proto.Status) {
	records := c.variant.compiled.StepRecord
	record := func(st *proto.Status) int32 {
		if int(st.Step) < len(records) && records[st.Step] >= 0 {
			return records[st.Step]
		}
		return math.MaxInt32 // of the call as a whole
	}
	slices.SortStableFunc(errors, func(a, b *proto.Status) int { return cmp.Compare(record(a), record(b)) })
}

// explain is core.Explain: the error of a failed step has the worker's text, the op with its operands, and the line
// that recorded the op.
func (c *compiler) explain(ref core.Ref, st *proto.Status) error {
	text := strings.TrimRight(st.Text, "\n")
	of, ok := ref.(*call)
	if !ok {
		return &Error{Kind(st.Kind), st.Text}
	}
	compiled := of.variant.compiled
	if int(st.Step) >= len(compiled.StepRecord) {
		return &Error{Kind(st.Kind), text}
	}
	record := int(compiled.StepRecord[st.Step])
	name := "a copy"
	step, isCall := compiled.Program.Steps[st.Step].Kind.(*proto.Step_Call)
	switch {
	case record >= 0 && record < len(of.entry.ops):
		name = of.entry.ops[record]
	case isCall:
		name = step.Call.Op
	}
	if isCall {
		name += "(" + operands(compiled, step.Call.Args, of.meta.Params) + ")"
	}
	where := "at an unknown place"
	if record >= 0 && 2*record+1 < len(of.origins) {
		if o := c.frontend.Origin(of.origins[2*record], of.origins[2*record+1]); o.File != "" {
			where = fmt.Sprintf("at %s:%d", o.File, o.Line)
		}
	}
	text = fmt.Sprintf("%s\n  in %s, recorded %s", text, name, where)
	if Kind(st.Kind) == KindMemory {
		if peak := c.peak(compiled, of.meta.Params, of.entry.ops, of.origins); peak != "" {
			text += "\n  of program #" + fmt.Sprint(of.variant.account.number) + ". " + peak
		}
	}
	return &Error{Kind(st.Kind), text}
}

// operands lists the tensors of a call with their sizes: "f32[64,784], f32[100,10]".
func operands(c *codegen.Compiled, args []*proto.Arg, params []uint64) string {
	const most = 8
	var out []string
	var list func(args []*proto.Arg)
	list = func(args []*proto.Arg) {
		for _, a := range args {
			switch k := a.Kind.(type) {
			case *proto.Arg_List_:
				list(k.List.Items)
			case *proto.Arg_Tensor:
				t := c.Program.Tensors[k.Tensor]
				sizes := make([]string, len(t.Sizes))
				for i, d := range t.Sizes {
					if p, ok := d.Kind.(*proto.Dim_Param); ok {
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

// bug is the error for a broken assumption of this library.
func bug(what any) *Error {
	return &Error{KindRuntime, fmt.Sprintf("BUG: %v. Please report this.\n%s", what, debug.Stack())}
}
