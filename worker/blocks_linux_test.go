// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
)

const sealed = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// memoryFile returns a memory file with this content and these seals.
func memoryFile(t testing.TB, content []byte, seals int) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	_, err = f.Write(content)
	require.NoError(t, err)
	_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
	require.NoError(t, err)
	return f
}

func (c *client) share(block, size uint64, f *os.File) {
	c.t.Helper()
	c.seq++
	require.NoError(c.t, c.c.SendFile(transport.Share, c.seq, &proto.Share{Block: block, Bytes: size}, int(f.Fd())))
}

func (c *client) uploadFrom(id, block, offset, n uint64) {
	c.t.Helper()
	c.expect(transport.Uploaded, c.send(transport.UploadFrom,
		&proto.UploadFrom{Storage: id, Block: block, Offset: offset, Bytes: n}, nil), &proto.Uploaded{})
}

// mappings counts the memory files of tests that are mapped into this process. It is both client and worker.
func mappings(t testing.TB) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	require.NoError(t, err)
	return strings.Count(string(b), "/memfd:test")
}

func content(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*13 + i>>8)
	}
	return b
}

func TestUploadFromABlock(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	data := content(3 << 20)
	f := memoryFile(t, data, sealed)
	c.share(7, uint64(len(data)), f)
	c.uploadFrom(1, 7, 0, uint64(len(data)))
	c.uploadFrom(2, 7, 100_001, 5)
	c.uploadFrom(3, 7, uint64(len(data)), 0)
	_, err := f.WriteAt([]byte{1, 2}, 100_001)
	require.NoError(t, err)
	c.uploadFrom(4, 7, 100_001, 5)
	for id, want := range map[uint64][]byte{
		1: data, 2: data[100_001:100_006], 3: {}, 4: append([]byte{1, 2}, data[100_003:100_006]...),
	} {
		got, st := c.read(id, len(want))
		require.Nil(t, st)
		require.True(t, bytes.Equal(want, got), "storage %d", id)
	}
	require.Equal(t, 1, mappings(t))
	c.send(transport.Unshare, &proto.Unshare{Block: 7}, nil)
	c.sync()
	require.Zero(t, mappings(t))
}

// TestUploadsFromBlocksDoNotWaitForPrograms checks that uploads run while calls wait for a program, because the client
// needs its block back.
func TestUploadsFromBlocksDoNotWaitForPrograms(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.share(1, 8, memoryFile(t, f32(1, 2), sealed))
	call := c.send(transport.Call, callOf(1, 2, 1, 2), nil)
	var d proto.Done
	c.expect(transport.Done, call, &d)
	require.True(t, d.UnknownProgram)
	c.uploadFrom(1, 1, 0, 8)
	c.send(transport.Unshare, &proto.Unshare{Block: 1}, nil)
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	require.NoError(t, c.c.Send(transport.Call, call, callOf(1, 2, 1, 2), nil))
	var done proto.Done
	c.expect(transport.Done, call, &done)
	require.Empty(t, done.Errors)
	b, st := c.read(2, 8)
	require.Nil(t, st)
	require.Equal(t, f32(-1, -2), b)
}

func TestUploadFromABlockWithoutMemory(t *testing.T) {
	c := serve(t, func() (executor.Backend, error) { b, err := refBackend(); return unpreparable{b}, err }, 0).connect(t)
	c.share(1, 2<<20, memoryFile(t, make([]byte, 2<<20), sealed))
	c.uploadFrom(1, 1, 0, 2<<20)
	_, st := c.read(1, 4)
	require.EqualValues(t, proto.ErrMemory, st.Kind)
}

// refusal is a violation of the rules for blocks, and a part of the error that ends the session.
type refusal struct {
	name, want string
	do         func(c *client)
}

// refusals checks that each violation ends its session, and no other session.
func refusals(t *testing.T, all []refusal) {
	s := serve(t, refBackend, 0)
	other := s.connect(t)
	other.share(1, 4, memoryFile(t, f32(1), sealed))
	other.uploadFrom(1, 1, 0, 4)
	for _, x := range all {
		t.Run(x.name, func(t *testing.T) {
			c := s.connect(t)
			x.do(c)
			for {
				h, err := c.c.Next()
				require.NoError(t, err)
				if h.Type == transport.Hello {
					break
				}
			}
			var hello proto.Hello
			require.NoError(t, c.c.Meta(&hello))
			require.Contains(t, hello.Error, x.want)
		})
	}
	other.uploadFrom(2, 1, 0, 4)
	b, st := other.read(2, 4)
	require.Nil(t, st)
	require.Equal(t, f32(1), b, "the other session continues")
	unmapped := func() bool { return mappings(t) == 1 }
	require.Eventually(t, unmapped, time.Minute, time.Millisecond, "sessions unmap their blocks")
}

func TestRefusedShares(t *testing.T) {
	page := content(4096)
	good := func(c *client) { c.share(1, 4096, memoryFile(t, page, sealed)) }
	file := func(open func(t *testing.T) *os.File) func(c *client) {
		return func(c *client) { c.share(1, 4096, open(t)) }
	}
	refusals(t, []refusal{
		{"no descriptor", "Block 1 came without a descriptor", func(c *client) {
			c.send(transport.Share, &proto.Share{Block: 1, Bytes: 4096}, nil)
		}},
		{"no seal", "it is not sealed against shrinking", func(c *client) {
			c.share(1, 4096, memoryFile(t, page, unix.F_SEAL_GROW))
		}},
		{"larger than it is", "it has 4096 bytes, not 8192", func(c *client) {
			c.share(1, 8192, memoryFile(t, page, sealed))
		}},
		{"smaller than it is", "it has 4096 bytes, not 1", func(c *client) { c.share(1, 1, memoryFile(t, page, sealed)) }},
		{"no bytes", "Block 1 cannot have 0 bytes", func(c *client) { c.share(1, 0, memoryFile(t, nil, sealed)) }},
		{"too many bytes", "cannot have 1099511627777 bytes", func(c *client) {
			c.share(1, 1<<40+1, memoryFile(t, page, sealed))
		}},
		{"block 0", "Block 0 cannot be shared", func(c *client) { c.share(0, 4096, memoryFile(t, page, sealed)) }},
		{"twice", "Block 1 cannot be shared: it exists", func(c *client) { good(c); good(c) }},
		{"a file", "Block 1 is refused: it is", file(func(t *testing.T) *os.File {
			f, err := os.CreateTemp(t.TempDir(), "")
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			_, err = f.Write(page)
			require.NoError(t, err)
			return f
		})},
		{"a pipe", "not memory", file(func(t *testing.T) *os.File {
			r, w, err := os.Pipe()
			require.NoError(t, err)
			t.Cleanup(func() { r.Close(); w.Close() })
			return r
		})},
		{"a folder", "not memory", file(func(t *testing.T) *os.File {
			f, err := os.Open("/")
			require.NoError(t, err)
			t.Cleanup(func() { f.Close() })
			return f
		})},
	})
}

func TestRefusedUploads(t *testing.T) {
	page := content(4096)
	good := func(c *client) { c.share(1, 4096, memoryFile(t, page, sealed)) }
	from := func(m *proto.UploadFrom) func(c *client) {
		return func(c *client) { good(c); c.send(transport.UploadFrom, m, nil) }
	}
	refusals(t, []refusal{
		{"unknown block", "from block 2: one of them does not exist",
			from(&proto.UploadFrom{Storage: 1, Block: 2, Bytes: 1})},
		{"storage 0", "An upload to storage 0", from(&proto.UploadFrom{Block: 1, Bytes: 1})},
		{"behind the end", "An upload of 1 bytes at 4096 from block 1, which has 4096",
			from(&proto.UploadFrom{Storage: 1, Block: 1, Offset: 4096, Bytes: 1})},
		{"over the end", "An upload of 4096 bytes at 1",
			from(&proto.UploadFrom{Storage: 1, Block: 1, Offset: 1, Bytes: 4096})},
		{"offset overflow", "at 18446744073709551615 from",
			from(&proto.UploadFrom{Storage: 1, Block: 1, Offset: 1<<64 - 1, Bytes: 2})},
		{"bytes overflow", "An upload of 18446744073709551615 bytes",
			from(&proto.UploadFrom{Storage: 1, Block: 1, Offset: 1, Bytes: 1<<64 - 1})},
		{"unshare of nothing", "Block 5 is not shared", func(c *client) {
			c.send(transport.Unshare, &proto.Unshare{Block: 5}, nil)
		}},
		{"use after unshare", "one of them does not exist", func(c *client) {
			good(c)
			c.send(transport.Unshare, &proto.Unshare{Block: 1}, nil)
			c.send(transport.UploadFrom, &proto.UploadFrom{Storage: 1, Block: 1, Bytes: 1}, nil)
		}},
		{"a body", "UploadFrom frame has no body", func(c *client) {
			c.send(transport.UploadFrom, &proto.UploadFrom{}, f32(1))
		}},
		{"an answer", "A client must not send Uploaded frames", func(c *client) {
			c.send(transport.Uploaded, &proto.Uploaded{}, nil)
		}},
		{"too many blocks", "may share 256 blocks", func(c *client) {
			f := memoryFile(t, page, sealed)
			for i := range uint64(257) {
				c.share(1+i, 4096, f)
			}
		}},
		{"descriptors without blocks", transport.ErrFrameFile.Error(), func(c *client) {
			f := memoryFile(t, page, sealed)
			for range 3 {
				c.seq++
				require.NoError(t, c.c.SendFile(transport.Sync, c.seq, &proto.Sync{}, int(f.Fd())))
			}
		}},
	})
}

// FuzzBlocks is a client that shares, unshares and uploads at random. Each session must end normally or with an error,
// and another session on the same worker must continue.
func FuzzBlocks(f *testing.F) {
	f.Add([]byte{0, 1, 0, 2, 1, 0, 2, 1, 9, 1, 1, 0})
	f.Add([]byte{0, 1, 1})
	f.Add([]byte{0, 1, 2, 0, 2, 3, 0, 3, 4})
	f.Add([]byte{2, 1, 0, 1, 1, 0, 3, 0, 0})
	f.Add(bytes.Repeat([]byte{0, 1, 0, 1, 1, 0}, 20))
	s := serve(f, refBackend, 0)
	other := s.connect(f)
	data := content(4096)
	pipe, w, err := os.Pipe()
	require.NoError(f, err)
	f.Cleanup(func() { pipe.Close(); w.Close() })
	files := []*os.File{
		memoryFile(f, data, sealed),
		memoryFile(f, data, 0),
		memoryFile(f, nil, sealed),
		pipe,
		memoryFile(f, data[:100], sealed),
	}
	id := uint64(0)
	f.Fuzz(func(t *testing.T, ops []byte) {
		c := s.connect(t)
		var seq uint64
		for ; len(ops) >= 3; ops = ops[3:] {
			a, b := uint64(ops[1]), uint64(ops[2])
			seq++
			var err error
			switch ops[0] % 5 {
			case 0:
				fd := int(files[b%uint64(len(files))].Fd())
				err = c.c.SendFile(transport.Share, seq, &proto.Share{Block: a, Bytes: 4096 - b/16}, fd)
			case 1:
				err = c.c.Send(transport.Unshare, seq, &proto.Unshare{Block: a}, nil)
			case 2:
				m := &proto.UploadFrom{Storage: seq, Block: a, Offset: b * b, Bytes: 65536 / (b + 1)}
				err = c.c.Send(transport.UploadFrom, seq, m, nil)
			case 3: // metadata of another message, and a descriptor with it
				m := &proto.Hello{Protocol: uint32(a), Blocks: uint32(b)}
				err = c.c.SendFile(transport.UploadFrom, seq, m, int(files[0].Fd()))
			case 4:
				err = c.c.Send(transport.Share, seq, &proto.Upload{Storage: a, Bytes: b}, nil)
			}
			if err != nil {
				break // the worker has ended the session
			}
		}
		_ = c.c.Send(transport.Sync, 1<<40, &proto.Sync{}, nil)
		for {
			h, err := c.c.Next()
			if err != nil {
				break
			}
			if h.Type == transport.SyncReply {
				break
			}
			require.Contains(t, []transport.Type{transport.Uploaded, transport.Hello}, h.Type)
		}
		require.NoError(t, c.c.Close())
		id++
		other.t = t
		other.hurry()
		other.share(id, 4096, files[0])
		other.uploadFrom(id, id, 0, 4096)
		got, st := other.read(id, 4096)
		require.Nil(t, st)
		require.Equal(t, data, got)
		other.send(transport.Unshare, &proto.Unshare{Block: id}, nil)
		other.send(transport.Free, &proto.FreeStorages{Storages: []uint64{id}}, nil)
	})
}
