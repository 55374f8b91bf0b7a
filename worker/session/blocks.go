// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"fmt"
	"os"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
)

// maxBlocks bounds the blocks of shared memory of a session, and so its mappings. A process on Linux may have about
// 65,000 mappings; 64 sessions have 16,384. Hello reports the bound.
const maxBlocks = 256

// block is memory of the client, mapped read-only.
type block struct {
	b   []byte
	err *executor.Error // the reason if it could not be mapped: uploads from it fail with it
}

// share maps a block. A descriptor that breaks the protocol ends the session.
func (s *session) share(h transport.Header) error {
	file := s.c.File()
	if file != nil {
		defer file.Close() // the mapping stays
	}
	var m proto.Share
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	_, twice := s.blocks[m.Block]
	switch {
	case !s.takesBlocks:
		return faultf("Memory cannot be shared over this connection.")
	case file == nil:
		return faultf("Block %d came without a descriptor.", m.Block)
	case m.Block == 0 || twice:
		return faultf("Block %d cannot be shared: it exists, or is 0.", m.Block)
	case m.Bytes == 0 || m.Bytes > transport.MaxBody:
		return faultf("Block %d cannot have %d bytes.", m.Block, m.Bytes)
	case len(s.blocks) >= maxBlocks:
		return faultf("A client may share %d blocks at once.", maxBlocks)
	}
	if err := checkMemory(file, m.Bytes); err != nil {
		return faultf("Block %d is refused: %v.", m.Block, err)
	}
	var x block
	var err error
	if x.b, err = mapMemory(file, m.Bytes); err != nil {
		x.err = executor.Errorf(proto.ErrMemory, "The worker cannot map %d bytes of shared memory: %v.", m.Bytes, err)
	}
	if s.blocks == nil {
		s.blocks = make(map[uint64]block)
	}
	s.blocks[m.Block] = x
	return nil
}

func (s *session) unshare(h transport.Header) error {
	var m proto.Unshare
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	x, ok := s.blocks[m.Block]
	if !ok {
		return faultf("Block %d is not shared.", m.Block)
	}
	delete(s.blocks, m.Block)
	x.unmap()
	return nil
}

func (x block) unmap() {
	if x.b != nil {
		unmapMemory(x.b)
	}
}

// uploadFrom makes a storage from bytes of a block, and answers when they have been read.
func (s *session) uploadFrom(h transport.Header) error {
	var m proto.UploadFrom
	if err := decode(h, s.c.MetaBytes(), &m); err != nil {
		return err
	}
	x, ok := s.blocks[m.Block]
	if m.Storage == 0 || !ok {
		return faultf("An upload to storage %d from block %d: one of them does not exist.", m.Storage, m.Block)
	}
	if x.err != nil {
		s.x.Poison([]uint64{m.Storage}, x.err)
		return s.c.Send(transport.Uploaded, h.Seq, &proto.Uploaded{}, nil)
	}
	if n := uint64(len(x.b)); m.Offset > n || m.Bytes > n-m.Offset {
		return faultf("An upload of %d bytes at %d from block %d, which has %d.", m.Bytes, m.Offset, m.Block, n)
	}
	src := x.b[m.Offset : m.Offset+m.Bytes]
	err := s.fill(m.Storage, m.Bytes, func(dst []byte) error { return copyShared(dst, src) })
	if err != nil {
		return err
	}
	return s.c.Send(transport.Uploaded, h.Seq, &proto.Uploaded{}, nil)
}

// copyShared copies memory that another process shares. The seal prevents truncation, but the system may have no
// memory for a page that was never written. Then the kernel sends SIGBUS, which ends the session instead of the
// worker.
func copyShared(dst, src []byte) error {
	if err := copyTouched(dst, src); err != nil {
		return faultf("The client's shared memory cannot be read: %v.", err)
	}
	return nil
}

func (s *session) closeBlocks() {
	for _, x := range s.blocks {
		x.unmap()
	}
	s.blocks = nil
}

// checkSize compares the size of a descriptor's file with the size in Share.
func checkSize(file *os.File, bytes uint64) error {
	info, err := file.Stat()
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular():
		return fmt.Errorf("it is a %v, not memory", info.Mode().Type())
	case uint64(info.Size()) != bytes:
		return fmt.Errorf("it has %d bytes, not %d", info.Size(), bytes)
	}
	return nil
}
