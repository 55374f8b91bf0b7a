// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import "sort"

const (
	// chunkBytes is the size of a piece of a buffer's own memory.
	chunkBytes = 64 << 10
	// maxSpare bounds the chunks that a buffer keeps for later.
	maxSpare = 128
)

// buffer holds the bytes of a stream between two offsets.
type buffer struct {
	pieces []piece // without gaps
	end    uint64
	spare  [][]byte
	pinned []byte // a chunk that must not be used again yet
}

// piece is bytes of a stream from an offset on.
type piece struct {
	at   uint64
	b    []byte
	lent bool // the caller's memory; otherwise a chunk
}

// append copies bytes to the end.
func (b *buffer) append(p []byte) {
	for len(p) > 0 {
		last := len(b.pieces) - 1
		if last < 0 || b.pieces[last].lent || len(b.pieces[last].b) == chunkBytes {
			b.pieces = append(b.pieces, piece{at: b.end, b: b.chunk()})
			last++
		}
		c := b.pieces[last].b
		n := copy(c[len(c):chunkBytes], p)
		b.pieces[last].b = c[:len(c)+n]
		b.end += uint64(n)
		p = p[n:]
	}
}

// lend appends bytes without a copy. Their memory is used until they are freed, or until own.
func (b *buffer) lend(p []byte) {
	b.pieces = append(b.pieces, piece{at: b.end, b: p, lent: true})
	b.end += uint64(len(p))
}

// own copies all bytes that were lent.
func (b *buffer) own() {
	all := b.pieces
	b.pieces = make([]piece, 0, len(all))
	for _, p := range all {
		if !p.lent {
			b.pieces = append(b.pieces, p)
			continue
		}
		b.end = p.at
		b.append(p.b)
	}
}

func (b *buffer) chunk() []byte {
	if n := len(b.spare); n > 0 {
		c := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return c
	}
	return make([]byte, 0, chunkBytes)
}

// find returns the piece with the byte at an offset.
func (b *buffer) find(at uint64) *piece {
	after := sort.Search(len(b.pieces), func(i int) bool { return b.pieces[i].at > at })
	return &b.pieces[after-1]
}

// from returns the bytes that lie together from an offset on.
func (b *buffer) from(at uint64) []byte {
	p := b.find(at)
	return p.b[at-p.at:]
}

// pin keeps the chunk with the byte at an offset from being used again, until another one is pinned.
func (b *buffer) pin(at uint64) { b.pinned = b.find(at).b }

// free drops the bytes before an offset.
func (b *buffer) free(before uint64) {
	n := 0
	for ; n < len(b.pieces); n++ {
		p := &b.pieces[n]
		if p.at+uint64(len(p.b)) > before {
			if p.lent && p.at < before {
				p.b, p.at = p.b[before-p.at:], before
			}
			break
		}
		if !p.lent && len(p.b) < chunkBytes && n == len(b.pieces)-1 {
			break // the next bytes are appended to it
		}
		if !p.lent && len(b.spare) < maxSpare && (b.pinned == nil || &p.b[0] != &b.pinned[0]) {
			b.spare = append(b.spare, p.b[:0])
		}
		*p = piece{}
	}
	b.pieces = b.pieces[n:]
}
