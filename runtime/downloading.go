// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"sync"
	"time"
)

// leastDownload is the fewest bytes, of all reads that are under way together, that are shown as a download: the value
// of a loss is none, however long it takes.
const leastDownload = 1 << 20

// downloading counts the bytes of reads that are under way, for a progress bar. It begins anew when all have ended.
type downloading struct {
	mu         sync.Mutex
	began      time.Time // when the first byte came; zero: none has
	bytes, got uint64
}

// reads counts the bytes of a ticket's read that begins.
func (d *downloading) reads(t *Ticket) {
	d.mu.Lock()
	defer d.mu.Unlock()
	t.counted = true
	d.bytes += uint64(len(t.dst))
}

// begins says that the elements of a ticket's read arrive, from the first one on: another worker may have sent some.
func (d *downloading) begins(t *Ticket) {
	d.came(t, -int(t.got))
}

// came counts bytes of a ticket's read.
func (d *downloading) came(t *Ticket, n int) {
	if !t.counted {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.began.IsZero() {
		d.began = time.Now()
	}
	t.got += uint64(n)
	d.got += uint64(n)
}

// ended says that nothing of a ticket's read comes any more.
func (d *downloading) ended(t *Ticket) {
	if !t.counted {
		return
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.got += uint64(len(t.dst)) - t.got
	if d.got == d.bytes {
		d.bytes, d.got, d.began = 0, 0, time.Time{}
	}
}

// Downloading says how many bytes of reads are under way, how many of them have come, and since when the first ones
// have. All are 0 if none has come, or if they are less than leastDownload.
func (r *Runtime) Downloading() (got, bytes uint64, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		d := &s.downloading
		d.mu.Lock()
		if !d.began.IsZero() && d.bytes >= leastDownload {
			got, bytes, took = got+d.got, bytes+d.bytes, max(took, time.Since(d.began))
		}
		d.mu.Unlock()
	}
	return got, bytes, took
}
