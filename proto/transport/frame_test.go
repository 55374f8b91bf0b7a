// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow/go/v17/arrow/ipc"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// stream is a net.Conn over bytes.
type stream struct {
	net.Conn
	in  io.Reader
	out bytes.Buffer
}

func (s *stream) Read(p []byte) (int, error)  { return s.in.Read(p) }
func (s *stream) Write(p []byte) (int, error) { return s.out.Write(p) }

// sent returns the bytes of one frame.
func sent(t testing.TB, typ Type, seq uint64, body []byte) []byte {
	t.Helper()
	s := &stream{}
	require.NoError(t, New(s).Send(typ, seq, &proto.Upload{Storage: 7, Bytes: uint64(len(body))}, body))
	return s.out.Bytes()
}

func reader(b []byte) *Conn { return New(&stream{in: bytes.NewReader(b)}) }

// unixPair is a connected pair of real sockets.
func unixPair(t testing.TB) (*Conn, *Conn) {
	t.Helper()
	dir, err := os.MkdirTemp("", "mt")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer l.Close()
	a, err := net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	b, err := l.Accept()
	require.NoError(t, err)
	ca, cb := New(a), New(b)
	t.Cleanup(func() { ca.Close(); cb.Close() })
	return ca, cb
}

func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

func TestGoldenFrame(t *testing.T) {
	b := append(sent(t, Upload, 3, []byte("mycelya")), sent(t, Sync, 4, nil)...)
	got := []byte(hex.Dump(b))
	path := filepath.Join("testdata", "v2", "frames.hex")
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(want), string(got), "version 1 of the wire is fixed: a changed encoding is a new version")
}

func TestRoundTrip(t *testing.T) {
	a, b := unixPair(t)
	for _, n := range []int{0, 1, 63, 64, 65, 4096, readBuffer - 1, readBuffer, readBuffer + 1, 5 << 20} {
		body := pattern(n)
		var wg sync.WaitGroup
		wg.Go(func() {
			require.NoError(t, a.Send(Upload, uint64(n), &proto.Upload{Storage: 9, Bytes: uint64(n)}, body))
			require.NoError(t, a.Send(Call, 2, &proto.Call{Params: []uint64{1, 2}}, nil))
		})
		h, err := b.Next()
		require.NoError(t, err)
		var m proto.Upload
		require.NoError(t, b.Meta(&m))
		require.Equal(t, Header{Type: Upload, Seq: uint64(n), Meta: h.Meta, Payload: uint64(n)}, h)
		require.EqualValues(t, 9, m.Storage)
		got := make([]byte, n)
		require.NoError(t, b.ReadBody(got))
		require.Equal(t, body, got)
		h, err = b.Next()
		require.NoError(t, err)
		require.Equal(t, Call, h.Type)
		var c proto.Call
		require.NoError(t, b.Meta(&c))
		require.Equal(t, []uint64{1, 2}, c.Params)
		wg.Wait()
	}
	require.NoError(t, a.Close())
	_, err := b.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestNextDropsUnreadBody(t *testing.T) {
	c := reader(append(sent(t, Upload, 1, pattern(200_000)), sent(t, Sync, 2, nil)...))
	_, err := c.Next()
	require.NoError(t, err)
	h, err := c.Next()
	require.NoError(t, err)
	require.Equal(t, Sync, h.Type)
	_, err = c.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestReadBodyWantsTheExactLength(t *testing.T) {
	c := reader(sent(t, Upload, 1, pattern(100)))
	_, err := c.Next()
	require.NoError(t, err)
	require.ErrorIs(t, c.ReadBody(make([]byte, 99)), ErrFrameUse)
	require.NoError(t, c.ReadBody(make([]byte, 100)))
	require.ErrorIs(t, c.ReadBody(make([]byte, 100)), ErrFrameUse, "a payload is read once")
}

func TestConcurrentSendsDontMix(t *testing.T) {
	a, b := unixPair(t)
	const senders, each = 4, 50
	for s := range senders {
		go func() {
			for range each {
				body := bytes.Repeat([]byte{byte(s)}, 1000*(s+1))
				if a.Send(Upload, uint64(s), &proto.Upload{Storage: uint64(s)}, body) != nil {
					return
				}
			}
		}()
	}
	for range senders * each {
		h, err := b.Next()
		require.NoError(t, err)
		got := make([]byte, h.Payload)
		require.NoError(t, b.ReadBody(got))
		require.Equal(t, bytes.Repeat([]byte{byte(h.Seq)}, 1000*(int(h.Seq)+1)), got)
	}
}

func TestSendRefuses(t *testing.T) {
	c := New(&stream{})
	require.ErrorIs(t, c.Send(0, 1, nil, nil), ErrFrameType)
	require.ErrorIs(t, c.Send(numTypes, 1, nil, nil), ErrFrameType)
	big := &proto.Call{Params: make([]uint64, MaxMeta/8)}
	require.ErrorIs(t, c.Send(Call, 1, big, nil), ErrFrameLimit)
	require.NoError(t, c.Send(Call, 1, &proto.Call{}, nil), "a refused frame leaves the stream whole")
}

type failing struct{ net.Conn }

func (failing) Write([]byte) (int, error) { return 0, errors.New("gone") }

func TestSendFailsForGood(t *testing.T) {
	c := New(failing{})
	require.ErrorContains(t, c.Send(Sync, 1, nil, nil), "gone")
	require.ErrorContains(t, c.Send(Sync, 2, nil, nil), "gone")
}

func TestNextRefuses(t *testing.T) {
	put32 := func(at int, v uint32) func([]byte) []byte {
		return func(b []byte) []byte { binary.LittleEndian.PutUint32(b[at:], v); return b }
	}
	for _, c := range []struct {
		name string
		want error
		edit func([]byte) []byte
	}{
		{"magic", ErrFrameMagic, put32(0, 1)},
		{"version", ErrFrameVersion, func(b []byte) []byte { b[4]++; return b }},
		{"type 0", ErrFrameType, func(b []byte) []byte { b[5] = 0; return b }},
		{"type", ErrFrameType, func(b []byte) []byte { b[5] = byte(numTypes); return b }},
		{"flags", ErrFrameReserved, func(b []byte) []byte { b[6] = 1; return b }},
		{"reserved", ErrFrameReserved, put32(28, 1)},
		{"meta", ErrFrameLimit, put32(24, MaxMeta+1)},
		{"body", ErrFrameLimit, func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], MaxBody+1); return b }},
		{"short body", ErrFrameBody, func(b []byte) []byte { binary.LittleEndian.PutUint64(b[16:], 7); return b }},
		{"header cut", ErrFrameTruncated, func(b []byte) []byte { return b[:20] }},
		{"meta cut", ErrFrameTruncated, func(b []byte) []byte { return b[:33] }},
		{"body cut", ErrFrameTruncated, func(b []byte) []byte { return b[:60] }},
		{"a terabyte that doesn't come", ErrFrameBody, func(b []byte) []byte {
			binary.LittleEndian.PutUint64(b[16:], MaxBody)
			return b
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := reader(c.edit(sent(t, Upload, 3, pattern(100))))
			_, err := r.Next()
			require.ErrorIs(t, err, c.want)
			_, again := r.Next()
			require.Equal(t, err, again, "the stream is of no more use")
		})
	}
	b := sent(t, Upload, 3, pattern(100))
	r := reader(b[:len(b)-10])
	_, err := r.Next()
	require.NoError(t, err)
	require.ErrorIs(t, r.ReadBody(make([]byte, 100)), ErrFrameTruncated)
}

func TestLargeMetaArrivesInPieces(t *testing.T) {
	s := &stream{}
	want := &proto.Call{Params: make([]uint64, 400_000)}
	want.Params[399_999] = 5
	require.NoError(t, New(s).Send(Call, 1, want, nil))
	c := reader(append(s.out.Bytes(), sent(t, Sync, 2, nil)...))
	_, err := c.Next()
	require.NoError(t, err)
	var got proto.Call
	require.NoError(t, c.Meta(&got))
	require.EqualValues(t, 5, got.Params[399_999])
	_, err = c.Next()
	require.NoError(t, err)
	require.LessOrEqual(t, cap(c.meta), keepMeta, "a large buffer isn't kept")

	// 64 MiB announced, nothing sent: no more than a piece is held.
	head := sent(t, Call, 1, nil)[:headerBytes]
	binary.LittleEndian.PutUint32(head[24:], MaxMeta)
	c = reader(head)
	_, err = c.Next()
	require.ErrorIs(t, err, ErrFrameTruncated)
	require.LessOrEqual(t, cap(c.meta), keepMeta)
}

func TestMetaThatDoesNotDecode(t *testing.T) {
	b := sent(t, Upload, 3, nil)
	b[headerBytes] = 0xff
	c := reader(b)
	_, err := c.Next()
	require.NoError(t, err)
	require.ErrorIs(t, c.Meta(&proto.Upload{}), ErrFrameMeta)
}

// A body is Arrow: put the schema before it, and Arrow's own reader reads it.
func TestBodyIsArrow(t *testing.T) {
	want := pattern(1000)
	b := sent(t, Upload, 3, want)
	metaBytes := binary.LittleEndian.Uint32(b[24:])
	var file bytes.Buffer
	w := ipc.NewWriter(&file, ipc.WithSchema(Schema()))
	require.NoError(t, w.Close()) // the schema, then the mark of the end, which is 8 bytes
	file.Truncate(file.Len() - 8)
	file.Write(b[headerBytes+metaBytes:])
	r, err := ipc.NewReader(&file)
	require.NoError(t, err)
	defer r.Release()
	require.True(t, r.Next(), r.Err())
	require.Equal(t, want, r.Record().Column(0).Data().Buffers()[1].Bytes()[:1000])
}

func TestHandshake(t *testing.T) {
	tcp := Handshake{Version: 1, Network: "tcp", Addr: "127.0.0.1:7070", PID: 12, Build: Build}
	h := Handshake{Version: 1, Network: "unix", Addr: "/tmp/x/s", PID: 12, Build: Build}
	stdio := Handshake{Version: 1, Network: "stdio", Addr: "-", PID: 12, Build: Build}
	for _, want := range []Handshake{tcp, h, stdio} {
		got, err := ParseHandshake(want.String() + "\n")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, bad := range []string{
		"", "hello", "MYCELYA|1|unix|/s|12", "MYCELYA|x|unix|/s|12|b", "MYCELYA|1|udp|/s|12|b", "MYCELYA|1|unix||12|b",
		"MYCELYA|1|unix|/s|-1|b", "OTHER|1|unix|/s|12|b", h.String() + "|",
	} {
		_, err := ParseHandshake(bad)
		require.Error(t, err, bad)
	}
}

func TestPeer(t *testing.T) {
	a, b := unixPair(t)
	require.NoError(t, CheckPeer(a.Net()))
	require.NoError(t, CheckPeer(b.Net()))
	p, q := net.Pipe()
	defer p.Close()
	defer q.Close()
	require.ErrorContains(t, CheckPeer(p), "not a unix socket")
}

func TestCloseWakesNext(t *testing.T) {
	a, _ := unixPair(t)
	time.AfterFunc(20*time.Millisecond, func() { a.Close() })
	_, err := a.Next()
	require.ErrorIs(t, err, net.ErrClosed)
	require.True(t, strings.HasPrefix(Type(77).String(), "type 77"))
}

// requireUploads sends uploads from a, each while b already waits, and requires that they arrive.
func requireUploads(t *testing.T, a, b *Conn) {
	t.Helper()
	body := pattern(3 * readBuffer)
	for i := range uint64(3) {
		time.AfterFunc(5*time.Millisecond, func() {
			_ = a.Send(Upload, i, &proto.Upload{Storage: 7, Bytes: uint64(len(body))}, body)
		})
		h, err := b.Next()
		require.NoError(t, err)
		require.Equal(t, i, h.Seq)
		got := make([]byte, h.Payload)
		require.NoError(t, b.ReadBody(got))
		require.Equal(t, body, got)
	}
}

// TestSleep: reads that wait on their own thread get the same frames as other reads, and Close on another goroutine
// ends them.
func TestSleep(t *testing.T) {
	a, b := unixPair(t)
	b.TakeFiles()
	b.Sleep()
	requireUploads(t, a, b)
	time.AfterFunc(20*time.Millisecond, func() { b.Close() })
	_, err := b.Next()
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestSleepEndsWithTheStream(t *testing.T) {
	a, b := unixPair(t)
	b.Sleep()
	time.AfterFunc(20*time.Millisecond, func() { a.Close() })
	_, err := b.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestSleepOfAClosedConnection(t *testing.T) {
	_, b := unixPair(t)
	b.Close()
	b.Sleep()
	_, err := b.Next()
	require.ErrorIs(t, err, net.ErrClosed)
}

// TestSleepBelowTLS: the same for the socket below TLS.
func TestSleepBelowTLS(t *testing.T) {
	client, worker := mint(t, time.Hour)
	c, s := tcpPair(t)
	a, b := New(client.ClientSide(c, NewSessionName())), New(worker.WorkerSide(s))
	go func() { _ = a.Send(Sync, 1, nil, nil) }()
	_, err := b.Next()
	require.NoError(t, err)
	b.Sleep()
	requireUploads(t, a, b)
	b.Awake()
	require.NoError(t, b.Net().SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = b.Net().Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	b.Sleep()
	time.AfterFunc(20*time.Millisecond, func() { b.Close() })
	_, err = b.Next()
	require.Error(t, err)
}

// TestSleepIsForSockets: Sleep does not change the reads of other connections.
func TestSleepIsForSockets(t *testing.T) {
	p, q := net.Pipe()
	a, b := New(p), New(q)
	defer a.Close()
	defer b.Close()
	b.Sleep()
	go func() { _ = a.Send(Sync, 1, nil, nil) }()
	h, err := b.Next()
	require.NoError(t, err)
	require.Equal(t, Sync, h.Type)
}

func TestHeldFramesGoWithTheNext(t *testing.T) {
	for name, sleeps := range map[string]bool{"sleeps": true, "doesn't": false} {
		t.Run(name, func(t *testing.T) {
			a, b := unixPair(t)
			if sleeps {
				a.Sleep()
			}
			next := func(c *Conn, seq uint64, m *proto.Done) {
				t.Helper()
				h, err := c.Next()
				require.NoError(t, err)
				require.Equal(t, seq, h.Seq)
				if m != nil {
					require.NoError(t, c.Meta(m))
				}
			}
			require.NoError(t, a.Hold(Done, 1, &proto.Done{Failed: 3}, nil))
			require.NoError(t, a.Hold(Done, 2, nil, pattern(13)))
			require.NoError(t, b.Net().SetReadDeadline(time.Now().Add(20*time.Millisecond)))
			_, err := b.r.Peek(1)
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "nothing has been sent")
			require.NoError(t, b.Net().SetReadDeadline(time.Time{}))
			body := pattern(100)
			require.NoError(t, a.Send(ReadReply, 3, nil, body))
			var done proto.Done
			next(b, 1, &done)
			next(b, 2, nil)
			held := make([]byte, 13)
			require.NoError(t, b.ReadBody(held))
			require.Equal(t, pattern(13), held)
			next(b, 3, nil)
			require.EqualValues(t, 3, done.Failed)
			got := make([]byte, 100)
			require.NoError(t, b.ReadBody(got))
			require.Equal(t, body, got)

			require.NoError(t, a.Hold(Done, 4, nil, nil)) // goes before a waits
			go func() {
				if h, err := b.Next(); err == nil {
					_ = b.Send(Sync, 10+h.Seq, nil, nil)
				}
			}()
			next(a, 14, nil)
		})
	}
	a, _ := unixPair(t)
	require.ErrorIs(t, a.Hold(99, 5, nil, nil), ErrFrameType)
	require.NoError(t, a.Hold(Done, 5, nil, nil))
	a.Close()
	_, err := a.Next()
	require.Error(t, err)
}

func TestFlush(t *testing.T) {
	a, b := unixPair(t)
	a.FlushesAlone()
	sent, err := a.Flush()
	require.NoError(t, err)
	require.False(t, sent, "there was nothing to send")
	require.NoError(t, a.Hold(Upload, 1, nil, pattern(5)))
	require.NoError(t, a.Net().SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = a.Next()
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, b.Net().SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = b.r.Peek(1)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "a read sends nothing")
	require.NoError(t, b.Net().SetReadDeadline(time.Time{}))
	sent, err = a.Flush()
	require.NoError(t, err)
	require.True(t, sent)
	h, err := b.Next()
	require.NoError(t, err)
	require.Equal(t, Header{Type: Upload, Seq: 1, Payload: 5}, h)
}
