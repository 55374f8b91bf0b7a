// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/session"
)

// sessionOn connects to a session on a device, and returns the number of its process.
func (s *serving) sessionOn(t testing.TB, device string) (*client, uint64) {
	t.Helper()
	c := s.dial(t)
	hello := goodHello()
	hello.Device = device
	c.send(transport.Hello, hello, nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.Empty(t, h.Error)
	return c, h.Pid
}

// passTo passes all bytes of a storage, and returns the name.
func (c *client) passTo(to, id uint64, n int) string {
	c.t.Helper()
	name := rand.Text()
	r := c.ask(transport.Pass, &proto.Pass{Name: name, To: to, View: bytesOf(id, int64(n))})
	require.Nil(c.t, r.Status)
	require.Equal(c.t, uint64(n), r.Bytes)
	return name
}

func (c *client) take(name string, id uint64, n int) *proto.StateReply {
	c.t.Helper()
	return c.ask(transport.Take, &proto.Take{Name: name, Storage: id, Bytes: uint64(n)})
}

func TestPass(t *testing.T) {
	s, _ := supervise(t)
	a, _ := s.sessionOn(t, "")
	b, to := s.sessionOn(t, "cpu")
	for i, n := range []int{0, 1, 5, 70_000, 11<<20 + 1, 5} { // the last one in memory that has had other bytes
		id := uint64(i + 1)
		want := bytes.Repeat([]byte{byte(i + 1), 2, 3}, n)[:n]
		a.upload(id, want)
		name := a.passTo(to, id, n)
		r := b.take(name, id+100, n)
		require.Nil(t, r.Status)
		require.Equal(t, uint64(n), r.Bytes)
		if n > 0 {
			got, st := b.read(id+100, n)
			require.Nil(t, st)
			require.Equal(t, want, got)
		}
		require.Contains(t, b.take(name, id+200, n).Status.Text, "nothing was passed", "it was taken")
		_, st := b.read(id+200, 1)
		require.Contains(t, st.Text, "nothing was passed", "a read says why")
	}
	// The elements of a view, in row-major order.
	view := &proto.Read{Storage: 3, Dtype: 1, Sizes: []int64{2, 2}, Strides: []int64{1, 3}}
	r := a.ask(transport.Pass, &proto.Pass{Name: "0123456789abcdef", To: to, View: view})
	require.Equal(t, uint64(4), r.Bytes)
	require.Nil(t, b.take("0123456789abcdef", 300, 4).Status)
	got, _ := b.read(300, 4)
	require.Equal(t, []byte{3, 3, 2, 2}, got)
}

// TestOnlyTheNamedSessionTakes: others get the answer for a name that does not exist, and change nothing.
func TestOnlyTheNamedSessionTakes(t *testing.T) {
	s, _ := supervise(t)
	a, _ := s.sessionOn(t, "")
	b, to := s.sessionOn(t, "")
	thief, _ := s.sessionOn(t, "")
	a.upload(1, []byte("12345"))
	name := a.passTo(to, 1, 5)
	stolen := thief.take(name, 9, 5).Status.Text
	require.Equal(t, thief.take(rand.Text(), 10, 5).Status.Text, stolen)
	_, st := thief.read(9, 5)
	require.NotNil(t, st)
	require.NoError(t, a.c.Close()) // what it has passed stays
	require.Nil(t, b.take(name, 2, 5).Status)
	got, _ := b.read(2, 5)
	require.Equal(t, "12345", string(got))
}

func TestPassesThatFail(t *testing.T) {
	s, _ := supervise(t)
	a, own := s.sessionOn(t, "")
	b, to := s.sessionOn(t, "")
	a.upload(1, []byte("12345"))
	text := func(m *proto.Pass) string {
		r := a.ask(transport.Pass, m)
		require.NotNil(t, r.Status)
		return r.Status.Text
	}
	view := bytesOf(1, 5)
	require.Contains(t, text(&proto.Pass{Name: "short", To: to, View: view}), "16 to 100 bytes")
	require.Contains(t, text(&proto.Pass{Name: rand.Text(), To: 1, View: view}), "has ended")
	require.Contains(t, text(&proto.Pass{Name: rand.Text(), To: to, View: bytesOf(7, 5)}), "exist")
	require.NotEmpty(t, text(&proto.Pass{Name: rand.Text(), To: to, View: bytesOf(1, 6)}))
	require.Contains(t, text(&proto.Pass{Name: rand.Text(), To: to, View: bytesOf(1, 1<<30)}), "in parts")
	require.Contains(t, text(&proto.Pass{Name: rand.Text(), To: to, View: &proto.Read{Storage: 1, Dtype: 99}}), "passed")
	name := a.passTo(to, 1, 5)
	require.Contains(t, text(&proto.Pass{Name: name, To: to, View: view}), "the name exists")
	require.Contains(t, b.take(name, 2, 6).Status.Text, "there are 5")
	name = a.passTo(own, 1, 5) // to itself
	require.Nil(t, a.take(name, 0, 5).Status, "not wanted")
	require.Contains(t, a.take(name, 3, 5).Status.Text, "nothing was passed")

	// A program that has failed has not come so far.
	a.send(transport.Fail, &proto.Fail{Status: &proto.Status{Kind: proto.ErrValue, Text: "why"}}, nil)
	require.Equal(t, "why", text(&proto.Pass{Name: rand.Text(), To: to, View: view}))
	a.send(transport.Resume, &proto.Resume{}, nil)
	a.passTo(to, 1, 5)

	// The other session ends.
	require.NoError(t, b.c.Close())
	require.Eventually(t, func() bool { return !isRunning(int(to)) }, patience, time.Millisecond)
	require.Eventually(t, func() bool { // the supervisor notices it
		r := a.ask(transport.Pass, &proto.Pass{Name: rand.Text(), To: to, View: view})
		return strings.Contains(r.Status.GetText(), "has ended")
	}, patience, time.Millisecond)
}

// TestManyPasses: a client that never takes is stopped, and goes on when something is taken.
func TestManyPasses(t *testing.T) {
	s, _ := supervise(t)
	a, own := s.sessionOn(t, "")
	a.upload(1, []byte("1"))
	var names []string
	for {
		name := rand.Text()
		r := a.ask(transport.Pass, &proto.Pass{Name: name, To: own, View: bytesOf(1, 1)})
		if r.Status != nil {
			require.Contains(t, r.Status.Text, "on their way")
			break
		}
		names = append(names, name)
	}
	require.Len(t, names, 64)
	for range 100 {
		require.Nil(t, a.take(names[0], 0, 1).Status)
		names = append(names[1:], a.passTo(own, 1, 1))
	}
}

func TestBreachesOfPasses(t *testing.T) {
	s, _ := supervise(t)
	honest, _ := s.sessionOn(t, "")
	for name, breach := range map[string]func(c *client, own uint64){
		"no view": func(c *client, own uint64) {
			c.send(transport.Pass, &proto.Pass{Name: rand.Text(), To: own}, nil)
		},
		"a storage that exists": func(c *client, own uint64) {
			c.upload(3, []byte("1"))
			c.send(transport.Take, &proto.Take{Name: c.passTo(own, 3, 1), Storage: 3, Bytes: 1}, nil)
		},
		"a body": func(c *client, _ uint64) { c.send(transport.Take, &proto.Take{}, []byte("x")) },
	} {
		t.Run(name, func(t *testing.T) {
			c, own := s.sessionOn(t, "")
			breach(c, own)
			require.NotEmpty(t, c.fault())
			works(t, honest)
		})
	}
}

func TestDevicesThatAWorkerHasNot(t *testing.T) {
	s, _ := supervise(t)
	for device, want := range map[string]string{"cuda:0": `no device "cuda:0"`, "../../x": "no device",
		string(bytes.Repeat([]byte("x"), 99)): "at most 32 bytes"} {
		c := s.dial(t)
		hello := goodHello()
		hello.Device = device
		c.send(transport.Hello, hello, nil)
		require.Contains(t, c.fault(), want)
	}
	c, _ := s.sessionOn(t, "cpu")
	works(t, c)
}

// noMemory lends memory without pages, and has passed such memory.
type noMemory struct{ t testing.TB }

type hole struct{ b []byte }

func (n noMemory) hole() (hole, error) {
	f, err := os.CreateTemp(n.t.TempDir(), "empty")
	require.NoError(n.t, err)
	defer f.Close()
	b, err := unix.Mmap(int(f.Fd()), 0, 5, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	n.t.Cleanup(func() { _ = unix.Munmap(b) })
	return hole{b}, err
}

func (n noMemory) Lend(uint64) (session.Loan, error) { return n.hole() }

func (n noMemory) Take(name string) (session.Passed, error) {
	if name == "lost" {
		return nil, errors.New("the supervisor has ended")
	}
	return n.hole()
}

func (h hole) Memory() []byte          { return h.b }
func (hole) Pass(string, uint64) error { return errors.New("BUG: it was filled") }
func (hole) Drop()                     {}
func (hole) Close() error              { return nil }

func TestPassesWithoutMemory(t *testing.T) {
	s := start(t, &session.Server{Load: refBackend, Passer: noMemory{t}})
	c := s.connect(t)
	c.upload(1, []byte("12345"))
	r := c.ask(transport.Pass, &proto.Pass{Name: rand.Text(), View: bytesOf(1, 5)})
	require.Contains(t, r.Status.Text, "5 bytes cannot be copied to another device of the machine: the host has no memory")
	require.Nil(t, c.take("x", 2, 5).Status, "the storage has the error")
	_, st := c.read(2, 5)
	require.Contains(t, st.Text, "the host has no memory")
	require.Contains(t, c.take("lost", 3, 5).Status.Text, "the supervisor has ended")
	_, st = c.read(3, 5)
	require.Contains(t, st.Text, "the supervisor has ended")
	require.Equal(t, uint64(3), c.sync().Storages, "the session goes on")

	c = serve(t, refBackend, 0).connect(t)
	require.Contains(t, c.ask(transport.Pass, &proto.Pass{View: bytesOf(1, 5)}).Status.Text, "passes no tensors")
	require.Contains(t, c.take("x", 2, 5).Status.Text, "passes no tensors")
}
