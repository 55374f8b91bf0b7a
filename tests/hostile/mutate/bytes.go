// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package mutate

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
)

// Places in a frame's header.
const (
	HeaderBytes = 32
	BodyAt      = 16
	MetaAt      = 24
)

// WellFramed says whether the lengths in a frame's header are those of its bytes.
func WellFramed(b []byte) bool {
	if len(b) < HeaderBytes {
		return false
	}
	body := binary.LittleEndian.Uint64(b[BodyAt:])
	meta := uint64(binary.LittleEndian.Uint32(b[MetaAt:]))
	return body <= 1<<40 && uint64(len(b)) == HeaderBytes+meta+body
}

// Bytes changes the bytes of a frame, or of the first part of one: a bit, a length, a missing or a doubled part.
func Bytes(r *rand.Rand, b []byte) []byte {
	b = slices.Clone(b)
	switch r.IntN(8) {
	case 0:
		b[r.IntN(HeaderBytes)] ^= 1 << r.IntN(8)
	case 1, 2:
		b[r.IntN(len(b))] ^= 1 << r.IntN(8)
	case 3:
		binary.LittleEndian.PutUint64(b[BodyAt:], Number(r, binary.LittleEndian.Uint64(b[BodyAt:])))
	case 4:
		binary.LittleEndian.PutUint32(b[MetaAt:], uint32(Number(r, uint64(binary.LittleEndian.Uint32(b[MetaAt:])))))
	case 5:
		b = b[:r.IntN(len(b))]
	case 6:
		i, j := r.IntN(len(b)), r.IntN(len(b))
		b = slices.Insert(b, i, b[min(i, j):max(i, j)]...)
	default:
		i, j := r.IntN(len(b)), r.IntN(len(b))
		b = slices.Delete(b, min(i, j), max(i, j))
	}
	return b
}
