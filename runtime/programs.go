// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"io"
	"slices"
	"sync"

	"github.com/dgraph-io/ristretto"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/ir/cost"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/trace"
)

// entry holds the words of one skeleton, and the programs compiled from it.
type entry struct {
	skeleton []uint64
	inputs   []bool // by local number: existed before the trace
	changed  []bool // by local number: made or written
	ops      []string
	variants []*variant
	next     *entry // another skeleton with the same hash
}

// variant is a program for one choice of outputs. The key does not say which storages are still held at a cut: a
// variant fits if its outputs include them, and a call leaves out the others.
type variant struct {
	key      [proto.KeyBytes]byte
	wanted   []bool // by local number
	kernels  bool   // groups are computed by kernels
	compiled *codegen.Compiled
	packed   []byte   // its program, as the worker gets it
	guesses  bool     // it takes equal sizes of views to be equal in further calls
	numbers  bool     // it may rely on numbers
	first    []uint64 // the parameters with which it was compiled, if hits are checked
	// Whether a hit was checked, and the parameters of the last check: see recheck.
	checked     bool
	checkedWith []uint64
	bytes       int64        // see measure
	weight      *cost.Weight // set if client and worker share a processor: see busy
	account     *account
	naming      sync.Once // makes names
	names       []string  // see stepNames
	// The last call that was sent, and its number; nil: none yet.
	last     *proto.Call
	lastSeq  uint64
	lastLife int // of the session, then
}

// programs is a session's cache of entries by key. It is used from one goroutine.
//
// A full cache rejects an entry that was found less often than the entries that it has. Without newest, each step of a
// new loop would compile the loop's program again.
type programs struct {
	cache  *ristretto.Cache
	newest map[[2]uint64]stored // what was stored last, also if the cache has rejected it
	order  [][2]uint64          // the keys of newest, oldest first
	bytes  int64                // of newest
	room   int64                // the bound of bytes; one entry may exceed it
	// Number of the next variant; never used twice, so that a forgotten program can't be taken for a new one.
	next uint32
	// Hashes of the kernels of all programs so far.
	kernels map[[16]byte]struct{}
}

// stored is the first entry of a key, and the memory of all entries of the key.
type stored struct {
	first *entry
	bytes int64
}

// cacheBytes bounds the memory of the skeletons and programs that a session keeps, as size.go measures it. It is half
// of the client's leastMemory: the other half is for garbage. A step of 2,000 ops takes about 1 MiB.
const cacheBytes = 256 << 20

func newPrograms(bytes int64) (*programs, error) {
	room := bytes / 8
	c, err := ristretto.NewCache(&ristretto.Config{NumCounters: 100_000, MaxCost: bytes - room, BufferItems: 64,
		IgnoreInternalCost: true})
	if err != nil {
		return nil, fmt.Errorf("making the program cache: %w", err)
	}
	return &programs{
		cache: c, room: room, newest: map[[2]uint64]stored{}, kernels: map[[16]byte]struct{}{},
	}, nil
}

func (p *programs) close() { p.cache.Close() }

// newKernels counts the kernels of a program that no program before it had.
func (p *programs) newKernels(of *program.Program) int {
	n := 0
	for _, k := range of.Kernels {
		h := fnv.New128a()
		_, _ = io.WriteString(h, k.String())
		key := [16]byte(h.Sum(nil))
		if _, ok := p.kernels[key]; !ok {
			p.kernels[key] = struct{}{}
			n++
		}
	}
	return n
}

func cacheKey(key [2]uint64) string {
	var b [16]byte
	binary.LittleEndian.PutUint64(b[:], key[0])
	binary.LittleEndian.PutUint64(b[8:], key[1])
	return string(b[:])
}

// find returns the entry of a trace's skeleton, nil if there is none, and the first entry under its key. The hash is
// only a hint: the words are compared each time, which costs less than copying them.
func (p *programs) find(t *trace.Trace) (e, first *entry) {
	key := cacheKey(t.Key)
	v, cached := p.cache.Get(key)
	if cached {
		first = v.(*entry)
	} else {
		one := p.newest[t.Key]
		if first = one.first; first == nil {
			return nil, nil
		}
		p.cache.Set(key, first, one.bytes) // it has been found once more
	}
	for e = first; e != nil; e = e.next {
		if slices.Equal(e.skeleton, t.Skeleton) {
			return e, first
		}
	}
	return nil, first
}

// store puts an entry before the others with its key, or counts the growth of an entry that is there.
func (p *programs) store(t *trace.Trace, first *entry) {
	cost := int64(0)
	for e := first; e != nil; e = e.next {
		cost += e.bytes()
	}
	p.forget(t.Key)
	p.newest[t.Key] = stored{first, cost}
	p.order = append(p.order, t.Key)
	for p.bytes += cost; p.bytes > p.room && len(p.order) > 1; {
		p.forget(p.order[0])
	}
	p.cache.Set(cacheKey(t.Key), first, cost)
	p.cache.Wait()
}

// forget removes an entry from the newest.
func (p *programs) forget(key [2]uint64) {
	if old, known := p.newest[key]; known {
		p.bytes -= old.bytes
		delete(p.newest, key)
		at := slices.Index(p.order, key)
		p.order = slices.Delete(p.order, at, at+1)
	}
}

// needs reports, by local number, which storages must hold results of the trace: those that are changed and still held.
func (e *entry) needs(t *trace.Trace) []bool {
	out := make([]bool, len(e.changed))
	for i, c := range e.changed {
		out[i] = c && t.Alive[i] != 0
	}
	return out
}

// fits returns the first variant, with or without kernels, that is valid for the trace's sizes and has all outputs that
// the trace needs.
func (e *entry) fits(t *trace.Trace, kernels bool) *variant {
	for _, v := range e.variants {
		if v.kernels == kernels && e.gives(v, t) && v.compiled.Holds(t.Params) {
			return v
		}
	}
	return nil
}

// last is the newest variant with or without kernels; nil if there is none.
func (e *entry) last(kernels bool) *variant {
	for _, v := range slices.Backward(e.variants) {
		if v.kernels == kernels {
			return v
		}
	}
	return nil
}

// gives reports whether the outputs of a variant include all that a trace needs.
func (e *entry) gives(v *variant, t *trace.Trace) bool {
	for i, c := range e.changed {
		if c && t.Alive[i] != 0 && !v.wanted[i] {
			return false
		}
	}
	return true
}

// otherSizes reports whether a variant would fit a trace except for the sizes that the variant requires.
func (e *entry) otherSizes(t *trace.Trace) bool {
	return slices.ContainsFunc(e.variants, func(v *variant) bool { return e.gives(v, t) && !v.compiled.Holds(t.Params) })
}

// union is the outputs of a new variant. It fits wherever an older variant fits, so a loop whose liveness differs from
// step to step soon has one variant for all steps.
func (e *entry) union(t *trace.Trace) []bool {
	out := e.needs(t)
	for _, v := range e.variants {
		for i, w := range v.wanted {
			out[i] = out[i] || w
		}
	}
	return out
}

// number is the variant's number; no other variant of the cache has it.
func (v *variant) number() uint32 { return binary.LittleEndian.Uint32(v.key[16:]) }

// newKey makes the key of a new variant of a trace.
func (p *programs) newKey(t *trace.Trace) (key [proto.KeyBytes]byte) {
	binary.LittleEndian.PutUint64(key[:], t.Key[0])
	binary.LittleEndian.PutUint64(key[8:], t.Key[1])
	binary.LittleEndian.PutUint32(key[16:], p.next)
	p.next++
	return key
}
