// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"sync"
	"time"
)

// mostUnconfirmed bounds the bytes that a worker may have received and not confirmed: it confirms now and then only.
const mostUnconfirmed = 1 << 20

// uploading counts the bytes of uploads that are under way, for a progress bar. It begins anew when the worker has
// taken all.
type uploading struct {
	mu                 sync.Mutex
	began              time.Time
	bytes, sent, taken uint64 // of the uploads; given to the link; received by the worker
}

// taken is how many of the bytes the worker has received. What the link has accepted and not sent does not count. The
// caller holds uploading.mu.
func (s *session) taken() uint64 {
	u := &s.uploading
	l := s.link()
	if l == nil {
		return u.sent
	}
	underWay := l.Measured().UnderWay
	if u.sent == u.bytes && underWay < mostUnconfirmed {
		return u.bytes
	}
	u.taken = max(u.taken, u.sent-min(u.sent, underWay))
	return u.taken
}

func (s *session) uploads(bytes uint64) {
	u := &s.uploading
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.sent == u.bytes && s.taken() == u.bytes {
		u.began, u.bytes, u.sent, u.taken = time.Now(), 0, 0, 0
	}
	u.bytes += bytes
}

// sent counts bytes that need not be sent any more. A worker that replaces a lost one gets some twice.
func (s *session) sent(upload *Upload, bytes int) {
	if !upload.counted {
		return
	}
	u := &s.uploading
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sent = min(u.sent+uint64(bytes), u.bytes)
}

// end says that nothing will be sent any more.
func (u *uploading) end() {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.bytes, u.sent, u.taken = 0, 0, 0
}

// Uploading says how many bytes of uploads are under way, how many of them the worker has taken, and for how long. All
// are 0 if there are none.
func (r *Runtime) Uploading() (taken, bytes uint64, took time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, s := range r.sessions {
		u := &s.uploading
		u.mu.Lock()
		if n := s.taken(); n < u.bytes {
			taken, bytes, took = taken+n, bytes+u.bytes, max(took, time.Since(u.began))
		}
		u.mu.Unlock()
	}
	return taken, bytes, took
}
