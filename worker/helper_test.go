// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"encoding/binary"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/ref"
	"github.com/mycelya/mycelya/worker/session"
)

// patience is how long something may take on the slowest machine.
const patience = 2 * time.Minute

// logBuffer is a log that tests can read while the server writes.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

type serving struct {
	addr   string
	log    *logBuffer
	server *session.Server
}

// serve runs a server on a real socket until the test ends, and requires that the server ends then.
func serve(t testing.TB, load func() (executor.Backend, error), programBytes int64) *serving {
	t.Helper()
	return start(t, &session.Server{Load: load, ProgramBytes: programBytes})
}

func start(t testing.TB, server *session.Server) *serving {
	t.Helper()
	dir, err := os.MkdirTemp("", "mw")
	require.NoError(t, err)
	s := &serving{addr: filepath.Join(dir, "s"), log: &logBuffer{}, server: server}
	l, err := net.Listen("unix", s.addr)
	require.NoError(t, err)
	server.Log = slog.New(slog.NewTextHandler(s.log, nil))
	ended := make(chan error, 1)
	go func() { ended <- s.server.Serve(l) }()
	t.Cleanup(func() {
		s.server.Close()
		select {
		case err := <-ended:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Error("the server does not end")
		}
		_ = os.RemoveAll(dir)
	})
	return s
}

func refBackend() (executor.Backend, error) { return ref.Backend{}, nil }

// client is a test's end of a session. Its methods fail the test if an answer is unexpected.
type client struct {
	t   testing.TB
	c   *transport.Conn
	seq uint64
}

func (s *serving) dial(t testing.TB) *client {
	t.Helper()
	nc, err := net.Dial("unix", s.addr)
	require.NoError(t, err)
	return clientOf(t, nc)
}

// clientOf is the client at this end of a connection.
func clientOf(t testing.TB, nc net.Conn) *client {
	t.Helper()
	c := &client{t: t, c: transport.New(nc)}
	c.hurry()
	t.Cleanup(func() { _ = c.c.Close() })
	return c
}

// hurry lets what the client waits for fail after patience.
func (c *client) hurry() {
	c.t.Helper()
	require.NoError(c.t, c.c.Net().SetDeadline(time.Now().Add(patience)))
}

func goodHello() *proto.Hello {
	return &proto.Hello{
		Protocol: transport.Version,
		Build:    transport.Build,
		Abi:      proto.ABIVersion,
		Pid:      uint64(os.Getpid()),
	}
}

// connect dials and says hello.
func (s *serving) connect(t testing.TB) *client {
	t.Helper()
	c := s.dial(t)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.Empty(t, h.Error)
	require.Equal(t, "cpu", h.Device)
	return c
}

// send sends with a new sequence number.
func (c *client) send(typ transport.Type, m protobuf.Message, body []byte) uint64 {
	c.t.Helper()
	c.seq++
	require.NoError(c.t, c.c.Send(typ, c.seq, m, body))
	return c.seq
}

// expect reads a frame of a type; seq 0 accepts any sequence number.
func (c *client) expect(typ transport.Type, seq uint64, m protobuf.Message) transport.Header {
	c.t.Helper()
	h, err := c.c.Next()
	require.NoError(c.t, err)
	require.Equal(c.t, typ, h.Type)
	if seq != 0 {
		require.Equal(c.t, seq, h.Seq)
	}
	require.NoError(c.t, c.c.Meta(m))
	return h
}

func (c *client) upload(id uint64, data []byte) {
	c.t.Helper()
	c.send(transport.Upload, &proto.Upload{Storage: id, Bytes: uint64(len(data))}, data)
}

// call sends a call and waits for its Done.
func (c *client) call(m *proto.Call) *proto.Done {
	c.t.Helper()
	var d proto.Done
	c.expect(transport.Done, c.send(transport.Call, m, nil), &d)
	return &d
}

// read reads n bytes of a storage, or returns the error.
func (c *client) read(id uint64, n int) ([]byte, *proto.Status) {
	c.t.Helper()
	seq := c.send(transport.Read, &proto.Read{Storage: id, Dtype: 1, Sizes: []int64{int64(n)}, Strides: []int64{1}}, nil)
	var r proto.ReadReply
	h := c.expect(transport.ReadReply, seq, &r)
	require.Equal(c.t, h.Payload, r.Bytes)
	if r.Status != nil {
		require.Zero(c.t, h.Payload)
		return nil, r.Status
	}
	b := make([]byte, h.Payload)
	require.NoError(c.t, c.c.ReadBody(b))
	return b, nil
}

func (c *client) sync() *proto.SyncReply {
	c.t.Helper()
	var r proto.SyncReply
	c.expect(transport.SyncReply, c.send(transport.Sync, &proto.Sync{}, nil), &r)
	return &r
}

// fault reads the last frame of a session that the worker ends.
func (c *client) fault() string {
	c.t.Helper()
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.NotEmpty(c.t, h.Error)
	_, err := c.c.Next()
	require.Error(c.t, err, "the session has ended")
	return h.Error
}

func f32(v ...float32) (out []byte) {
	for _, x := range v {
		out = binary.LittleEndian.AppendUint32(out, math.Float32bits(x))
	}
	return out
}

func key(n byte) []byte { return bytes.Repeat([]byte{n}, proto.KeyBytes) }

// unary returns the program y = op(x) on f32 vectors; parameter 0 is their length.
func unary(op string) *program.Program {
	vector := func(b uint32) program.Tensor {
		return program.Tensor{Buffer: b, DType: 7, Sizes: []program.Dim{program.Param(0)}}
	}
	return &program.Program{
		Params: 1, Buffers: 2, Tensors: []program.Tensor{vector(0), vector(1)},
		Inputs: []uint32{0}, Outputs: []uint32{1}, Records: []uint32{0},
		Steps: []program.Step{&program.Call{Op: op, Args: []program.Arg{program.Window(0)}, Results: []uint32{2}}},
	}
}

// sent is the message of a program.
func sent(k byte, p *program.Program) *proto.Program {
	return &proto.Program{Key: key(k), Words: program.Pack(p.Words())}
}

func callOf(k byte, n, in, out uint64) *proto.Call {
	return &proto.Call{Key: key(k), Params: []uint64{n}, Inputs: []uint64{in}, Outputs: []uint64{out}}
}
