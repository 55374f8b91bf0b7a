// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package count delays the bytes between a client and a worker, and counts the round trips that the client has waited
// for. It never changes a byte, and decrypts nothing.
//
// The count is that of a causal chain. Bytes carry the number of round trips that their sender knew of: those of the
// client the number that it has seen, those of the worker one more than what the worker has received. A round trip is
// over when such bytes arrive at the client. So bytes that are under way at the same time are one round trip, however
// many connections carry them, and the speed of the machine has no influence on the number.
//
// Records of a link that carry no bytes of its stream (proto/link: ping, pong, acknowledgement) are passed on and not
// counted: neither end waits for one. Within TLS they are known by their length.
package count

import (
	"bytes"
	"encoding/binary"
	"sync"
	"time"
)

// Result is what a Counter has counted.
type Result struct {
	Trips       int     `json:"trips"`       // round trips, with those of the TCP handshakes
	Connections int     `json:"connections"` // that the client has opened
	Seconds     float64 `json:"seconds"`     // from the first connection to the end of the last round trip
}

// Counter counts round trips. All methods may be called concurrently.
type Counter struct {
	mu             sync.Mutex
	client, worker int // round trips that each end knows of
	connections    int
	began, ended   time.Time
}

// Reset begins a new count.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.client, c.worker, c.connections, c.began, c.ended = 0, 0, 0, time.Time{}, time.Time{}
}

// Result returns the count.
func (c *Counter) Result() Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Result{c.client, c.connections, c.ended.Sub(c.began).Seconds()}
}

// begin notes that a client has opened a stream. dialled: it has waited for the TCP handshake, which is a round trip.
func (c *Counter) begin(dialled bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.connections++; c.began.IsZero() {
		c.began = time.Now()
	}
	if dialled {
		c.client++
	}
}

// sent returns the number that bytes carry which the client or the worker sends now.
func (c *Counter) sent(client bool) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if client {
		return c.client
	}
	return c.worker + 1
}

// arrived notes that bytes with a number have arrived at the worker or at the client.
func (c *Counter) arrived(n int, atClient bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !atClient {
		c.worker = max(c.worker, n)
	} else if n > c.client {
		c.client, c.ended = n, time.Now()
	}
}

const (
	recordHeader = 5  // bytes of a TLS record's header
	handshake    = 22 // the type of the first TLS record
	application  = 23 // the type of a TLS record with encrypted bytes
	// The encrypted bytes of a link's record without bytes of the stream: its header, TLS's type, and the tag.
	emptyRecord = 16 + 1 + 16
)

// records follows the TLS records of one direction. Text may come before the first one, as from a shell. It counts.
type records struct {
	begun bool
	head  []byte // of the record that begins, in part
	left  int    // bytes of the record that have not come
	empty bool   // it carries no bytes of a link's stream
}

// pass takes the next bytes, and reports whether any of them belongs to a record that counts.
func (r *records) pass(b []byte) (counts bool) {
	if !r.begun {
		n := bytes.IndexByte(b, handshake)
		if n < 0 {
			return true
		}
		r.begun, b, counts = true, b[n:], n > 0
	}
	for len(b) > 0 {
		if r.left > 0 {
			n := min(r.left, len(b))
			counts = counts || !r.empty
			r.left, b = r.left-n, b[n:]
			continue
		}
		n := min(recordHeader-len(r.head), len(b))
		r.head, b = append(r.head, b[:n]...), b[n:]
		if len(r.head) == recordHeader {
			r.left = int(binary.BigEndian.Uint16(r.head[3:]))
			r.empty = r.head[0] == application && r.left == emptyRecord
			r.head = r.head[:0]
		}
	}
	return counts
}
