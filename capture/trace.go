// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package capture turns a closed trace into a graph: it decodes the words of csrc/abi/mycelya.h, gives each storage an SSA
// value that writes replace, and lists what must be stored at the cut. It never runs on a program that was seen before,
// never looks at sizes to decide anything (a graph is right for every size vector of its skeleton), and knows nothing of
// programs, sessions or wires.
package capture

import "github.com/mycelya/mycelya/ir"

// Trace is one closed trace, as handed over by the recorder. Each field is that of myc_trace.
type Trace struct {
	Key          [2]uint64
	Skeleton     []uint64
	Params       []uint64
	Bindings     []uint64 // storage ids by local number
	Alive        []uint8  // by local number: 1 if some tensor still holds the storage
	Frees        []uint64
	Origins      []uint32 // two words per record: code number, instruction offset in bytes
	Reason       uint32
	ReasonOrigin [2]uint32
}

// Captured is a graph and what its user must know of the trace beyond it.
type Captured struct {
	Graph   *ir.Graph
	Inputs  []bool   // by local number: the storage existed before the trace
	Changed []bool   // by local number: the trace made or wrote the storage
	Ops     []string // by record: the full name of its op
}
