// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"strings"
	"sync/atomic"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

// log keeps the end of a worker's output, and notes its handshake.
type log struct {
	all     process.Log
	listens atomic.Bool // the worker has printed its handshake
}

// Write implements io.Writer.
func (l *log) Write(p []byte) (int, error) {
	n, err := l.all.Write(p)
	if !l.listens.Load() {
		for line := range strings.Lines(l.all.String()) {
			if _, err := transport.ParseHandshake(line); err == nil {
				l.listens.Store(true)
			}
		}
	}
	return n, err
}

// String is the end of the output, without the handshake.
func (l *log) String() string {
	var b strings.Builder
	for line := range strings.Lines(l.all.String()) {
		if _, err := transport.ParseHandshake(line); err != nil {
			b.WriteString(line)
		}
	}
	return strings.TrimSpace(b.String())
}

// listening reports whether the worker has printed its handshake.
func (l *log) listening() bool { return l.listens.Load() }

// tail is the end of the output, in a sentence.
func (l *log) tail() string { return process.Tail(l.String()) }
