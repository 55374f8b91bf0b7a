// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"net"
	"sync/atomic"
	"syscall"
)

// progress is how far a Conn has read: twice the bytes, plus 1 while the reader waits for more. The reader changes it,
// and any goroutine may look at it.
type progress struct{ n atomic.Uint64 }

func (p *progress) begin()        { p.n.Store(p.n.Load() | 1) }
func (p *progress) end(bytes int) { p.n.Store(p.n.Load()&^1 + 2*uint64(bytes)) }
func (p *progress) bytes() uint64 { return p.n.Load() >> 1 }

// Progress returns a number that changes when bytes are read. It is odd while the reader waits for more.
func (c *Conn) Progress() uint64 { return c.progress.n.Load() }

// Arrived returns how many bytes of the stream have come to this host, read or not. It may count more: bytes of the
// protocols below frames, and bytes that the reader takes meanwhile.
func (c *Conn) Arrived() uint64 {
	n, layered := c.queued()
	if layered {
		n += tlsBytes
	}
	return n + c.progress.bytes()
}

// Taken returns how many bytes the frames have that Next has returned. Only the reader may call it.
func (c *Conn) Taken() uint64 { return c.progress.bytes() - uint64(c.r.Buffered()) }

// Queued returns how many bytes have come to this host that no reader has taken; 0 if the system does not say.
func (c *Conn) Queued() uint64 {
	n, _ := c.queued()
	return n
}

// tlsBytes is more than a TLS connection holds of records that it has read and not returned.
const tlsBytes = 32 << 10

// queued returns what Queued does, and whether other protocols lie between the frames and the socket.
func (c *Conn) queued() (n uint64, layered bool) {
	for at := c.c; at != nil; layered = true {
		if s, ok := at.(interface{ Ahead() uint64 }); ok {
			n += s.Ahead()
		}
		above, ok := at.(interface{ NetConn() net.Conn })
		if !ok {
			if s, ok := at.(syscall.Conn); ok {
				n += queued(s)
			}
			break
		}
		at = above.NetConn()
	}
	return n, layered
}
