// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package crash

import (
	"encoding/binary"
	"errors"
	"io"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
)

const (
	// keptPrograms is how many programs a crash's folder has: those that were called last.
	keptPrograms = 8
	// maxProgram bounds the message of a program, with its key.
	maxProgram = program.MaxBytes + 64
)

// past is what a journal says about a session. The process may have been hostile, or have crashed while it wrote: each
// number is checked, and what is wrong is left out.
type past struct {
	about    []string      // device, its name, version of PyTorch
	calls    []pastCall    // oldest first
	programs []pastProgram // last called first
}

type pastCall struct {
	seq   uint64
	key   [proto.KeyBytes]byte
	lists *proto.Call // nil: they are not known
}

type pastProgram struct {
	key       [proto.KeyBytes]byte
	number    uint64
	at, bytes uint64 // in the room
}

// chain is the last known call of a program, from which the next one may differ.
type chain struct {
	seq  uint64
	call *proto.Call
}

var errJournal = errors.New("worker: the journal is damaged")

// readJournal reads the journal of a process that has ended, in the file of its memory.
func readJournal(memory io.ReaderAt) (*past, error) {
	head, err := readWords(memory, progressBytes, journalHead)
	if err != nil {
		return nil, err
	}
	log, err := readWords(memory, progressBytes+journalHead, 8*journalLog)
	if err != nil {
		return nil, err
	}
	out := new(past)
	if out.about, err = readAbout(head); err != nil {
		return nil, err
	}
	n, chains := head[0], map[[proto.KeyBytes]byte]chain{}
	for i := min(n, journalCalls-1); i > 0; i-- { // the process may have been writing over the one before these
		w := callIn(head, log, n, n-i)
		if w == nil {
			continue
		}
		call, called := decodePast(w, chains)
		if i <= keptCalls {
			out.calls = append(out.calls, call)
		}
		out.programs = append(slices.DeleteFunc(out.programs, func(p pastProgram) bool { return p.key == called.key }),
			called)
	}
	slices.Reverse(out.programs)
	out.programs = out.programs[:min(keptPrograms, len(out.programs))]
	return out, nil
}

func readWords(memory io.ReaderAt, at, bytes int64) ([]uint64, error) {
	b := make([]byte, bytes)
	if _, err := memory.ReadAt(b, at); err != nil {
		return nil, err
	}
	out := make([]uint64, bytes/8)
	for i := range out {
		out[i] = binary.NativeEndian.Uint64(b[8*i:])
	}
	return out, nil
}

func readAbout(head []uint64) ([]string, error) {
	n := head[aboutAt]
	if n > aboutBytes {
		return nil, errJournal
	}
	about := strings.ToValidUTF8(string(bytesOf(head[aboutAt+1:])[:n]), "?")
	return append(strings.SplitN(about, "\n", 3), "", "", "")[:3], nil
}

// callIn returns the words of call i of n; nil if it is not in the log any more, or damaged. The process may have begun
// to write two more calls behind the last one.
func callIn(head, log []uint64, n, i uint64) []uint64 {
	position := func(i uint64) (at, words uint64) {
		slot := 1 + 2*(i%journalCalls)
		return head[slot], head[slot+1]
	}
	const most = callWords + 4 + largestCall
	const inUse = 2 * most
	last, lastWords := position(n - 1)
	at, words := position(i)
	end := last + lastWords
	if words < callWords || words > most || end < last || at > end || words > end-at || end-at > journalLog-inUse ||
		at%journalLog+words > journalLog {
		return nil
	}
	return log[at%journalLog:][:words]
}

// decodePast decodes a call of the log, and notes its lists as those of its program's last call.
func decodePast(w []uint64, chains map[[proto.KeyBytes]byte]chain) (pastCall, pastProgram) {
	key := [proto.KeyBytes]byte(bytesOf(w[4:7]))
	call := pastCall{seq: w[0], key: key}
	before, known := chains[key]
	delete(chains, key)
	switch {
	case w[7] == whole:
		call.lists = wholeLists(w[callWords:])
	case w[7] == differs && known && len(w) >= callWords+2 && before.seq == w[8]:
		call.lists = changedLists(before.call, w[callWords+1:])
	}
	if call.lists != nil {
		chains[key] = chain{call.seq, call.lists}
	}
	return call, pastProgram{key, w[1], w[2], w[3]}
}

// wholeLists are the lists of a call that was noted whole; nil if they are damaged.
func wholeLists(w []uint64) *proto.Call {
	if len(w) < 4 {
		return nil
	}
	counts, rest := w[:4], w[4:]
	var lists [4][]uint64
	for i, n := range counts {
		if n > uint64(len(rest)) {
			return nil
		}
		lists[i], rest = slices.Clone(rest[:n]), rest[n:]
	}
	if len(rest) > 0 {
		return nil
	}
	return &proto.Call{Params: lists[0], Inputs: lists[1], Outputs: lists[2], Frees: lists[3]}
}

// changedLists are the lists of a call that differs from another one, after the length of the difference; nil if they
// are damaged.
func changedLists(before *proto.Call, w []uint64) *proto.Call {
	n, delta := w[0], bytesOf(w[1:])
	if n > uint64(len(delta)) {
		return nil
	}
	out := &proto.Call{Params: slices.Clone(before.Params), Inputs: slices.Clone(before.Inputs),
		Outputs: slices.Clone(before.Outputs), Frees: slices.Clone(before.Frees)}
	if proto.ApplyDelta(delta[:n], out) != nil {
		return nil
	}
	return out
}

// open returns a reader of the program's bytes; nil if the room does not have them any more.
func (p pastProgram) open(memory io.ReaderAt) io.Reader {
	const label = 16
	if p.number == 0 || p.bytes > maxProgram || p.at%8 != 0 || p.at > journalRoom-label ||
		p.bytes > journalRoom-label-p.at {
		return nil
	}
	at := progressBytes + journalHead + 8*journalLog + int64(p.at)
	w, err := readWords(memory, at, label)
	if err != nil || w[0] != p.number || w[1] != p.bytes {
		return nil
	}
	return io.NewSectionReader(memory, at+label, int64(p.bytes))
}
