// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"net"
	"os"
	osexec "os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/kballard/go-shellquote"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/capture"
	"github.com/mycelya/mycelya/capture/asm"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/exec"
	"github.com/mycelya/mycelya/tests/remote"
	"github.com/mycelya/mycelya/tests/trips/count"
	"github.com/mycelya/mycelya/trace"
)

// oneWay is the delay of each direction: a round trip takes 100 ms.
const oneWay = 50 * time.Millisecond

// patience bounds a wait, on the slowest machine.
const patience = 2 * time.Minute

// most is the goal: round trips from the first dial to the first value.
const most = 5

// machine is a worker that runs already, as a provider and its instance. Clients reach it over a line.
type machine struct {
	provider.StartOnly
	addr        string
	credentials *transport.Credentials
}

func (m *machine) Start(context.Context, provider.Spec) (provider.Instance, error) { return m, nil }
func (m *machine) Credentials() *transport.Credentials                             { return m.credentials }
func (m *machine) FDs() []int                                                      { return nil }
func (m *machine) Stop(context.Context, time.Duration) error                       { return nil }

func (m *machine) Handle() provider.Handle { return provider.Handle{Provider: "test", ID: m.addr} }

func (m *machine) Dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "tcp", m.addr)
}

func (m *machine) Wait(ctx context.Context) (provider.Exit, error) {
	<-ctx.Done()
	return provider.Exit{}, ctx.Err()
}

// build builds a program of this module.
func build(t *testing.T, pkg string) string {
	out := filepath.Join(t.TempDir(), filepath.Base(pkg))
	text, err := osexec.Command("go", "build", "-o", out, "github.com/mycelya/mycelya/"+pkg).CombinedOutput()
	require.NoError(t, err, "%s", text)
	return out
}

// client is a session with a machine.
type client struct {
	*testing.T
	rt    *runtime.Local
	names *capture.Table
}

// open begins a session, and returns when its worker has answered.
func open(t *testing.T, p provider.Provider, of provider.Spec) *client {
	c := &client{T: t, names: capture.NewTable()}
	provide := func(runtime.Paths) (provider.Provider, error) { return p, nil }
	c.rt = runtime.NewLocal(c.names, provide)
	paths := runtime.Paths{Request: provider.Request{Spec: of}}
	require.NoError(t, c.rt.Open(0, paths, []string{"MYCELYA_LOG=error"}))
	t.Cleanup(func() { c.rt.Close(0) })
	c.wait(c.rt.Start(0))
	return c
}

func (c *client) wait(ticket uint64, err error) {
	c.Helper()
	for end := time.Now().Add(patience); errors.Is(err, runtime.ErrPending) && time.Now().Before(end); {
		err = c.rt.Wait(ticket, time.Second)
	}
	require.NoError(c, err)
}

// relu is the trace of a program that the worker does not know. Storage 1 is from before, storage 2 the result.
const relu = `bind 1 2
cut read
aten::relu %0:f32[3] -> %1:f32[3]
`

// firstValue uploads three numbers, submits a program, and reads its result.
func (c *client) firstValue() {
	c.Helper()
	var data []byte
	for _, x := range []float32{-1, 2, 3} {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(x))
	}
	c.wait(c.rt.Upload(0, 1, data, trace.Place{}))
	tr, err := asm.Parse(relu, c.names)
	require.NoError(c, err)
	require.NoError(c, c.rt.Flush(0, tr, func() {}))
	out := make([]byte, 12)
	view := runtime.View{Storage: 2, DType: ir.F32, Sizes: []int64{3}, Strides: []int64{1}}
	ticket, err := c.rt.Read(0, view, out, trace.Place{})
	require.NoError(c, err)
	c.wait(ticket, runtime.ErrPending)
	var got [3]float32
	_, err = binary.Decode(out, binary.LittleEndian, &got)
	require.NoError(c, err)
	require.Equal(c, [3]float32{0, 2, 3}, got)
}

// count compares the counts when a session is open, and after its first value, with what they must be, and says
// whether they are within the goal. A slow host may send a read so late that it counts as a trip of its own.
func (c *client) count(counter func() count.Result, opened, value int) (within bool) {
	c.Helper()
	before := counter()
	require.Equal(c, opened, before.Trips, "round trips until the session is open")
	c.firstValue()
	after := counter()
	require.GreaterOrEqual(c, after.Trips, value)
	require.Equal(c, 1, after.Connections)
	require.GreaterOrEqual(c, after.Seconds, float64(value)*2*oneWay.Seconds())
	c.Logf("open after %d round trips, the first value after %d, %.0f ms", before.Trips, after.Trips, 1000*after.Seconds)
	return after.Trips <= most
}

// oneOf requires that one of some sessions is within the goal.
func oneOf(t *testing.T, session func() (within bool)) {
	t.Helper()
	for range 5 {
		if session() {
			return
		}
	}
	t.Fatalf("each session has needed more than %d round trips to its first value", most)
}

// TestTheFirstValueOverTCP: TCP, TLS, the Hellos, and the program with its value. Each client of the machine, which
// runs already, has a session of its own.
func TestTheFirstValueOverTCP(t *testing.T) {
	w, err := remote.Start(remote.Options{Program: build(t, "worker/cmd/mycelya-worker"),
		Flags: []string{"--backend", "ref"}, Log: filepath.Join(t.TempDir(), "log")})
	require.NoError(t, err)
	defer func() { require.NoError(t, w.Stop()) }()
	for range 2 {
		oneOf(t, func() bool { // each with a line of its own: bytes of the session before may still be under way
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(t, err)
			defer l.Close()
			counter := new(count.Counter)
			go func() { _ = count.Line{Delay: oneWay, Counter: counter}.Serve(l, "tcp", w.Addr) }()
			c := open(t, &machine{addr: l.Addr().String(), credentials: w.Client}, provider.Spec{})
			defer c.rt.Close(0)
			return c.count(counter.Result, 3, 4)
		})
	}
}

// TestTheFirstValueOverPipes: the worker's first line, the Hellos, and the program with its value.
func TestTheFirstValueOverPipes(t *testing.T) {
	worker, trips := build(t, "worker/cmd/mycelya-worker"), build(t, "tests/trips")
	dir, err := os.MkdirTemp("", "trp") // the path of a socket is short
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	report := filepath.Join(dir, "s")
	command := shellquote.Join(trips, "--report", report, "--delay", oneWay.String(), "--pipe", "--", worker, "--stdio",
		"--backend", "ref")
	oneOf(t, func() bool {
		c := open(t, exec.New(provider.Paths{}), provider.Spec{Options: map[string]string{"command": command}})
		defer c.rt.Close(0)
		return c.count(func() count.Result { return ask(t, report) }, 2, 3)
	})
}

// ask asks the program for its count.
func ask(t *testing.T, socket string) (out count.Result) {
	conn, err := net.Dial("unix", socket)
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte("count\n"))
	require.NoError(t, err)
	require.NoError(t, json.NewDecoder(conn).Decode(&out))
	return out
}
