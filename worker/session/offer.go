// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/kept"
)

const (
	// MaxDrafts bounds the files that one process writes at the same time.
	MaxDrafts = 4
	// maxOffers limits the uploads of a session that are read from kept files, or written to them, at the same time.
	maxOffers  = MaxDrafts - 1
	offerChunk = 1 << 20
	// maxBehind limits the bytes of an upload that still have to be written to disk when its last piece has arrived. An
	// upload with more is not kept, because the session would have to wait for the disk.
	maxBehind = 64 << 20
)

// offer handles the hash of an upload that arrives in pieces. If a file with these bytes is kept, the worker reads it
// in the background. If the client knows where such a file is, the worker fetches it. Otherwise the worker keeps the
// bytes that arrive.
func (s *session) offer(h transport.Header) error {
	var m proto.Offer
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	a := s.arriving[h.Seq]
	switch {
	case len(m.Hash) != sha256.Size:
		return faultf("An offer has a hash of %d bytes.", len(m.Hash))
	case a == nil:
		return faultf("An offer belongs to upload %d, which does not arrive.", h.Seq)
	case a.offered:
		return faultf("Upload %d is offered twice.", h.Seq)
	}
	a.offered = true
	reply := &proto.Offered{}
	f, keeps := s.keptUpload(a, m.Hash)
	if f != nil {
		a.copying = s.copy(h.Seq, a, m.Hash, origin{
			open:  func(<-chan struct{}) io.ReadSeeker { return f },
			close: func() { _ = f.Close() },
			wrong: func() { _ = s.keeper.Forget(kept.Upload, hex.EncodeToString(m.Hash)) },
		})
	} else if of := s.source(a, m.Source); of != nil {
		a.sourced = true
		a.copying = s.copy(h.Seq, a, m.Hash, origin{
			open:  func(quit <-chan struct{}) io.ReadSeeker { return of.part(m.Source.Offset, a.bytes, quit) },
			close: func() {},
			wrong: func() {},
		})
	} else if keeps {
		a.keeping = s.keep(a, m.Hash)
	}
	if a.copying != nil {
		reply.Found = proto.Offered_FOUND
	}
	err := s.c.Send(transport.Offered, h.Seq, reply, nil)
	if a.copying != nil {
		close(a.copying.begin) // its answer comes after this one
	}
	return err
}

// keptUpload opens what is kept of an upload; nil: nothing is. keeps: it may be kept now.
func (s *session) keptUpload(a *arriving, hash []byte) (f *os.File, keeps bool) {
	if s.keeper == nil || a.err != nil || a.bytes > s.uploads || s.offers() >= maxOffers {
		return nil, false
	}
	f, err := s.keeper.Open(kept.Upload, hex.EncodeToString(hash))
	switch {
	case err == nil && sizeOf(f) == int64(a.bytes):
		return f, false
	case err == nil:
		_ = f.Close()
	case errors.Is(err, kept.ErrMissing):
		return nil, true
	default:
		s.log.Warn("kept uploads cannot be read", "error", err)
	}
	return nil, false
}

// offers is how many uploads that arrive are copied from what is kept, or kept now.
func (s *session) offers() (n int) {
	for _, a := range s.arriving {
		if a.copying != nil && !a.sourced || a.keeping != nil {
			n++
		}
	}
	return n
}

func sizeOf(f *os.File) int64 {
	info, err := f.Stat()
	if err != nil {
		return -1
	}
	return info.Size()
}

// settle ends an offer that has found something.
func (s *session) settle(h transport.Header) error {
	var m proto.Settle
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	a := s.arriving[h.Seq]
	if a == nil || a.copying == nil {
		return faultf("A Settle belongs to upload %d, for which nothing was found.", h.Seq)
	}
	found := proto.Offered_Found(a.copying.found.Load())
	if found != proto.Offered_TAKEN && found != proto.Offered_DAMAGED || m.Again != (found == proto.Offered_DAMAGED) {
		return faultf("A Settle of upload %d says again: %v, after %v.", h.Seq, m.Again, found)
	}
	a.copying.wait()
	a.copying, a.sourced = nil, false
	if m.Again {
		return nil
	}
	return s.arrived(h.Seq, a)
}

// copying reads the rest of an upload from a file.
type copying struct {
	begin chan struct{}
	done  chan struct{}
	stop  atomic.Bool
	quit  chan struct{} // closed with stop
	found atomic.Int32  // a proto.Offered_Found: FOUND, and when it has ended TAKEN or DAMAGED
}

func (c *copying) wait() { <-c.done }

// end ends the use of the upload's memory.
func (c *copying) end() {
	if c != nil {
		c.stop.Store(true)
		close(c.quit)
		<-c.done
	}
}

// origin is where the bytes of an upload come from.
type origin struct {
	open  func(quit <-chan struct{}) io.ReadSeeker // nil: they do not come
	close func()
	wrong func() // they were wrong
}

// copy begins to read the rest of an upload, and sends the client the outcome.
func (s *session) copy(seq uint64, a *arriving, hash []byte, from origin) *copying {
	c := &copying{begin: make(chan struct{}), done: make(chan struct{}), quit: make(chan struct{})}
	c.found.Store(int32(proto.Offered_FOUND))
	dst, at := a.dst, int64(a.at)
	go func() {
		defer close(c.done)
		defer from.close()
		<-c.begin
		found := proto.Offered_DAMAGED
		if f := from.open(c.quit); f != nil {
			right, err := c.read(dst, at, hash, f)
			if c.stop.Load() {
				return
			}
			if right {
				found = proto.Offered_TAKEN
			} else {
				s.log.Warn("the bytes of an upload that were kept or fetched are wrong; the client sends them", "error", err)
				from.wrong()
			}
		}
		if c.stop.Load() {
			return
		}
		c.found.Store(int32(found))
		_ = s.c.Send(transport.Offered, seq, &proto.Offered{Found: found}, nil) // the reader meets the error too
	}()
	return c
}

// read fills dst from a position on, and says whether all of it has the hash.
func (c *copying) read(dst []byte, at int64, hash []byte, f io.ReadSeeker) (bool, error) {
	if _, err := f.Seek(at, io.SeekStart); err != nil {
		return false, err
	}
	sum := sha256.New()
	for from := int64(0); from < int64(len(dst)) && !c.stop.Load(); {
		to := min(from+offerChunk, int64(len(dst)))
		if from < at {
			to = min(to, at)
		} else if _, err := io.ReadFull(f, dst[from:to]); err != nil {
			return false, err
		}
		sum.Write(dst[from:to])
		from = to
	}
	return bytes.Equal(sum.Sum(nil), hash), nil
}

// recording keeps the bytes of an upload while they arrive.
type recording struct {
	mu      sync.Mutex
	changed *sync.Cond
	at      uint64 // bytes that have arrived
	written uint64
	stop    bool // the rest is not kept

	read chan struct{} // closed when the upload's memory is not used any more
	done chan struct{}
}

// keep begins to keep the bytes of an upload; nil: they are not kept.
func (s *session) keep(a *arriving, hash []byte) *recording {
	draft, err := s.keeper.Create()
	if err != nil {
		s.log.Warn("an upload is not kept", "error", err)
		return nil
	}
	r := &recording{at: a.at, read: make(chan struct{}), done: make(chan struct{})}
	r.changed = sync.NewCond(&r.mu)
	go func() {
		defer close(r.done)
		sum, err := r.write(a.dst, draft.File())
		close(r.read)
		switch {
		case err != nil:
			s.log.Warn("an upload is not kept", "error", err)
		case bytes.Equal(sum, hash):
			if err = draft.Keep(kept.Upload, hex.EncodeToString(hash)); err != nil {
				s.log.Warn("an upload is not kept", "error", err)
			}
			return
		case sum != nil:
			s.log.Warn("an upload is not kept: it does not have the hash that the client has said")
		}
		draft.Drop()
	}()
	return r
}

// write writes the bytes as they arrive, and returns their hash; nil: it was told to stop.
func (r *recording) write(src []byte, f *os.File) ([]byte, error) {
	sum := sha256.New()
	for from := uint64(0); from < uint64(len(src)); {
		to, ok := r.more(from)
		if !ok {
			return nil, nil
		}
		sum.Write(src[from:to])
		if _, err := f.Write(src[from:to]); err != nil {
			return nil, err
		}
		from = to
	}
	return sum.Sum(nil), nil
}

// more notes how much is written, and waits for more, of which it returns the end.
func (r *recording) more(written uint64) (uint64, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.written = written
	for r.at == written && !r.stop {
		r.changed.Wait()
	}
	return min(r.at, written+offerChunk), !r.stop
}

// arrived notes that the bytes up to a position have arrived. The methods of nil do nothing.
func (r *recording) arrived(at uint64) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.at = at
	r.changed.Signal()
}

// complete waits until the upload's memory is not used any more, after its last piece.
func (r *recording) complete() {
	r.mu.Lock()
	if r.at-r.written > maxBehind {
		r.stop = true
		r.changed.Signal()
	}
	r.mu.Unlock()
	<-r.read
}

// end ends the use of the upload's memory, before its last piece.
func (r *recording) end() {
	if r == nil {
		return
	}
	r.mu.Lock()
	r.stop = true
	r.changed.Signal()
	r.mu.Unlock()
	<-r.done
}

// closeArriving ends the use of memory of the uploads that have not arrived.
func (s *session) closeArriving() {
	for _, a := range s.arriving {
		if a.copying != nil { // it may be sending its answer to a client that does not read
			_ = s.c.Net().SetWriteDeadline(time.Now().Add(LastWait))
		}
		a.copying.end()
		a.keeping.end()
	}
	s.sources.close()
	s.expander.Close()
}
