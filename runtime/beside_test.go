// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/trace"
)

// fakeMachine is a worker with a session on each of two devices.
type fakeMachine struct {
	*fakeWorker             // the first session, and the worker
	other       *fakeWorker // the second one
	dialled     atomic.Int32
	single      bool
	named       string // the client of its first session
}

func (m *fakeMachine) Start(context.Context, provider.Spec) (provider.Instance, error) {
	return m, nil
}
func (m *fakeMachine) OneStream() bool { return m.single }

func (m *fakeMachine) Dial(context.Context) (net.Conn, error) {
	switch m.dialled.Add(1) { // sessions that end ask at the same time
	case 1:
		return m.client, nil
	case 2:
		return m.other.client, nil
	}
	return nil, errors.New("the worker has ended")
}

func (m *fakeMachine) Stop(context.Context, time.Duration) error {
	m.other.die()
	m.die()
	return nil
}

// besideIt are the paths of another device of the machine of device 0.
var besideIt = Paths{Request: provider.Request{Beside: 1, Spec: provider.Spec{Session: "m (cpu)", Device: "cpu"}}}

// startMachine opens device 0 on a machine, and starts it.
func startMachine(t testing.TB) (*Local, *fakeMachine) {
	fake := func(pid uint64) *fakeWorker {
		l, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
		require.NoError(t, err)
		defer l.Close()
		w := &fakeWorker{TB: t, uploads: map[uint64]*fakeUpload{}, ended: make(chan struct{}),
			hello: &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion, Pid: pid}}
		w.client, err = net.Dial("unix", l.Addr().String())
		require.NoError(t, err)
		w.server, err = l.Accept()
		require.NoError(t, err)
		w.conn = transport.New(w.server)
		return w
	}
	m := &fakeMachine{fakeWorker: fake(1), other: fake(2)}
	r := NewLocal(reluFrontend{}, func(Paths) (provider.Provider, error) { return m, nil })
	require.NoError(t, r.Open(0, Paths{Request: provider.Request{Spec: provider.Spec{Session: "m"}}}, nil))
	t.Cleanup(func() { _ = m.Stop(context.Background(), 0); r.Close(0) })
	started(t, r, 0, func() {
		var h proto.Hello
		m.next(transport.Hello, &h)
		m.named = h.Client
		m.send(transport.Hello, 0, m.hello, nil)
	})
	return r, m
}

// started starts a device, whose worker greets meanwhile.
func started(t testing.TB, r *Local, index int32, greet func()) {
	t.Helper()
	ticket, err := r.Start(index)
	require.ErrorIs(t, err, ErrPending)
	greet()
	require.NoError(t, wait(t, r, ticket))
}

// startBoth opens device 1 too.
func startBoth(t testing.TB) (*Local, *fakeMachine) {
	r, m := startMachine(t)
	require.NoError(t, r.Open(1, besideIt, nil))
	started(t, r, 1, func() {
		var h proto.Hello
		m.other.next(transport.Hello, &h)
		require.Equal(t, "cpu", h.Device)
		require.True(t, transport.ValidClient(h.Client))
		require.Equal(t, m.named, h.Client, "one client has both sessions")
		m.other.send(transport.Hello, 0, m.other.hello, nil)
	})
	return r, m
}

func passQuestion(to int) []byte {
	return fmt.Appendf(nil,
		`{"What":"pass","To":%d,"Views":[{"Storage":5,"DType":1,"Sizes":[3],"Strides":[2],"Offset":1}]}`, to)
}

// passed passes storage 5 of device 0 to device 1 and returns the answer.
func passed(t testing.TB, r *Local, m *fakeMachine) []byte {
	ticket, err := r.Ask(0, passQuestion(1), trace.Place{})
	require.NoError(t, err)
	var p proto.Pass
	h := m.next(transport.Pass, &p)
	require.Equal(t, uint64(2), p.To, "the session of device 1")
	require.Equal(t, []int64{3}, p.View.Sizes)
	require.GreaterOrEqual(t, len(p.Name), 26)
	m.send(transport.StateReply, h.Seq, &proto.StateReply{Bytes: 3}, nil)
	require.NoError(t, wait(t, r, ticket))
	text, err := r.Answer(ticket, 1<<20)
	require.NoError(t, err)
	var out reply
	require.NoError(t, json.Unmarshal(text, &out))
	require.Equal(t, p.Name, out.Name)
	return text
}

func takeQuestion(passed []byte, storage int) []byte {
	return fmt.Appendf(nil, `{"What":"take","Passed":%s,"Storage":%d,"Bytes":3}`, passed, storage)
}

func TestAPassToAnotherDevice(t *testing.T) {
	r, m := startBoth(t)
	names := map[string]bool{}
	for i := range 3 {
		answer := passed(t, r, m)
		ticket, err := r.Ask(1, takeQuestion(answer, 7+i), trace.Place{})
		require.NoError(t, err)
		require.NoError(t, r.Wait(ticket, 0), "nobody waits for the other device")
		var q proto.Take
		h := m.other.next(transport.Take, &q)
		require.Equal(t, uint64(7+i), q.Storage)
		require.Equal(t, uint64(3), q.Bytes)
		names[q.Name] = true
		m.other.send(transport.StateReply, h.Seq, &proto.StateReply{Bytes: 3}, nil)
	}
	require.Len(t, names, 3)
}

func TestAPassThatFails(t *testing.T) {
	r, m := startBoth(t)
	ticket, err := r.Ask(0, passQuestion(1), trace.Place{})
	require.NoError(t, err)
	h := m.next(transport.Pass, new(proto.Pass))
	m.send(transport.StateReply, h.Seq, &proto.StateReply{Status: &proto.Status{Kind: proto.ErrValue, Text: "why"}}, nil)
	require.ErrorContains(t, wait(t, r, ticket), "why")
	for text, question := range map[string][]byte{
		"mycelya:9 is not open": passQuestion(9), "0 views": []byte(`{"What":"pass","To":1}`),
	} {
		ticket, err = r.Ask(0, question, trace.Place{})
		require.NoError(t, err)
		require.ErrorContains(t, wait(t, r, ticket), text)
	}
	passed(t, r, m)
}

// TestACanceledPass: what nobody wants any more does not stay on the worker.
func TestACanceledPass(t *testing.T) {
	r, m := startBoth(t)
	ticket, err := r.Ask(0, passQuestion(1), trace.Place{})
	require.NoError(t, err)
	var p proto.Pass
	h := m.next(transport.Pass, &p)
	r.Cancel(ticket)
	m.send(transport.StateReply, h.Seq, &proto.StateReply{Bytes: 3}, nil)
	var q proto.Take
	m.other.next(transport.Take, &q)
	require.Equal(t, p.Name, q.Name)
	require.Zero(t, q.Storage)
}

// TestTooManyTakes: a caller that passes more than the other device takes waits for it.
func TestTooManyTakes(t *testing.T) {
	r, m := startBoth(t)
	var last uint64
	for i := range maxTakes + 1 {
		ticket, err := r.Ask(1, takeQuestion(passed(t, r, m), 7+i), trace.Place{})
		require.NoError(t, err)
		if last = ticket; i < maxTakes {
			require.NoError(t, r.Wait(ticket, 0))
		}
	}
	require.ErrorIs(t, r.Wait(last, 0), ErrPending)
	for range maxTakes + 1 {
		h := m.other.next(transport.Take, new(proto.Take))
		m.other.send(transport.StateReply, h.Seq, &proto.StateReply{Bytes: 3}, nil)
	}
	require.NoError(t, wait(t, r, last))
	ticket, err := r.Ask(1, takeQuestion(passed(t, r, m), 99), trace.Place{})
	require.NoError(t, err)
	require.NoError(t, r.Wait(ticket, 0))
}

// TestTheElementsGoThroughTheClient: a worker that replaces a lost one needs them again.
func TestTheElementsGoThroughTheClient(t *testing.T) {
	r, m := startBoth(t)
	checkpoint := []byte(`{"What":"checkpoint"}`)
	ticket, err := r.Ask(1, checkpoint, trace.Place{})
	require.NoError(t, err)
	require.ErrorContains(t, wait(t, r, ticket), "machine's first device")
	ticket, err = r.Ask(0, checkpoint, trace.Place{})
	require.NoError(t, err)
	h := m.next(transport.Checkpoint, new(proto.Checkpoint))
	m.send(transport.StateReply, h.Seq, &proto.StateReply{}, nil)
	require.NoError(t, wait(t, r, ticket))
	ticket, err = r.Ask(1, passQuestion(0), trace.Place{})
	require.NoError(t, err)
	require.NoError(t, r.Wait(ticket, 0))
	text, err := r.Answer(ticket, 1<<20)
	require.NoError(t, err)
	require.Contains(t, string(text), `"aside":true`)
	passed(t, r, m) // the other device has no checkpoints
}

func lostText(t testing.TB, r *Local, index int32) string {
	t.Helper()
	require.Eventually(t, func() bool { return r.Ended(index) != "" }, 30*time.Second, time.Millisecond)
	_, err := r.Sync(index, trace.Place{})
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, KindLost, e.Kind)
	return e.Text
}

func TestALostSecondDevice(t *testing.T) {
	r, m := startBoth(t)
	m.other.die()
	text := lostText(t, r, 1)
	require.Contains(t, text, "mycelya:1, machine m (cpu), is lost")
	require.Contains(t, text, "Call the machine's start()")
	ticket, err := r.Ask(0, passQuestion(1), trace.Place{})
	require.NoError(t, err)
	require.ErrorContains(t, wait(t, r, ticket), "mycelya:1, machine m (cpu), is lost")
	ticket, err = r.Sync(0, trace.Place{})
	require.NoError(t, err)
	h := m.next(transport.Sync, new(proto.Sync))
	m.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, ticket), "the first device goes on")
	r.Close(1)
	select {
	case <-m.ended:
		t.Fatal("the end of the second device has ended the worker")
	default:
	}
}

func TestALostMachine(t *testing.T) {
	r, m := startBoth(t)
	m.exit = provider.Exit{Reason: provider.Crashed, Code: -1, Signal: "killed"}
	m.die() // the client stops the worker then, and so the other session
	require.Contains(t, lostText(t, r, 0), "killed")
	text := lostText(t, r, 1)
	require.Contains(t, text, "the machine's worker has ended with mycelya:0: ")
	require.Contains(t, text, "killed")
	require.Contains(t, text, "Call the machine's restart()")
}

func TestMachinesWithOneDevice(t *testing.T) {
	r, m := startMachine(t)
	m.single = true
	require.NoError(t, r.Open(1, besideIt, nil))
	ticket, err := r.Start(1)
	require.ErrorIs(t, err, ErrPending)
	require.ErrorContains(t, wait(t, r, ticket), "one stream")
	beside := func(at int32) Paths { return Paths{Request: provider.Request{Beside: at}} }
	require.ErrorContains(t, r.Open(2, beside(8), nil), "mycelya:7 is not open")
	require.ErrorContains(t, r.Open(2, beside(2), nil), "BUG")
}

// TestTheEndOfAMachine ends its other devices first.
func TestTheEndOfAMachine(t *testing.T) {
	r, _ := startBoth(t)
	r.Close(0)
	_, err := r.Sync(1, trace.Place{})
	require.ErrorContains(t, err, "mycelya:1, machine m (cpu), has been stopped")
}
