// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/core"
)

// explain is core.Explain: the error of a failed step has the worker's text, the op with its operands, and the line
// that recorded the op.
func (s *session) explain(ref core.Ref, st *proto.Status) error {
	text := strings.TrimRight(st.Text, "\n")
	of, ok := ref.(*call)
	if !ok {
		return &Error{Kind: Kind(st.Kind), Text: st.Text}
	}
	compiled := of.variant.Compiled
	if int(st.Step) >= len(compiled.Program.Steps) {
		return &Error{Kind: Kind(st.Kind), Text: text, Lost: of.lost(-1)}
	}
	name, where := s.locate(of, st.Step)
	text = fmt.Sprintf("%s\n  in %s, recorded %s", text, name, where)
	if Kind(st.Kind) == KindMemory {
		if peak := s.compiler.Peak(compiled, of.meta.Params, of.entry.Ops, of.origins); peak != "" {
			text += "\n  of program #" + fmt.Sprint(of.variant.Account.Number) + ". " + peak
		}
	}
	return &Error{Kind(st.Kind), text, of.lost(compiled.Program.Record(int(st.Step)))}
}

// lost is the smallest id of the storages that a call does not make because a record has failed.
func (c *call) lost(failed int) uint64 {
	first := map[uint32]uint32{} // by output: 1 + the first record that makes or writes the storage
	for _, v := range c.variant.Compiled.Program.Versions {
		if _, found := first[v.Output]; !found {
			first[v.Output] = v.Record
		}
	}
	out := uint64(0)
	for i, id := range c.meta.Outputs {
		made, known := first[uint32(i)]
		if id != 0 && (!known || int(made) > failed) && !slices.Contains(c.meta.Inputs, id) && (out == 0 || id < out) {
			out = id
		}
	}
	if out == 0 { // storages of later calls
		out = max(slices.Max(append(c.meta.Outputs, 0)), slices.Max(append(c.meta.Inputs, 0))) + 1
	}
	return out
}

// asError is an error as the user sees it.
func asError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return &Error{Kind: KindRuntime, Text: err.Error()}
}

// locate returns the op of a step with its operands, and the place that recorded it.
func (s *session) locate(of *call, number uint32) (name, where string) {
	compiled := of.variant.Compiled
	record := compiled.Program.Record(int(number))
	name = "a copy"
	step, isCall := compiled.Program.Steps[number].(*program.Call)
	_, isKernel := compiled.Program.Steps[number].(*program.Kernel)
	switch {
	case record >= 0 && record < len(of.entry.Ops):
		name = of.entry.Ops[record]
	case isCall:
		name = step.Op
	case isKernel:
		name = "a kernel"
	}
	if isCall {
		name += "(" + operands(compiled, step.Args, of.meta.Params) + ")"
	}
	where = "at an unknown place"
	if record >= 0 && 2*record+1 < len(of.origins) {
		if o := s.compiler.Frontend.Origin(of.origins[2*record], of.origins[2*record+1]); o.File != "" {
			where = fmt.Sprintf("at %s:%d", o.File, o.Line)
		}
	}
	return name, where
}

// operands lists the tensors of a call with their sizes: "f32[64,784], f32[100,10]".
func operands(c *codegen.Compiled, args []program.Arg, params []uint64) string {
	const most = 8
	var out []string
	var list func(args []program.Arg)
	list = func(args []program.Arg) {
		for i := range args {
			if a := &args[i]; a.Tag == catalogue.TagTensor {
				t := &c.Program.Tensors[a.Value]
				sizes := make([]string, len(t.Sizes))
				for j, d := range t.Sizes {
					sizes[j] = fmt.Sprint(d.At(params))
				}
				out = append(out, fmt.Sprintf("%s[%s]", ir.DType(t.DType), strings.Join(sizes, ",")))
			}
			list(args[i].Items)
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
	return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: %v. Please report this.\n%s", what, debug.Stack())}
}
