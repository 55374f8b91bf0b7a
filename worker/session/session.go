// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kept"
)

// session serves one client: one connection, one executor, one OS thread. Storages and programs die with it.
type session struct {
	c     *transport.Conn
	x     executor.Executor
	log   *slog.Logger
	store *store

	journal             *crash.Journal
	progress            *crash.Progress
	stopIdle, startIdle func() // called before and after each frame
	end                 *stop

	// Blocks of shared memory, by number. takesBlocks: the connection can carry their descriptors.
	blocks      map[uint64]block
	takesBlocks bool

	halt *executor.Error // what has failed; not nil: calls do not run

	passer  Passer      // nil: the worker passes nothing to other sessions
	keeper  kept.Keeper // nil: the worker keeps nothing
	uploads uint64      // its limit of kept uploads
	found   []found     // files that are open for a Load

	helper  FetchHelper // nil: the worker fetches no weights
	fetches map[uint64]*fetch
	sources sources

	checkpoints []made
	arriving    map[uint64]*arriving // uploads in pieces, by the number of their Begin
	expander    transport.Expander   // of compressed pieces,
	compressed  []byte               // and the last one

	// Set while a program is missing: the client must send the call again, and later frames wait for it.
	missing *missing

	// Reused by each frame.
	busy            uint32 // the last argument of Executor.Leave
	call            proto.Call
	inputs, outputs []uint64
	seen            map[uint64]struct{}
}

type missing struct {
	seq   uint64
	queue []waiting
	bytes int
}

type waiting struct {
	h    transport.Header
	meta []byte
}

const (
	// Bounds of the frames that wait for a missing program. A client is at most a few hundred calls ahead.
	maxWaiting      = 1 << 16
	maxWaitingBytes = 256 << 20
)

// fault is a violation of the protocol: the session ends, and a last Hello has the reason.
type fault struct{ text string }

func (f *fault) Error() string { return f.text }

func faultf(format string, args ...any) error { return &fault{fmt.Sprintf(format, args...)} }

// serve handles frames until the stream ends, or the session is told to end.
func (s *session) serve() error {
	for {
		if s.missing == nil && s.end.due() {
			return errDrained
		}
		h, err := s.c.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && s.end.said.Load() { // what comes after the last answer has none
			continue
		}
		s.stopIdle()
		if err == nil {
			err = s.frame(h)
		}
		if err != nil {
			return err
		}
		s.startIdle()
	}
}

// frame handles one frame, or queues it behind a call that waits for its program.
func (s *session) frame(h transport.Header) error {
	if h.Payload > 0 && h.Type != transport.Upload && h.Type != transport.Piece {
		return faultf("A %v frame has no body, this one has %d bytes.", h.Type, h.Payload)
	}
	switch h.Type {
	case transport.Program:
		return s.program(h)
	case transport.Upload:
		return s.upload(h)
	case transport.Begin:
		return s.begin(h)
	case transport.Piece:
		return s.piece(h)
	case transport.Offer:
		return s.offer(h)
	case transport.Settle:
		return s.settle(h)
	case transport.Share:
		return s.share(h)
	case transport.Unshare:
		return s.unshare(h)
	case transport.UploadFrom:
		return s.uploadFrom(h)
	case transport.Call, transport.Free, transport.Read, transport.Sync, transport.Fail, transport.Resume,
		transport.Save, transport.Find, transport.Load, transport.Drop, transport.Names, transport.Checkpoint,
		transport.Restore, transport.Fetch, transport.Unfetch, transport.Pass, transport.Take:
	default:
		return faultf("A client must not send %v frames here.", h.Type)
	}
	m := s.missing
	switch {
	case m == nil:
		known, err := s.apply(h, s.c.MetaBytes())
		if !known && err == nil {
			s.missing = &missing{seq: h.Seq}
		}
		return err
	case h.Type == transport.Call && h.Seq == m.seq:
		known, err := s.apply(h, s.c.MetaBytes())
		if !known || err != nil {
			return err
		}
		s.missing = nil
		return s.takeQueued(m.queue)
	}
	m.bytes += h.Meta
	if len(m.queue) == maxWaiting || m.bytes > maxWaitingBytes {
		return faultf("%d frames wait for a program that the client was asked to send again.", len(m.queue))
	}
	m.queue = append(m.queue, waiting{h, bytes.Clone(s.c.MetaBytes())})
	return nil
}

// takeQueued handles queued frames up to the next call whose program is missing.
func (s *session) takeQueued(queue []waiting) error {
	for i, w := range queue {
		known, err := s.apply(w.h, w.meta)
		if err != nil {
			return err
		}
		if !known {
			s.missing = &missing{seq: w.h.Seq, queue: queue[i+1:]}
			return nil
		}
	}
	return nil
}

// apply handles a frame without a body. known is false for a call whose program is missing; then nothing ran.
func (s *session) apply(h transport.Header, meta []byte) (known bool, err error) {
	switch h.Type {
	case transport.Call:
		return s.run(h.Seq, meta)
	case transport.Free:
		var m proto.FreeStorages
		if err := decode(h, meta, &m); err != nil {
			return true, err
		}
		if s.arrives(m.Storages) {
			return true, faultf("A Free ends a storage whose upload arrives.")
		}
		s.free(m.Storages)
		return true, nil
	case transport.Read:
		return true, s.read(h, meta)
	case transport.Fail:
		return true, s.failed(h, meta)
	case transport.Resume:
		s.resume()
		return true, nil
	case transport.Save, transport.Find, transport.Load, transport.Drop, transport.Names, transport.Checkpoint,
		transport.Restore, transport.Pass, transport.Take:
		return true, s.state(h, meta)
	case transport.Fetch:
		return true, s.fetch(h, meta)
	case transport.Unfetch:
		return true, s.unfetch(h, meta)
	default:
		st := executor.Status(s.x.Sync())
		n, bytes := s.x.Usage()
		return true, s.c.Send(transport.SyncReply, h.Seq, &proto.SyncReply{Status: st, Storages: n, Bytes: bytes}, nil)
	}
}

func decode(h transport.Header, meta []byte, m protobuf.Message) error {
	if err := protobuf.Unmarshal(meta, m); err != nil {
		return faultf("A %v frame does not decode: %v.", h.Type, err)
	}
	return nil
}

func (s *session) program(h transport.Header) error {
	p, err := load(s.x, s.c.MetaBytes())
	if err != nil {
		return faultf("The client sent a program that breaks the rules: %v.", err)
	}
	if p.err != nil {
		s.log.Warn("a program cannot be prepared", "key", fmt.Sprintf("%x", p.key), "error", p.err)
	}
	p.noted = s.journal.Program(p.key, s.c.MetaBytes())
	p.bytes += int64(p.noted.Bytes)
	s.store.Put(p.key, p, p.bytes)
	return nil
}

func (s *session) free(ids []uint64) {
	if len(ids) > 0 {
		s.x.Free(ids)
	}
}

func (s *session) read(h transport.Header, meta []byte) error {
	var m proto.Read
	if err := decode(h, meta, &m); err != nil {
		return err
	}
	var sendErr error
	err := s.x.Read(&m, func(b []byte) error {
		sendErr = s.c.Send(transport.ReadReply, h.Seq, &proto.ReadReply{Bytes: uint64(len(b))}, b)
		return sendErr
	})
	if err != nil && sendErr == nil {
		return s.c.Send(transport.ReadReply, h.Seq, &proto.ReadReply{Status: executor.Status(err)}, nil)
	}
	return sendErr
}

func asError(err error) *executor.Error {
	if e, ok := err.(*executor.Error); ok {
		return e
	}
	return &executor.Error{Kind: proto.ErrRuntime, Text: err.Error()}
}

// close ends the session's executor and unmaps its blocks.
func (s *session) close() {
	defer s.closeBlocks()
	defer s.closeFound()
	defer s.closeFetches()
	s.closeArriving()
	s.store.Clear()
	s.x.Close()
}
