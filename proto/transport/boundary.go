// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import "encoding/binary"

// Boundary follows the bytes of a stream that this end sends, and knows whether they end with a whole frame.
type Boundary struct {
	head [headerBytes]byte
	have int    // bytes of head
	left uint64 // bytes of the frame behind its header that have not come
}

// Pass takes the next bytes of the stream.
func (b *Boundary) Pass(p []byte) {
	for len(p) > 0 {
		if b.left > 0 {
			n := min(b.left, uint64(len(p)))
			b.left, p = b.left-n, p[n:]
			continue
		}
		n := copy(b.head[b.have:], p)
		b.have, p = b.have+n, p[n:]
		if b.have == headerBytes {
			b.have = 0
			b.left = binary.LittleEndian.Uint64(b.head[16:]) + uint64(binary.LittleEndian.Uint32(b.head[24:]))
		}
	}
}

// Whole says whether the stream is between two frames.
func (b *Boundary) Whole() bool { return b.have == 0 && b.left == 0 }
