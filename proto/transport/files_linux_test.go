// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
)

// memoryFile is a memory file with this content.
func memoryFile(t testing.TB, content []byte) *os.File {
	t.Helper()
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	f := os.NewFile(uintptr(fd), "test")
	t.Cleanup(func() { f.Close() })
	_, err = f.Write(content)
	require.NoError(t, err)
	return f
}

// openFiles is how many memory files of a test this process has open.
func openFiles(t testing.TB) (n int) {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	for _, fd := range fds {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && to == "/memfd:test (deleted)" {
			n++
		}
	}
	return n
}

func sendFile(c *Conn, seq uint64, f *os.File) error {
	return c.SendFile(Share, seq, &proto.Share{Block: seq, Bytes: 1}, int(f.Fd()))
}

// A descriptor comes with its own frame, with any other frames in between and any amount of data in the read buffer.
func TestFilesComeWithTheirFrames(t *testing.T) {
	a, b := unixPair(t)
	require.True(t, b.TakeFiles())
	const n = 60
	sizes := []int{0, 1, 100, readBuffer - 200, 3 * readBuffer}
	sent := make(chan error, 1)
	files := make([]*os.File, n)
	for i := range files {
		files[i] = memoryFile(t, []byte{byte(i)})
	}
	go func() {
		for i, f := range files {
			if err := sendFile(a, uint64(i), f); err != nil {
				sent <- err
				return
			}
			for range i % 3 {
				if err := a.Send(Upload, uint64(i), &proto.Upload{}, pattern(sizes[i%len(sizes)])); err != nil {
					sent <- err
					return
				}
			}
		}
		sent <- nil
	}()
	for i := range n {
		h, err := b.Next()
		require.NoError(t, err)
		require.Equal(t, Share, h.Type)
		var m proto.Share
		require.NoError(t, b.Meta(&m))
		require.EqualValues(t, i, m.Block)
		f := b.File()
		require.NotNil(t, f)
		var got [1]byte
		_, err = f.ReadAt(got[:], 0)
		require.NoError(t, err)
		require.EqualValues(t, i, got[0])
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFD, 0)
		require.NoError(t, err)
		require.NotZero(t, flags&unix.FD_CLOEXEC)
		require.NoError(t, f.Close())
		for range i % 3 {
			h, err := b.Next()
			require.NoError(t, err)
			got := make([]byte, h.Payload)
			require.NoError(t, b.ReadBody(got))
			require.Equal(t, pattern(sizes[i%len(sizes)]), got)
		}
	}
	require.NoError(t, <-sent)
	require.Nil(t, b.File())
}

func TestMoreFilesThanFrames(t *testing.T) {
	f := memoryFile(t, []byte{1})
	before := openFiles(t)
	for _, each := range []int{1, maxFiles + 1, 100} {
		a, b := unixPair(t)
		require.True(t, b.TakeFiles())
		fds := make([]int, each)
		for i := range fds {
			fds[i] = int(f.Fd())
		}
		frame := sent(t, Sync, 1, nil)
		for range maxFiles + 1 {
			_, _, err := a.Net().(*net.UnixConn).WriteMsgUnix(frame, unix.UnixRights(fds...), nil)
			require.NoError(t, err)
		}
		var err error
		for range maxFiles + 1 {
			if _, err = b.Next(); err != nil {
				break
			}
		}
		require.ErrorIs(t, err, ErrFrameFile)
		require.NoError(t, b.Close())
		require.NoError(t, a.Close())
		require.Equal(t, before, openFiles(t), "none stays open")
	}
}

func TestFilesThatNobodyTakesAreClosed(t *testing.T) {
	f := memoryFile(t, []byte{1})
	before := openFiles(t)
	for _, takes := range []bool{false, true} {
		a, b := unixPair(t)
		if takes {
			require.True(t, b.TakeFiles())
		}
		require.NoError(t, sendFile(a, 1, f))
		_, err := b.Next()
		require.NoError(t, err)
		if !takes {
			require.Nil(t, b.File())
			require.Equal(t, before, openFiles(t))
		}
		require.NoError(t, b.Close())
		require.Equal(t, before, openFiles(t))
	}
}

func TestSendFileThatCannot(t *testing.T) {
	a, b := unixPair(t)
	require.True(t, b.TakeFiles())
	require.ErrorIs(t, a.SendFile(Share, 1, &proto.Share{}, 1<<20), ErrNoFile)
	require.ErrorIs(t, a.SendFile(numTypes, 1, nil, 0), ErrFrameType)
	require.NoError(t, a.Send(Sync, 2, nil, nil), "the stream is whole")
	h, err := b.Next()
	require.NoError(t, err)
	require.Equal(t, Header{Type: Sync, Seq: 2}, h)

	p, q := net.Pipe()
	defer p.Close()
	defer q.Close()
	c := New(p)
	require.False(t, c.TakeFiles())
	require.ErrorIs(t, c.SendFile(Share, 1, nil, 0), ErrNoFile)
	require.Nil(t, c.File())
}

func TestCloseWakesAReaderOfFiles(t *testing.T) {
	a, _ := unixPair(t)
	require.True(t, a.TakeFiles())
	time.AfterFunc(20*time.Millisecond, func() { a.Close() })
	_, err := a.Next()
	require.ErrorIs(t, err, net.ErrClosed)
}
