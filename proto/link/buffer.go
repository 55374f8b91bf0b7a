// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

// chunkBytes is what a buffer grows by.
const chunkBytes = 64 << 10

// maxSpare bounds the chunks that a buffer keeps for later.
const maxSpare = 64

// buffer holds the bytes of a stream between two offsets.
type buffer struct {
	chunks [][]byte // all but the last are full
	base   uint64   // the offset of the first byte of the first chunk
	end    uint64
	spare  [][]byte
	pinned []byte // a chunk that must not be used again yet
}

func (b *buffer) append(p []byte) {
	for len(p) > 0 {
		last := len(b.chunks) - 1
		if last < 0 || len(b.chunks[last]) == cap(b.chunks[last]) {
			b.chunks = append(b.chunks, b.fresh())
			last++
		}
		c := b.chunks[last]
		n := copy(c[len(c):cap(c)], p)
		b.chunks[last] = c[:len(c)+n]
		b.end += uint64(n)
		p = p[n:]
	}
}

func (b *buffer) fresh() []byte {
	if n := len(b.spare); n > 0 {
		c := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return c
	}
	return make([]byte, 0, chunkBytes)
}

// from returns the bytes that lie together from an offset on.
func (b *buffer) from(at uint64) []byte {
	at -= b.base
	return b.chunks[at/chunkBytes][at%chunkBytes:]
}

// pin keeps the chunk with the byte at an offset from being used again, until another one is pinned.
func (b *buffer) pin(at uint64) { b.pinned = b.chunks[(at-b.base)/chunkBytes] }

// free drops the bytes before an offset.
func (b *buffer) free(before uint64) {
	n := 0
	for ; n < len(b.chunks) && b.base+chunkBytes <= before; n++ {
		if c := b.chunks[n]; len(b.spare) < maxSpare && (b.pinned == nil || &c[0] != &b.pinned[0]) {
			b.spare = append(b.spare, c[:0])
		}
		b.chunks[n] = nil
		b.base += chunkBytes
	}
	b.chunks = b.chunks[n:]
}
