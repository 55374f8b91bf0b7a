// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"net"

	pb "github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// Shared says where the bytes of an upload lie in a block of shared memory.
type Shared struct {
	Block  uint64 // its number, never that of another block
	FD     int    // of the block's memory file
	Size   uint64 // of the block
	Offset uint64 // of the bytes
	// Release is called once, when nobody reads the bytes any more or the upload has failed. Until then the block is there
	// and its bytes are as they are.
	Release func()
}

// sharing is what a session shares with its worker.
type sharing struct {
	blocks map[uint64]struct{} // of the sender alone: those that the worker has
	// With the session's lock.
	reading map[uint64]func() // by sequence number: ends an upload that the worker has not answered
}

// uploadShared makes storage id with the bytes that from names, which are data here too, and returns before they are read. A worker
// that takes no blocks gets them as any others.
func (s *session) uploadShared(id uint64, data []byte, from Shared, by *charge) error {
	n := uint64(len(data))
	s.metrics.uploaded(n, by)
	room := func() bool {
		if s.uploads > 0 && s.uploads+n > maxUploadBytes {
			return false
		}
		s.uploads += n
		return true
	}
	end := func() {
		from.Release()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.uploads -= n
		s.changed.Broadcast()
	}
	err := s.enqueue(by, room, func() { s.sendShared(id, data, from, end, by) })
	if err != nil {
		from.Release()
	}
	return err
}

func (s *session) sendShared(id uint64, data []byte, from Shared, end func(), by *charge) {
	if !s.alive() || !s.share(from, by) {
		s.sendUpload(id, data, by)
		end()
		return
	}
	s.seq++
	s.mu.Lock()
	gone := s.gone != nil
	if !gone {
		s.shared.reading[s.seq] = end
	}
	s.mu.Unlock()
	if gone {
		end()
		return
	}
	n := uint64(len(data))
	s.metrics.uploadShared.Add(n)
	m := &pb.UploadFrom{Storage: id, Block: from.Block, Offset: from.Offset, Bytes: n}
	_, _ = s.write(by, transport.UploadFrom, s.seq, m, nil) // an error has ended the upload with the session
}

// share makes sure that the worker has a block, and says whether it does.
func (s *session) share(from Shared, by *charge) bool {
	if _, ok := s.shared.blocks[from.Block]; ok {
		return true
	}
	if _, local := s.conn.Net().(*net.UnixConn); !local || len(s.shared.blocks) >= int(s.hello.Blocks) {
		return false
	}
	s.seq++
	m := &pb.Share{Block: from.Block, Bytes: from.Size}
	if err := s.conn.SendFile(transport.Share, s.seq, m, from.FD); err != nil {
		s.log.Debug("memory is not shared", "error", err) // what broke the connection breaks the upload that follows
		return false
	}
	n := frameBytes(m, nil)
	s.metrics.sent(n, by)
	s.settings.Dump.Frame(s.index, true, transport.Share, s.seq, n)
	s.shared.blocks[from.Block] = struct{}{}
	return true
}

// forget tells the worker that a block is gone. All uploads from it have ended.
func (s *session) forget(block uint64) {
	s.mu.Lock()
	started := s.started
	s.mu.Unlock()
	if !started {
		return
	}
	_ = s.enqueue(nil, always, func() { // a session that has ended has nothing to forget
		if _, ok := s.shared.blocks[block]; ok && s.alive() {
			delete(s.shared.blocks, block)
			s.seq++
			_, _ = s.write(nil, transport.Unshare, s.seq, &pb.Unshare{Block: block}, nil)
		}
	})
}

// takeReading removes and returns the end of a shared upload; nil if its session has ended or there is none.
func (s *session) takeReading(seq uint64) func() {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := s.shared.reading[seq]
	delete(s.shared.reading, seq)
	return end
}
