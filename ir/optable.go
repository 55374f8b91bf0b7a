// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ir

import (
	"fmt"
	"strings"

	"github.com/mycelya/mycelya/catalogue"
)

// The columns of the op table are those of the catalogue.
type (
	Kind      = catalogue.Kind
	Classes   = catalogue.Classes
	DTypeRule = catalogue.DTypeRule
	ShapeRule = catalogue.ShapeRule
	Purity    = catalogue.Purity
	Form      = catalogue.Form
)

const (
	KindLeaf        = catalogue.KindLeaf
	KindMemory      = catalogue.KindMemory
	KindCall        = catalogue.KindCall
	KindElementwise = catalogue.KindElementwise
	KindFill        = catalogue.KindFill
	KindCopy        = catalogue.KindCopy
	KindReduce      = catalogue.KindReduce

	Bools     = catalogue.Bools
	Ints      = catalogue.Ints
	Floats    = catalogue.Floats
	Complexes = catalogue.Complexes
	Floats8   = catalogue.Floats8
	Reals     = catalogue.Reals
	Numbers   = catalogue.Numbers
	All       = catalogue.All

	DTypeGiven    = catalogue.DTypeGiven
	DTypeNumber   = catalogue.DTypeNumber
	DTypeFirst    = catalogue.DTypeFirst
	DTypePromoted = catalogue.DTypePromoted
	DTypeFloat    = catalogue.DTypeFloat
	DTypeReal     = catalogue.DTypeReal
	DTypeBool     = catalogue.DTypeBool
	DTypeSum      = catalogue.DTypeSum

	ShapeGiven     = catalogue.ShapeGiven
	ShapeScalar    = catalogue.ShapeScalar
	ShapeFirst     = catalogue.ShapeFirst
	ShapeBroadcast = catalogue.ShapeBroadcast
	ShapeReduce    = catalogue.ShapeReduce
	ShapeBytes     = catalogue.ShapeBytes

	Pure    = catalogue.Pure
	Fresh   = catalogue.Fresh
	ByFlags = catalogue.ByFlags
)

// OpInfo is the row of an op: the catalogue's cells, and cells derived from them.
type OpInfo struct {
	catalogue.Own
	Op    Op
	arity int
}

// opRows is the table; its order is that of the constants.
var opRows = makeRows()

func makeRows() []OpInfo {
	rows := make([]OpInfo, len(catalogue.OwnOps))
	for i := range rows {
		o := &catalogue.OwnOps[i]
		rows[i] = OpInfo{Own: *o, Op: Op(i + 1), arity: o.Arity()}
	}
	return rows
}

// index holds the look-ups derived from opRows; nothing changes it after it is made.
type index struct {
	byName map[string]Op
	byATen map[string]form
}

type form struct {
	op    Op
	words []string
}

var ops = makeIndex()

func makeIndex() index {
	x := index{byName: map[string]Op{}, byATen: map[string]form{}}
	for i := range opRows {
		r := &opRows[i]
		x.byName[r.Name] = r.Op
		for _, f := range r.ATen {
			x.byATen[f.Name] = form{r.Op, strings.Fields(f.Args)}
		}
	}
	return x
}

// Info returns the row of an op. An op without a row is a mistake of the caller.
func Info(op Op) *OpInfo {
	if op == OpInvalid || int(op) > len(opRows) {
		panic(fmt.Sprintf("BUG: op %d has no row in the op table", op))
	}
	return &opRows[op-1]
}

// String is the op's name in the text form.
func (op Op) String() string {
	if op == OpInvalid || int(op) > len(opRows) {
		return fmt.Sprintf("op(%d)", uint16(op))
	}
	return opRows[op-1].Name
}

// Own reports whether the op is one of our own compute ops, with a meaning in ir/eval.
func (op Op) Own() bool { return op >= opOwn && op < NumOps }

// ByName finds an op by its name in the text form.
func ByName(name string) (Op, bool) {
	op, ok := ops.byName[name]
	return op, ok
}

// ByATen finds the own op that has this operator as a form. Its arguments decide whether the op applies: see FromATen.
func ByATen(fullname string) (Op, bool) {
	f, ok := ops.byATen[fullname]
	return f.op, ok
}

// Arity is the number of operands, -1 if any number.
func (r *OpInfo) Arity() int { return r.arity }

// ATenCall is the operator that takes tensors for all operands, "" if the op has none.
func (r *OpInfo) ATenCall() string {
	for _, f := range r.ATen {
		if r.Kind == KindFill || !strings.Contains(f.Args, "#") {
			return f.Name
		}
	}
	return ""
}
