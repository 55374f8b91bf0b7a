// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"net"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/trace"
)

// fakeWorker is the other end of a session; a test sends and receives each of its frames.
type fakeWorker struct {
	provider.StartOnly
	testing.TB
	conn   *transport.Conn
	server net.Conn
	client net.Conn
	exit   provider.Exit
	ended  chan struct{}
	once   sync.Once
	hello  *proto.Hello

	uploads map[uint64]*fakeUpload // in pieces, by number, until they are complete
}

func (w *fakeWorker) Start(context.Context, provider.Spec) (provider.Instance, error) { return w, nil }
func (w *fakeWorker) Credentials() *transport.Credentials                             { return nil }
func (w *fakeWorker) Handle() provider.Handle {
	return provider.Handle{Provider: "fake", ID: "1"}
}

func (w *fakeWorker) Dial(context.Context) (net.Conn, error)    { return w.client, nil }
func (w *fakeWorker) FDs() []int                                { return nil }
func (w *fakeWorker) Stop(context.Context, time.Duration) error { w.die(); return nil }

func (w *fakeWorker) Wait(ctx context.Context) (provider.Exit, error) {
	select {
	case <-w.ended:
		return w.exit, nil
	case <-ctx.Done():
		return provider.Exit{}, ctx.Err()
	}
}

// die ends the worker and its connection.
func (w *fakeWorker) die() {
	w.once.Do(func() { close(w.ended) })
	w.server.Close()
}

// next takes a frame of the client.
func (w *fakeWorker) next(want transport.Type, m protobuf.Message) transport.Header {
	w.Helper()
	h, err := w.conn.Next()
	require.NoError(w, err)
	require.Equal(w, want, h.Type)
	require.NoError(w, w.conn.Meta(m))
	return h
}

func (w *fakeWorker) send(t transport.Type, seq uint64, m protobuf.Message, body []byte) {
	w.Helper()
	require.NoError(w, w.conn.Send(t, seq, m, body))
}

// fakeUpload is an upload that comes in pieces.
type fakeUpload struct {
	storage, bytes uint64
	data           []byte
}

// upload takes frames of uploads in pieces until one is complete.
func (w *fakeWorker) upload() (storage uint64, data []byte) {
	w.Helper()
	for {
		h, err := w.conn.Next()
		require.NoError(w, err)
		if h.Type == transport.Begin {
			var m proto.Upload
			require.NoError(w, w.conn.Meta(&m))
			w.uploads[h.Seq] = &fakeUpload{storage: m.Storage, bytes: m.Bytes}
			continue
		}
		require.Equal(w, transport.Piece, h.Type)
		u := w.uploads[h.Seq]
		require.NotNil(w, u)
		piece := make([]byte, h.Payload)
		require.NoError(w, w.conn.ReadBody(piece))
		if u.data = append(u.data, piece...); uint64(len(u.data)) >= u.bytes {
			delete(w.uploads, h.Seq)
			return u.storage, u.data
		}
	}
}

// greet answers the client's Hello.
func (w *fakeWorker) greet() {
	w.Helper()
	w.next(transport.Hello, new(proto.Hello))
	w.send(transport.Hello, 0, w.hello, nil)
}

// reluFrontend builds one trace: %1 = relu %0, with a size in parameter 0. A word of 13 in its skeleton is a mistake.
type reluFrontend struct{}

func (reluFrontend) Compare(_, _ *trace.Trace) (*trace.Difference, error) { return nil, nil }
func (reluFrontend) Maker(*trace.Trace, int) string                       { return "a tensor" }
func (reluFrontend) Origin(code, offset uint32) ir.Origin {
	if code == 0 {
		return ir.Origin{}
	}
	return ir.Origin{File: "train.py", Line: int(offset)}
}

// Caller has led to all code of odd numbers above 100.
func (reluFrontend) Caller(code uint32) ir.Origin {
	if code < 100 || code%2 == 0 {
		return ir.Origin{}
	}
	return ir.Origin{File: "main.py", Line: int(code)}
}

func (reluFrontend) Build(t *trace.Trace, wanted []bool, _ []uint64, _ bool) (*trace.Captured, error) {
	if t.Skeleton[0] == 13 {
		panic("unlucky")
	}
	g := ir.NewGraph("relu", "read")
	x := ir.Type{DType: ir.F32, Dims: []ir.Dim{g.AddSymbol(0, int64(t.Params[0]))}}
	in := g.Nodes[g.Add(ir.Node{Op: ir.OpInput, Record: -1}, nil, []ir.Type{x})].First
	out := g.Nodes[g.Add(ir.Node{Op: ir.OpRelu}, []ir.Arg{ir.Value(in)}, []ir.Type{x})].First
	if wanted[1] {
		g.Outputs = append(g.Outputs, ir.Output{Value: out, Slot: 1})
	}
	return &trace.Captured{
		Graph: g, Inputs: []bool{true, false}, Changed: []bool{false, true}, Ops: []string{"aten::relu"},
	}, nil
}

func relu(in, out uint64) *trace.Trace {
	return &trace.Trace{Key: [2]uint64{1, 2}, Skeleton: []uint64{7}, Params: []uint64{4}, Bindings: []uint64{in, out},
		Alive: []uint8{1, 1}, Origins: []uint32{1, 12}, Reason: 1}
}

// start opens device 0 on a fake worker.
func start(t testing.TB, environment ...string) (*Local, *fakeWorker) {
	l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	require.NoError(t, err)
	defer l.Close()
	w := &fakeWorker{TB: t, uploads: map[uint64]*fakeUpload{}, ended: make(chan struct{}),
		hello: &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion, Pid: 1}}
	w.client, err = net.Dial("unix", l.Addr().String())
	require.NoError(t, err)
	w.server, err = l.Accept()
	require.NoError(t, err)
	w.conn = transport.New(w.server)
	r := NewLocal(reluFrontend{}, func(Paths) (provider.Provider, error) { return w, nil })
	require.NoError(t, r.Open(0, Paths{}, environment))
	t.Cleanup(func() { w.die(); r.Close(0) })
	return r, w
}

func wait(t testing.TB, r *Local, ticket uint64) error {
	t.Helper()
	for range 6000 {
		if err := r.Wait(ticket, 20*time.Millisecond); err != ErrPending {
			return err
		}
	}
	t.Fatal("a ticket never ended")
	return nil
}
