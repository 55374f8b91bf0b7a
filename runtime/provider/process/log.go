// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package process

import (
	"bytes"
	"strings"
	"sync"
)

// LogBytes is how much of a worker's log is kept: some hundred lines, enough for a C++ or a Go stack.
const LogBytes = 64 << 10

// Log keeps the last LogBytes of what is written to it.
type Log struct {
	mu  sync.Mutex
	buf []byte
	cut bool // something was dropped
}

func (r *Log) Write(p []byte) (int, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.buf = append(r.buf, p...)
	// Cut at twice the size, so that a byte is moved once at most.
	if len(r.buf) > 2*LogBytes {
		r.buf = append(r.buf[:0], r.buf[len(r.buf)-LogBytes:]...)
		r.cut = true
	}
	return len(p), nil
}

// String is the last LogBytes, from the start of a line if anything is missing before it.
func (r *Log) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	b, cut := r.buf, r.cut
	if len(b) > LogBytes {
		b, cut = b[len(b)-LogBytes:], true
	}
	if cut {
		if i := bytes.IndexByte(b, '\n'); i >= 0 {
			b = b[i+1:]
		}
	}
	return string(b)
}

// Tail is a sentence with the end of the log, for an error.
func (r *Log) Tail() string { return Tail(r.String()) }

// Tail is a sentence with the end of a log, for an error.
func Tail(log string) string {
	log = strings.TrimSpace(log)
	if log == "" {
		return "It wrote nothing to its log."
	}
	return "The end of its log:\n" + log
}
