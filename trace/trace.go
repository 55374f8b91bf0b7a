// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package trace is the vocabulary that capture and runtime share: a closed trace, its graph, and the difference of two
// traces. It never decodes the words of a trace.
package trace

import "github.com/mycelya/mycelya/ir"

// Place is an instruction of the user's program: the number of its code object, and the instruction's offset in bytes.
type Place [2]uint32

// Trace is one closed trace. Each field is the field of myc_trace with the same name; the arrays may be C memory.
type Trace struct {
	Key          [2]uint64
	Skeleton     []uint64
	Params       []uint64
	Bindings     []uint64 // storage ids, indexed by local number
	Alive        []uint8  // indexed by local number: 1 if a tensor still holds the storage
	Frees        []uint64 // storage ids
	Origins      []uint32 // two words per record: code number, instruction offset in bytes
	Reason       uint32
	ReasonOrigin Place
	// Of a profiled trace; otherwise nil and 0. Times are nanoseconds since 1970.
	Callers       []uint64 // by record
	Began, Closed int64
}

// Captured is the graph of a trace, with the facts about the trace that the graph does not hold.
type Captured struct {
	Graph   *ir.Graph
	Inputs  []bool   // indexed by local number: the storage existed before the trace
	Changed []bool   // indexed by local number: the trace made or wrote the storage
	Ops     []string // indexed by record: the full name of its op
}

// Difference is the first record in which one trace differs from another.
type Difference struct {
	Record      int    // the record's number, from 0
	Here, There string // both records with their places, or "the end" where a trace has ended
	What        string // the first part of the two records that differs
}
