// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package graphs

import (
	"fmt"
	"strings"
)

// AdamW is the text of a step of AdamW over n tensors of ranks 1 and 2, as capture returns it. Parameter i is storage
// i, and its gradient and its two moments are storages n + i, 2n + i and 3n + i.
func AdamW(n int) string {
	w := &lists{n: n, slot: 2 * n}
	w.text.WriteString("graph train.py:1 step {\n  dims")
	for i := range n {
		fmt.Fprintf(&w.text, " n%d=%d@%d m%d=%d@%d", i, 3+i%7, 2*i, i, 2+i%5, 2*i+1)
	}
	w.text.WriteString("\n")
	p := w.inputs(0)
	p = w.call("mul_.Scalar", w.list(p, "!"), w.number())
	m, g := w.inputs(2), w.inputs(1)
	m = w.call("lerp_.Scalar", w.list(m, "!"), w.list(g, ""), w.number())
	v := w.inputs(3)
	v = w.call("mul_.Scalar", w.list(v, "!"), w.number())
	v = w.call("addcmul_.Scalar", w.list(v, "!"), w.list(g, ""), w.list(g, ""), w.number())
	s := w.call("sqrt", w.list(v, ""))
	s = w.call("div_.ScalarList", w.list(s, "!"), w.numbers())
	s = w.call("add_.Scalar", w.list(s, "!"), w.number())
	p = w.call("addcdiv_.ScalarList", w.list(p, "!"), w.list(m, ""), w.list(s, ""), w.numbers())
	for k, values := range [][]int{p, nil, m, v} {
		for i, value := range values {
			fmt.Fprintf(&w.text, "  output %%%d -> s%d\n", value, k*n+i)
		}
	}
	w.text.WriteString("}\n")
	return w.text.String()
}

// lists writes a graph of operators on lists of n tensors.
type lists struct {
	text       strings.Builder
	n          int
	next, slot int // the next value, and the next parameter
}

func (w *lists) define(typ, as string) int {
	fmt.Fprintf(&w.text, "  %%%d: %s = %s\n", w.next, typ, as)
	w.next++
	return w.next - 1
}

func (w *lists) typ(i int) string {
	if i%3 == 0 {
		return fmt.Sprintf("f32[n%d]", i)
	}
	return fmt.Sprintf("f32[n%d,m%d]", i, i)
}

func (w *lists) inputs(family int) []int {
	out := make([]int, w.n)
	for i := range out {
		out[i] = w.define(w.typ(i), fmt.Sprintf("input %d", family*w.n+i))
	}
	return out
}

func (w *lists) number() string {
	w.slot++
	return fmt.Sprintf("%%%d", w.define("f64[]", fmt.Sprintf("param %d", w.slot-1)))
}

func (w *lists) numbers() string {
	out := make([]string, w.n)
	for i := range out {
		out[i] = w.number()
	}
	return "scalars[" + strings.Join(out, ", ") + "]"
}

func (w *lists) list(values []int, mark string) string {
	out := make([]string, len(values))
	for i, v := range values {
		out[i] = fmt.Sprintf("%%%d%s", v, mark)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func (w *lists) call(name string, args ...string) []int {
	out, types := make([]int, w.n), make([]string, w.n)
	for i := range out {
		out[i] = w.next
		types[i] = fmt.Sprintf("%%%d: %s", w.next, w.typ(i))
		w.next++
	}
	fmt.Fprintf(&w.text, "  %s = aten._foreach_%s %s\n", strings.Join(types, ", "), name, strings.Join(args, " "))
	return out
}
