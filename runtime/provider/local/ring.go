// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package local

import (
	"bytes"
	"sync"
)

// logBytes is how much of a worker's log is kept: some hundred lines, enough for a C++ or a Go stack.
const logBytes = 64 << 10

// ring keeps the last logBytes of what is written to it.
type ring struct {
	mu  sync.Mutex
	buf []byte
	cut bool // something was dropped
}

func (r *ring) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, p...)
	// Cut at twice the size, so that a byte is moved once at most.
	if len(r.buf) > 2*logBytes {
		r.buf = append(r.buf[:0], r.buf[len(r.buf)-logBytes:]...)
		r.cut = true
	}
	return len(p), nil
}

// String is the last logBytes, from the start of a line if anything is missing before it.
func (r *ring) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, cut := r.buf, r.cut
	if len(b) > logBytes {
		b, cut = b[len(b)-logBytes:], true
	}
	if cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}
