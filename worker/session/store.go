// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"fmt"
	"os"
	"slices"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/program/lru"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/executor"
)

const (
	// DefaultProgramBytes bounds the memory of a session's programs. A step of 2,000 ops takes about 1 MiB.
	DefaultProgramBytes = 256 << 20
	// The memory of an entry of the store without its last call and the lists of its buffers.
	entry = 1024
)

// loaded is a program of the store: ready to run, or with the error of its preparation.
type loaded struct {
	key      [proto.KeyBytes]byte
	params   int
	bytes    int64 // of memory
	inputs   []uint32
	outputs  []uint32
	prepared executor.Prepared
	steps    int
	// A call that is skipped does something: it has steps that set flags or the default dtype, or collectives, whose
	// other members must not wait.
	acts    bool
	err     error
	last    proto.Call  // its last call, complete except for the key
	lastSeq uint64      // that call's sequence number; 0 before the first call
	noted   crash.Noted // in the journal
}

// store keeps a session's programs.
type store = lru.Cache[[proto.KeyBytes]byte, *loaded]

// newStore makes a store for so many bytes of programs of an executor, which a journal has, too.
func newStore(bytes int64, x executor.Executor, j *crash.Journal) *store {
	return lru.New[[proto.KeyBytes]byte](bytes, func(p *loaded) {
		j.Forget(&p.noted)
		if p.prepared != nil {
			x.Drop(p.prepared)
		}
	})
}

// Decode returns the key and the words of a program from its message.
func Decode(encoded []byte) (key [proto.KeyBytes]byte, words []uint64, err error) {
	var m proto.Program
	if err := protobuf.Unmarshal(encoded, &m); err != nil {
		return key, nil, fmt.Errorf("program: %w", err)
	}
	if copy(key[:], m.Key) < len(key) || len(m.Key) > len(key) {
		return key, nil, fmt.Errorf("program: key of %d bytes, want %d", len(m.Key), len(key))
	}
	words, err = program.Unpack(m.Words)
	return key, words, err
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
func load(x executor.Executor, encoded []byte) (*loaded, error) {
	key, words, err := Decode(encoded)
	if err != nil {
		return nil, err
	}
	p, err := program.Parse(words)
	if err != nil {
		return nil, err
	}
	out := &loaded{key: key, params: int(p.Params), inputs: p.Inputs, outputs: p.Outputs, steps: len(p.Steps)}
	out.acts = slices.ContainsFunc(p.Steps, program.SetsFlag) || slices.ContainsFunc(p.Steps, program.Joins)
	out.bytes = executor.PreparedBytes(p) + executor.RunBytes(p) + entry + int64(8*p.Params) +
		int64(12*(len(p.Inputs)+len(p.Outputs)))
	out.prepared, out.err = x.Prepare(p, words)
	return out, nil
}
