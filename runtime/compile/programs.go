// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package compile

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"slices"
	"sync"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/program/lru"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/trace"
)

// Entry holds the words of one skeleton, and the programs compiled from it.
type Entry struct {
	skeleton []uint64
	Inputs   []bool // by local number: existed before the trace
	Changed  []bool // by local number: made or written
	Ops      []string
	variants []*Variant
	next     *Entry // another skeleton with the same hash
}

// Variant is a program for one choice of outputs. The key does not say which storages are still held at a cut: a
// variant fits if its outputs include them, and a call leaves out the others.
type Variant struct {
	Key      [proto.KeyBytes]byte
	wanted   []bool // by local number
	kernels  bool   // groups are computed by kernels
	Compiled *codegen.Compiled
	Packed   []byte   // its program, as the worker gets it
	guesses  bool     // it takes equal sizes of views to be equal in further calls
	numbers  bool     // it may rely on numbers
	first    []uint64 // the parameters with which it was compiled, if hits are checked
	// Whether a hit was checked, and the parameters of the last check: see recheck.
	checked     bool
	checkedWith []uint64
	bytes       int64        // see measure
	Weight      *cost.Weight // set if client and worker share a processor: see busy
	Account     *Account
	Naming      sync.Once // makes Names
	Names       []string  // see stepNames
	// The last call that was sent, and its number; nil: none yet.
	Last     *proto.Call
	LastSeq  uint64
	LastLife int // of the session, then
}

// programs is a session's cache of entries by key. It is used from one goroutine.
type programs struct {
	entries *lru.Cache[[2]uint64, *Entry] // the first one of each key
	// Number of the next variant; never used twice, so that a forgotten program can't be taken for a new one.
	next uint32
	// Hashes of the kernels of the last programs.
	kernels *lru.Cache[[16]byte, bool]
}

const (
	// cacheBytes bounds the memory of the skeletons and programs that a session keeps, as size.go measures it. It is
	// half of the client's leastMemory: the other half is for garbage. A step of 2,000 ops takes about 1 MiB.
	cacheBytes = 256 << 20
	// Most hashes of kernels; each takes about 200 bytes.
	mostKernels = 1 << 14
)

func newPrograms(bytes int64) *programs {
	return &programs{entries: lru.New[[2]uint64, *Entry](bytes, nil), kernels: lru.New[[16]byte, bool](mostKernels, nil)}
}

// newKernels counts the kernels of a program that the last programs did not have.
func (p *programs) newKernels(of *program.Program) int {
	n := 0
	for _, k := range of.Kernels {
		h := fnv.New128a()
		_, _ = io.WriteString(h, k.String())
		key := [16]byte(h.Sum(nil))
		if !p.kernels.Get(key) {
			p.kernels.Put(key, true, 1)
			n++
		}
	}
	return n
}

// find returns the entry of a trace's skeleton, nil if there is none, and the first entry under its key. The hash is
// only a hint: the words are compared each time, which costs less than copying them.
func (p *programs) find(t *trace.Trace) (e, first *Entry) {
	first = p.entries.Get(t.Key)
	for e = first; e != nil; e = e.next {
		if slices.Equal(e.skeleton, t.Skeleton) {
			return e, first
		}
	}
	return nil, first
}

// store keeps the entries of a trace's key, of which an entry is new or has grown.
func (p *programs) store(t *trace.Trace, first *Entry) {
	bytes := int64(0)
	for e := first; e != nil; e = e.next {
		bytes += e.bytes()
	}
	p.entries.Put(t.Key, first, bytes)
}

// needs reports, by local number, which storages must hold results of the trace: those that are changed and still held.
func (e *Entry) needs(t *trace.Trace) []bool {
	out := make([]bool, len(e.Changed))
	for i, c := range e.Changed {
		out[i] = c && t.Alive[i] != 0
	}
	return out
}

// fits returns the first variant, with or without kernels, that is valid for the trace's sizes and has all outputs that
// the trace needs.
func (e *Entry) fits(t *trace.Trace, kernels bool) *Variant {
	for _, v := range e.variants {
		if v.kernels == kernels && e.gives(v, t) && v.Compiled.Holds(t.Params) {
			return v
		}
	}
	return nil
}

// last is the newest variant with or without kernels; nil if there is none.
func (e *Entry) last(kernels bool) *Variant {
	for _, v := range slices.Backward(e.variants) {
		if v.kernels == kernels {
			return v
		}
	}
	return nil
}

// gives reports whether the outputs of a variant include all that a trace needs.
func (e *Entry) gives(v *Variant, t *trace.Trace) bool {
	for i, c := range e.Changed {
		if c && t.Alive[i] != 0 && !v.wanted[i] {
			return false
		}
	}
	return true
}

// otherSizes reports whether a variant would fit a trace except for the sizes that the variant requires.
func (e *Entry) otherSizes(t *trace.Trace) bool {
	return slices.ContainsFunc(e.variants, func(v *Variant) bool { return e.gives(v, t) && !v.Compiled.Holds(t.Params) })
}

// union is the outputs of a new variant. It fits wherever an older variant fits, so a loop whose liveness differs from
// step to step soon has one variant for all steps.
func (e *Entry) union(t *trace.Trace) []bool {
	out := e.needs(t)
	for _, v := range e.variants {
		for i, w := range v.wanted {
			out[i] = out[i] || w
		}
	}
	return out
}

// Number is the variant's number; no other variant of the cache has it.
func (v *Variant) Number() uint32 { return binary.LittleEndian.Uint32(v.Key[16:]) }

// newKey makes the key of a new variant of a trace.
func (p *programs) newKey(t *trace.Trace) (key [proto.KeyBytes]byte) {
	binary.LittleEndian.PutUint64(key[:], t.Key[0])
	binary.LittleEndian.PutUint64(key[8:], t.Key[1])
	binary.LittleEndian.PutUint32(key[16:], p.next)
	p.next++
	return key
}
