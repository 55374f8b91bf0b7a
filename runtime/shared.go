// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"net"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
)

// Shared says where an upload's bytes lie in a block of shared memory.
type Shared struct {
	Block  uint64 // its number, never that of another block
	FD     int    // of the block's memory file
	Size   uint64 // of the block
	Offset uint64 // of the bytes
}

// maxBlocks is the number of blocks of shared memory that can be shared with a worker. Descriptors go through unix
// sockets only.
func maxBlocks(conn *transport.Conn, hello *proto.Hello) int {
	if _, local := conn.Net().(*net.UnixConn); !local {
		return 0
	}
	return int(hello.Blocks)
}

// share sends the worker the descriptor of a block. It reports whether the worker has the block now.
func (s *session) share(seq uint64, u *Upload) bool {
	m := &proto.Share{Block: u.Shared.Block, Bytes: u.Shared.Size}
	if err := s.conn.SendFile(transport.Share, seq, m, u.Shared.FD); err != nil {
		s.log.Debug("memory is not shared", "error", err) // if the connection is broken, the upload that follows fails
		return false
	}
	n := frameBytes(m, nil)
	s.metrics.Sent(n, u.by)
	s.settings.Dump.Frame(s.index, true, transport.Share, seq, n)
	return true
}

// forget ends the use of a block by the worker. All uploads from it have ended.
func (s *session) forget(block uint64) { s.submit(core.Forget{Block: block}) }
