// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package crash is memory that a session's process shares with its supervisor: which call and step it runs, and its
// programs and last calls. After a crash the supervisor keeps them in a folder.
package crash

import (
	"cmp"
	"slices"
	"sync/atomic"
	"unsafe"

	"github.com/mycelya/mycelya/proto"
)

// Journal is memory that a session's process shares with the supervisor. The process notes there its programs and
// calls, never a tensor's values, and the supervisor reads it after a crash (crash.go). It lies behind Progress:
//
//	words, of 8 bytes
//	    0         number of calls that were noted
//	    1 …       the last journalCalls of them, a ring: where the call begins in the log, and its length in words
//	    aboutAt   bytes of a text about the device, and the text
//	log           a ring of journalLog words. The index of a word is its number modulo journalLog; no call lies across
//	              the ring's end
//	    0         sequence number
//	    1  2  3   of the program: its number, the byte where it begins in the room, its length; 0 0 0: it is not there
//	    4 – 6     key
//	    7         form: whole, or differs, or large
//	    8 – 11    whole: numbers of parameters, inputs, outputs and frees, and then these
//	    8 9       differs: the sequence number of the program's call before, the bytes of the delta, and then these
//	room          the bytes of the programs, as they were received, each behind its number and its length
//
// A repeated call is noted as it was received: as the difference from the call before. So that the supervisor can make
// whole calls of the last keptCalls, a call is noted whole at least every keptCalls calls.
type Journal struct {
	head, log, room []uint64
	end             uint64 // number of the word behind the last call
	programs        uint64
	free            []span // of the room, in order
}

// span is a part of the room, in words.
type span struct{ at, n uint64 }

// Noted is what a Journal keeps of a program.
type Noted struct {
	key    [proto.KeyBytes]byte
	number uint64 // 0: the room has no space for it
	span   span
	Bytes  uint64

	calls uint64 // number of calls of the journal before the last one of the program that was noted whole, plus 1
	whole uint64 // the word where that one begins
	seq   uint64 // of the last call that was noted
}

const (
	journalCalls = 2 * keptCalls
	keptCalls    = 64             // calls that a crash's folder has
	journalLog   = 1 << 17        // words; 1 MiB
	journalRoom  = 32 << 20       // bytes
	journalHead  = 4096           // bytes
	largestCall  = journalLog / 8 // words of its lists
	aboutAt      = 1 + 2*journalCalls
	aboutBytes   = journalHead - 8*(aboutAt+1)
	callWords    = 8 // of a call without its lists
	journalBytes = journalHead + 8*journalLog + journalRoom
)

// Forms of a call.
const (
	whole uint64 = iota
	differs
	large // its lists are too long
)

// journalIn returns the journal in the memory behind Progress; nil if there is none.
func journalIn(memory []byte) *Journal {
	if len(memory) < progressBytes+journalBytes {
		return nil
	}
	w := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(memory))), len(memory)/8)[progressBytes/8:]
	const head, log = journalHead / 8, journalHead/8 + journalLog
	return &Journal{head: w[:head:head], log: w[head:log:log], room: w[log:], free: []span{{0, journalRoom / 8}}}
}

// bytesOf are words as bytes.
func bytesOf(w []uint64) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), 8*len(w))
}

// About notes a text about the device. A nil Journal takes notes, too.
func (j *Journal) About(text string) {
	if j != nil {
		n := copy(bytesOf(j.head[aboutAt+1:]), text)
		j.head[aboutAt] = uint64(n)
	}
}

// Program notes a program's bytes, if the room has space for them.
func (j *Journal) Program(key [proto.KeyBytes]byte, encoded []byte) (out Noted) {
	out.key = key
	if j == nil {
		return out
	}
	at, ok := j.take(2 + (uint64(len(encoded))+7)/8)
	if !ok {
		return out
	}
	j.programs++
	out.number, out.span, out.Bytes = j.programs, at, uint64(len(encoded))
	words := j.room[at.at : at.at+at.n]
	copy(bytesOf(words[2:]), encoded)
	words[0], words[1] = out.number, out.Bytes
	return out
}

// Forget frees the space of a program that will not be called again.
func (j *Journal) Forget(p *Noted) {
	if j != nil && p.number != 0 {
		j.room[p.span.at] = 0
		j.give(p.span)
		p.number = 0
	}
}

// Call notes a call of a program that is about to run: sent as it was received, and all as it is whole.
func (j *Journal) Call(seq uint64, last *Noted, sent, all *proto.Call) {
	if j == nil {
		return
	}
	n := j.head[0]
	lists := len(all.Params) + len(all.Inputs) + len(all.Outputs) + len(all.Frees)
	var w []uint64
	switch {
	case sent.Base != 0 && sent.Base == last.seq && n < last.calls-1+keptCalls && j.end-last.whole < journalLog/3 &&
		len(sent.Delta) <= 8*largestCall:
		w = j.next(callWords + 2 + (len(sent.Delta)+7)/8)
		w[7], w[8], w[9] = differs, sent.Base, uint64(len(sent.Delta))
		copy(bytesOf(w[10:]), sent.Delta)
	case lists <= largestCall:
		w = j.next(callWords + 4 + lists)
		w[7] = whole
		w[8], w[9] = uint64(len(all.Params)), uint64(len(all.Inputs))
		w[10], w[11] = uint64(len(all.Outputs)), uint64(len(all.Frees))
		at := w[12:]
		for _, list := range [...][]uint64{all.Params, all.Inputs, all.Outputs, all.Frees} {
			at = at[copy(at, list):]
		}
		last.calls, last.whole = n+1, j.end-uint64(len(w))
	default:
		w = j.next(callWords)
		w[7] = large
	}
	last.seq = seq
	if w[7] == large {
		last.seq = 0 // no call differs from it
	}
	w[0], w[1], w[2], w[3], w[6] = seq, last.number, 8*last.span.at, last.Bytes, 0
	copy(bytesOf(w[4:7]), last.key[:])
	i := 1 + n%journalCalls*2
	j.head[i], j.head[i+1] = j.end-uint64(len(w)), uint64(len(w))
	atomic.StoreUint64(&j.head[0], n+1)
}

// next returns the words of the next call in the log.
func (j *Journal) next(words int) []uint64 {
	n := uint64(words)
	if left := journalLog - j.end%journalLog; left < n {
		j.end += left
	}
	at := j.end % journalLog
	j.end += n
	return j.log[at : at+n : at+n]
}

// take returns the first free part of the room that is large enough.
func (j *Journal) take(words uint64) (span, bool) {
	for i, s := range j.free {
		if s.n < words {
			continue
		}
		if s.n == words {
			j.free = slices.Delete(j.free, i, i+1)
		} else {
			j.free[i] = span{s.at + words, s.n - words}
		}
		return span{s.at, words}, true
	}
	return span{}, false
}

// give returns a part of the room to the free ones.
func (j *Journal) give(s span) {
	i, _ := slices.BinarySearchFunc(j.free, s.at, func(f span, at uint64) int { return cmp.Compare(f.at, at) })
	j.free = slices.Insert(j.free, i, s)
	if i+1 < len(j.free) && s.at+s.n == j.free[i+1].at {
		j.free[i].n += j.free[i+1].n
		j.free = slices.Delete(j.free, i+1, i+2)
	}
	if i > 0 && j.free[i-1].at+j.free[i-1].n == s.at {
		j.free[i-1].n += j.free[i].n
		j.free = slices.Delete(j.free, i, i+1)
	}
}
