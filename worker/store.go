// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"fmt"
	"os"
	"slices"
	"sync"

	"github.com/dgraph-io/ristretto"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
)

const (
	// DefaultProgramBytes bounds the memory of a session's programs. A step of 2,000 ops takes about 1 MiB.
	DefaultProgramBytes = 256 << 20
	// The newest programs are kept even if the cache evicts them: a full cache rejects an entry that was found less
	// often than those that it has, and a program is sent because it is about to be called.
	newest = 16
	// maxProgram bounds the message of a program, with its key.
	maxProgram = program.MaxBytes + 64
	// The memory of an entry of the store without its last call and the lists of its buffers.
	entry = 1024
)

// loaded is a program of the store: ready to run, or with the error of its preparation.
type loaded struct {
	key       string
	params    int
	bytes     int64 // of memory
	inputs    []uint32
	outputs   []uint32
	prepared  Prepared
	steps     int
	setsFlags bool // it has steps that set flags or the default dtype
	err       error
	last      proto.Call // its last call, complete except for the key
	lastSeq   uint64     // that call's sequence number; 0 before the first call
	noted     noted      // in the journal
	holders   int        // references from the cache and from newest; under store.mu
}

// store keeps a session's programs by key, bounded by cost. One goroutine uses it. The cache's goroutine calls release,
// which only lists programs without a reference, because that goroutine must not call the executor.
type store struct {
	cache  *ristretto.Cache
	newest [newest]*loaded
	next   int

	journal *Journal

	mu   sync.Mutex
	dead []*loaded
}

func newStore(bytes int64) (*store, error) {
	s := &store{}
	c, err := ristretto.NewCache(&ristretto.Config{
		NumCounters: 100_000, MaxCost: bytes, BufferItems: 64, IgnoreInternalCost: true,
		OnExit: func(v any) {
			if p, ok := v.(*loaded); ok {
				s.release(p)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("worker: program store: %w", err)
	}
	s.cache = c
	return s, nil
}

func (s *store) release(p *loaded) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.holders--; p.holders == 0 {
		s.dead = append(s.dead, p)
	}
}

// put adds a program, or replaces the one with its key.
func (s *store) put(p *loaded) {
	p.holders = 1
	old := s.newest[s.next]
	s.newest[s.next] = p
	s.next = (s.next + 1) % newest
	if old != nil {
		s.release(old)
	}
	s.offer(p)
	s.cache.Wait()
}

// offer gives the cache a reference to a program. The cache releases it if it has no room.
func (s *store) offer(p *loaded) {
	s.mu.Lock()
	p.holders++
	s.mu.Unlock()
	if !s.cache.Set(p.key, p, p.bytes) {
		s.release(p)
	}
}

// get returns the program with a key, or nil.
func (s *store) get(key []byte) *loaded {
	if v, ok := s.cache.Get(key); ok {
		if p := v.(*loaded); p.key == string(key) {
			return p
		}
	}
	for i := range s.newest {
		// The newest first: of a key that was sent twice the later program counts.
		if p := s.newest[(s.next+newest-1-i)%newest]; p != nil && p.key == string(key) {
			s.offer(p) // it has been called once more
			return p
		}
	}
	return nil
}

// reap calls drop for every program without a reference.
func (s *store) reap(drop func(Prepared)) {
	s.mu.Lock()
	dead := s.dead
	s.dead = nil
	s.mu.Unlock()
	for _, p := range dead {
		s.journal.forget(&p.noted)
		if p.prepared != nil {
			drop(p.prepared)
			p.prepared = nil
		}
	}
}

// close calls drop for all programs.
func (s *store) close(drop func(Prepared)) {
	for i, p := range s.newest {
		if p != nil {
			s.newest[i] = nil
			s.release(p)
		}
	}
	s.cache.Clear()
	s.cache.Close()
	s.reap(drop)
}

// Decode returns the key and the words of a program from its message.
func Decode(encoded []byte) (key string, words []uint64, err error) {
	var m proto.Program
	if err := protobuf.Unmarshal(encoded, &m); err != nil {
		return "", nil, fmt.Errorf("program: %w", err)
	}
	if len(m.Key) != proto.KeyBytes {
		return "", nil, fmt.Errorf("program: key of %d bytes, want %d", len(m.Key), proto.KeyBytes)
	}
	words, err = program.Unpack(m.Words)
	return string(m.Key), words, err
}

// Show lists the program whose message is in a file, as crashes have them.
func Show(file string) (string, error) {
	encoded, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	_, words, err := Decode(encoded)
	if err != nil {
		return "", err
	}
	p, err := program.Parse(words)
	if err != nil {
		return "", err
	}
	return p.String(), nil
}

// load decodes and prepares a program. It fails if the program breaks the rules. A program that the executor cannot
// prepare is kept with the error, which poisons the outputs of its calls.
func load(x Executor, encoded []byte) (*loaded, error) {
	key, words, err := Decode(encoded)
	if err != nil {
		return nil, err
	}
	p, err := program.Parse(words)
	if err != nil {
		return nil, err
	}
	out := &loaded{key: key, params: int(p.Params), inputs: p.Inputs, outputs: p.Outputs, steps: len(p.Steps)}
	out.setsFlags = slices.ContainsFunc(p.Steps, program.SetsFlag)
	out.bytes = PreparedBytes(p) + runBytes(p) + entry + int64(8*p.Params) + int64(12*(len(p.Inputs)+len(p.Outputs)))
	out.prepared, out.err = x.Prepare(p, words)
	return out, nil
}
