// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package capture

import (
	"fmt"
	"slices"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/trace"
)

// Compare finds the first record in which a trace differs from another one. Traces of one skeleton have none: nil.
func (names *Table) Compare(here, there *trace.Trace) (*trace.Difference, error) {
	a, err := read(here, names, 0)
	if err != nil {
		return nil, err
	}
	b, err := read(there, names, 0)
	if err != nil {
		return nil, err
	}
	for a.at < len(a.d.records) && b.at < len(b.d.records) && slices.Equal(a.words(), b.words()) {
		a.pass()
		b.pass()
	}
	out := &trace.Difference{Record: a.at, Here: a.line(), There: b.line()}
	switch {
	case a.over() && b.over():
		return nil, nil
	case a.over():
		out.What = "it ends here"
	case b.over():
		out.What = "it goes on here"
	default:
		out.What = contrast(a, b)
	}
	return out, nil
}

// words returns the words of the current record.
func (r *reader) words() []uint64 {
	end := len(r.t.Skeleton)
	if r.at+1 < len(r.d.records) {
		end = int(r.d.records[r.at+1].word)
	}
	return r.t.Skeleton[r.d.records[r.at].word:end]
}

func (r *reader) line() string {
	if r.over() {
		return "the end"
	}
	return r.record() + " at " + r.place(r.at)
}

// contrast names the first difference of two records with different words.
func contrast(a, b *reader) string {
	x, y := &a.d.records[a.at], &b.d.records[b.at]
	switch {
	case x.op != y.op:
		return "another op"
	case x.nargs != y.nargs:
		return fmt.Sprintf("%d arguments, not %d", x.nargs, y.nargs)
	}
	i, j := x.args, y.args
	for n := 0; i < x.end && j < y.end; n++ {
		what := fmt.Sprintf("argument %d", n)
		if i >= x.results {
			what = fmt.Sprintf("result %d", n-int(x.nargs))
		}
		if s := a.differs(i, b, j); s != "" {
			return what + s
		}
		i, j = a.d.next(i), b.d.next(j)
	}
	if x.nres != y.nres {
		return fmt.Sprintf("%d results, not %d", x.nres, y.nres)
	}
	return "what it does besides (random numbers, effects)"
}

// differs describes how one argument differs from another, in words that follow "argument 1", or returns "".
func (r *reader) differs(i uint32, o *reader, j uint32) string {
	a, b := &r.d.items[i], &o.d.items[j]
	is := func() string { return fmt.Sprintf(" is %s, not %s", r.item(i), o.item(j)) }
	switch {
	case a.tag != b.tag:
		return is()
	case a.tag == catalogue.TagTensor:
		return r.tensorDiffers(a, o, b)
	case a.tag == catalogue.TagList:
		if a.n != b.n {
			return fmt.Sprintf(" has %d items, not %d", a.n, b.n)
		}
		for n := range a.n {
			if s := r.differs(i+1+n, o, j+1+n); s != "" {
				return fmt.Sprintf(", item %d,%s", n, s)
			}
		}
	case a.tag == catalogue.TagStr:
		if text(r.t, a) != text(o.t, b) {
			return is()
		}
	case a.sub != b.sub, a.v != b.v:
		return is()
	}
	return ""
}

func (r *reader) tensorDiffers(a *item, o *reader, b *item) string {
	x, y := r.window(a), o.window(b)
	switch {
	case a.sub != b.sub || len(x.sizes) != len(y.sizes):
		return fmt.Sprintf(" is %s, not %s", x, y)
	case a.n != b.n:
		return fmt.Sprintf(" is another tensor: %s, not %s", r.source(a), o.source(b))
	case a.flags&catalogue.TensorWrite != b.flags&catalogue.TensorWrite:
		return " is written by only one of the two"
	}
	for n := range x.sizes {
		if classOf(x.sizes[n]) != classOf(y.sizes[n]) {
			return fmt.Sprintf(" has %d, not %d, as its dim %d: whether a dim is 0, 1 or more is part of a program",
				x.sizes[n], y.sizes[n], n)
		}
	}
	switch {
	case a.has(catalogue.TensorContig) != b.has(catalogue.TensorContig) || len(x.strides) != len(y.strides):
		return fmt.Sprintf(" is laid out as %s, not as %s", x, y)
	case a.has(catalogue.TensorOff0) != b.has(catalogue.TensorOff0):
		return fmt.Sprintf(" begins at element %d, not %d, of its storage: whether that is 0 is part of a program",
			x.offset, y.offset)
	}
	for n := range x.strides {
		if classOf(x.strides[n]) != classOf(y.strides[n]) {
			return fmt.Sprintf(" is laid out as %s, not as %s", x, y)
		}
	}
	if a.flags != b.flags {
		return fmt.Sprintf(" is another part of its storage: %s, not %s", x, y)
	}
	return ""
}

// source names the origin of an operand.
func (r *reader) source(it *item) string {
	if maker := r.makers[it.n]; maker >= 0 {
		return fmt.Sprintf("from %s at %s", r.op(maker), r.place(maker))
	}
	if it.has(catalogue.TensorFirst) {
		return "one from before, not used until now"
	}
	return "one from before"
}

func classOf(size uint64) uint64 { return min(size, catalogue.DimOther) }

// Maker names the op of a trace that made or wrote a storage last: "the result of aten::mul.Tensor at train.py:7".
func (names *Table) Maker(t *trace.Trace, local int) string {
	r, err := read(t, names, len(t.Origins)/2)
	if err != nil || local >= len(r.makers) || r.makers[local] < 0 {
		return "a tensor"
	}
	n := r.makers[local]
	return fmt.Sprintf("the result of %s at %s", r.op(n), r.place(n))
}
