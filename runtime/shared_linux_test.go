// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"encoding/json"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/report"
	"github.com/mycelya/mycelya/trace"
)

// testBlock is a block of 4096 bytes and how many uploads from it are not over.
type testBlock struct {
	id      uint64
	file    *os.File
	data    []byte
	reading atomic.Int64
}

func newBlock(t testing.TB, id uint64) *testBlock {
	fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	b := &testBlock{id: id, file: os.NewFile(uintptr(fd), "test"), data: make([]byte, 4096)}
	t.Cleanup(func() { b.file.Close() })
	b.data[1000] = byte(id)
	_, err = b.file.Write(b.data)
	require.NoError(t, err)
	return b
}

func (b *testBlock) upload(r *Local, device int32, storage uint64) error {
	b.reading.Add(1)
	return ended(r)(r.UploadShared(device, storage, b.data[1000:3000], Shared{Block: b.id, FD: int(b.file.Fd()),
		Size: 4096, Offset: 1000}, func() { b.reading.Add(-1) }, trace.Place{}))
}

func (b *testBlock) soonFree(t testing.TB) {
	t.Helper()
	require.Eventually(t, func() bool { return b.reading.Load() == 0 }, time.Minute, time.Millisecond)
}

// startSharing opens device 0 on a fake worker that takes some blocks.
func startSharing(t testing.TB, blocks uint32) (*Local, *fakeWorker) {
	r, w := start(t)
	w.hello.Blocks = blocks
	require.True(t, w.conn.TakeFiles())
	return r, w
}

// shared takes a Share of a block.
func (w *fakeWorker) shared(b *testBlock) {
	w.Helper()
	var m proto.Share
	w.next(transport.Share, &m)
	require.Equal(w, b.id, m.Block)
	require.EqualValues(w, 4096, m.Bytes)
	f := w.conn.File()
	require.NotNil(w, f)
	defer f.Close()
	var got [1]byte
	_, err := f.ReadAt(got[:], 1000)
	require.NoError(w, err)
	require.Equal(w, byte(b.id), got[0])
}

// uploadFrom takes an upload from a block.
func (w *fakeWorker) uploadFrom(b *testBlock, storage uint64) transport.Header {
	w.Helper()
	var m proto.UploadFrom
	h := w.next(transport.UploadFrom, &m)
	require.Equal(w, []uint64{storage, b.id, 1000, 2000}, []uint64{m.Storage, m.Block, m.Offset, m.Bytes})
	return h
}

func TestASharedUploadIsInItsPlaceAndEndsWithTheAnswer(t *testing.T) {
	r, w := startSharing(t, 2)
	b := newBlock(t, 7)
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	require.NoError(t, b.upload(r, 0, 5))
	require.NoError(t, r.Flush(0, relu(5, 6), func() {}))
	require.NoError(t, b.upload(r, 0, 8))
	w.greet()
	w.next(transport.Program, new(proto.Program))
	w.next(transport.Call, new(proto.Call))
	w.shared(b)
	first := w.uploadFrom(b, 5)
	w.next(transport.Call, new(proto.Call))
	second := w.uploadFrom(b, 8) // the block is known
	require.EqualValues(t, 2, b.reading.Load())
	w.send(transport.Uploaded, first.Seq, &proto.Uploaded{}, nil)
	require.Eventually(t, func() bool { return b.reading.Load() == 1 }, time.Minute, time.Millisecond)
	w.send(transport.Uploaded, second.Seq, &proto.Uploaded{}, nil)
	b.soonFree(t)
	m := metricsOf(t, r)
	require.EqualValues(t, 4000, m["upload_bytes"])
	require.EqualValues(t, 4000, m["upload_bytes_shared"])
	require.Less(t, m["bytes_sent"], 2000.0)

	r.Forget(99) // never shared
	r.Forget(7)
	var gone proto.Unshare
	w.next(transport.Unshare, &gone)
	require.EqualValues(t, 7, gone.Block)
	r.Forget(7)
	require.NoError(t, b.upload(r, 0, 9))
	w.shared(b)
	h := w.uploadFrom(b, 9)
	w.send(transport.Uploaded, h.Seq, &proto.Uploaded{}, nil)
	b.soonFree(t)

	var lines []report.Line
	require.NoError(t, json.Unmarshal(r.Bill(nil), &lines))
	sent := uint64(0)
	for _, l := range lines {
		sent += l.Sent
	}
	require.EqualValues(t, metricsOf(t, r)["bytes_sent"], sent, "the bill has all bytes")
	r.ResetMetrics()
	require.Equal(t, "[]", string(r.Bill(nil)))
}

func TestAWorkerThatTakesNoBlocksGetsBytes(t *testing.T) {
	for _, blocks := range []uint32{0, 1} {
		r, w := startSharing(t, blocks)
		b, more := newBlock(t, 7), newBlock(t, 8)
		require.NoError(t, b.upload(r, 0, 5))
		require.NoError(t, more.upload(r, 0, 6))
		w.greet()
		if blocks > 0 {
			w.shared(b)
			w.send(transport.Uploaded, w.uploadFrom(b, 5).Seq, &proto.Uploaded{}, nil)
		} else {
			w.body(b, 5)
		}
		w.body(more, 6)
		b.soonFree(t)
		more.soonFree(t)
		require.EqualValues(t, 2000*blocks, metricsOf(t, r)["upload_bytes_shared"])
	}
}

// body takes an upload with bytes.
func (w *fakeWorker) body(b *testBlock, storage uint64) {
	w.Helper()
	var m proto.Upload
	h := w.next(transport.Upload, &m)
	require.Equal(w, storage, m.Storage)
	got := make([]byte, h.Payload)
	require.NoError(w, w.conn.ReadBody(got))
	require.Equal(w, b.data[1000:3000], got)
}

// If a descriptor can't be sent, the upload sends a copy of the bytes.
func TestADescriptorThatCannotBeSent(t *testing.T) {
	r, w := startSharing(t, 2)
	b := newBlock(t, 7)
	require.NoError(t, b.file.Close())
	b.reading.Add(1)
	require.NoError(t, ended(r)(r.UploadShared(0, 5, b.data[1000:3000], Shared{Block: 7, FD: 1 << 20, Size: 4096,
		Offset: 1000}, func() { b.reading.Add(-1) }, trace.Place{})))
	w.greet()
	w.body(b, 5)
	b.soonFree(t)
}

func TestBlocksComeFreeWhenTheWorkerDies(t *testing.T) {
	r, w := startSharing(t, 2)
	b := newBlock(t, 7)
	for i := range uint64(4) {
		require.NoError(t, b.upload(r, 0, 1+i))
	}
	w.greet()
	w.shared(b)
	w.send(transport.Uploaded, w.uploadFrom(b, 1).Seq, &proto.Uploaded{}, nil)
	w.uploadFrom(b, 2)
	w.exit = provider.Exit{Code: 3}
	w.die()
	b.soonFree(t)
	require.Eventually(t, func() bool { return b.upload(r, 0, 9) != nil }, time.Minute, time.Millisecond)
	b.soonFree(t)
	require.Error(t, b.upload(r, 3, 9), "no such device")
	b.soonFree(t)
	r.Forget(7)
}

// TestSharedUploadsBeyondTheLimitWait: bytes in shared memory count like copies. Otherwise no limit would hold for a
// loop of uploads. A caller waits until the worker has read its own.
func TestSharedUploadsBeyondTheLimitWait(t *testing.T) {
	r, w := startSharing(t, 2)
	b := newBlock(t, 7)
	b.data = make([]byte, catalogue.UploadUnderWay+10)
	upload := func(storage uint64, n int) error {
		b.reading.Add(1)
		return ended(r)(r.UploadShared(0, storage, b.data[:n], Shared{Block: 7, FD: int(b.file.Fd()), Size: 4096},
			func() { b.reading.Add(-1) }, trace.Place{}))
	}
	require.NoError(t, upload(1, len(b.data)), "one is always taken")
	done := make(chan error)
	go func() { done <- upload(2, 10) }()
	w.greet()
	w.shared(b)
	w.next(transport.UploadFrom, new(proto.UploadFrom))
	second := w.next(transport.UploadFrom, new(proto.UploadFrom))
	select {
	case err := <-done:
		t.Fatalf("an upload over the limit returned %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	w.send(transport.Uploaded, second.Seq, &proto.Uploaded{}, nil)
	require.NoError(t, <-done)
	go func() { done <- upload(3, len(b.data)) }()
	time.Sleep(20 * time.Millisecond)
	w.die() // without this the test would wait for ever
	require.ErrorContains(t, <-done, "mycelya:0 is lost")
	b.soonFree(t)
}

func TestAnAnswerToNoUploadEndsTheSession(t *testing.T) {
	r, w := startSharing(t, 2)
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.greet()
	w.next(transport.Sync, new(proto.Sync))
	w.send(transport.Uploaded, 77, &proto.Uploaded{}, nil)
	time.Sleep(10 * time.Millisecond)
	w.die()
	require.ErrorContains(t, wait(t, r, ticket), "mycelya:0 is lost")
}

func TestForgetStartsNoWorker(t *testing.T) {
	r, _ := startSharing(t, 2)
	r.Forget(7)
	s, err := r.session(0)
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	require.False(t, s.core.Started())
}
