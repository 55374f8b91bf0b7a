// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"fmt"
	"sync"

	"github.com/dgraph-io/ristretto"

	"github.com/mycelya/mycelya/proto"
)

const (
	// DefaultProgramBytes bounds the programs of a session. A 2,000-op step takes about 1 MiB here.
	DefaultProgramBytes = 256 << 20
	// A decoded program, its words and the executor's form of it, against its encoded size.
	costFactor = 8
	// The newest programs are kept whatever the cache thinks of them: it may refuse a newcomer for its lack of
	// history, and a program is sent because it is about to be called.
	newest = 16
)

// program is one entry of the store: ready to run, or with the reason why it isn't.
type program struct {
	key      string
	params   int
	inputs   []uint32
	outputs  []uint32
	prepared Prepared
	err      error
	last     proto.Call // its last call, whole but for the key
	lastSeq  uint64     // that call's number; 0: none yet
	holders  int        // of the cache and the newest; under store.mu
}

// store keeps a session's programs by key, bounded by cost. It is used from one goroutine; only the cache's own goroutine
// comes in beside it, and it merely marks what nothing holds any more: the executor isn't to be called from there.
type store struct {
	cache  *ristretto.Cache
	newest [newest]*program
	next   int

	mu   sync.Mutex
	dead []*program
}

func newStore(bytes int64) (*store, error) {
	s := &store{}
	c, err := ristretto.NewCache(&ristretto.Config{
		NumCounters: 100_000, MaxCost: bytes, BufferItems: 64, IgnoreInternalCost: true,
		OnExit: func(v any) {
			if p, ok := v.(*program); ok {
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

func (s *store) release(p *program) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.holders--; p.holders == 0 {
		s.dead = append(s.dead, p)
	}
}

// put adds a program of an encoded size, in the place of one with its key.
func (s *store) put(p *program, bytes int) {
	p.holders = 2
	old := s.newest[s.next]
	s.newest[s.next] = p
	s.next = (s.next + 1) % newest
	if old != nil {
		s.release(old)
	}
	if !s.cache.Set(p.key, p, int64(bytes)*costFactor) {
		s.release(p)
	}
	s.cache.Wait()
}

// get returns the program with a key, or nil.
func (s *store) get(key []byte) *program {
	if v, ok := s.cache.Get(key); ok {
		if p := v.(*program); p.key == string(key) {
			return p
		}
	}
	for i := range s.newest {
		// From the newest on: a key sent twice means the later one.
		if p := s.newest[(s.next+newest-1-i)%newest]; p != nil && p.key == string(key) {
			return p
		}
	}
	return nil
}

// reap hands every program that nothing holds to drop.
func (s *store) reap(drop func(Prepared)) {
	s.mu.Lock()
	dead := s.dead
	s.dead = nil
	s.mu.Unlock()
	for _, p := range dead {
		if p.prepared != nil {
			drop(p.prepared)
			p.prepared = nil
		}
	}
}

// close hands all programs to drop.
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

// load decodes and prepares a program. A program that breaks the rules is a fault of the client; one that this executor
// can't prepare is kept with the reason, which its calls then give.
func load(x Executor, encoded []byte) (*program, error) {
	p, err := proto.DecodeProgram(encoded)
	if err != nil {
		return nil, err
	}
	out := &program{key: string(p.Key), params: int(p.Params), inputs: p.Inputs, outputs: p.Outputs}
	out.prepared, out.err = x.Prepare(p)
	return out, nil
}
