// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

var (
	cuts = flag.Int("cuts", 300, "number of connections that the simulation cuts")
	seed = flag.Uint64("seed", 1, "of the simulation")
)

// pipe returns the two ends of a connection in memory. It ends when either end has written so many bytes; 0: never.
func pipe(fromClient, fromWorker int) (client, worker net.Conn) {
	a, b := net.Pipe()
	return newFragile(a, fromClient), newFragile(b, fromWorker)
}

func newFragile(c net.Conn, left int) *fragile { return &fragile{Conn: c, left: left, cuts: left > 0} }

type fragile struct {
	net.Conn
	mu   sync.Mutex
	left int
	cuts bool
}

func (f *fragile) Write(p []byte) (int, error) {
	f.mu.Lock()
	n, cut := len(p), false
	if f.cuts {
		if cut = n >= f.left; cut {
			n = f.left
		}
		f.left -= n
	}
	f.mu.Unlock()
	n, err := f.Conn.Write(p[:n])
	if cut && err == nil {
		_ = f.Close()
		err = io.ErrClosedPipe
	}
	return n, err
}

// bytesOf is a stream of bytes that depends on the seed only.
type bytesOf struct{ r *rand.Rand }

func (b bytesOf) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = byte(b.r.Uint32())
	}
	return len(p), nil
}

func stream(seed uint64) bytesOf { return bytesOf{rand.New(rand.NewPCG(seed, 7))} }

// send writes n bytes of a stream in pieces of random sizes.
func send(c net.Conn, r *rand.Rand, from io.Reader, n int) error {
	for n > 0 {
		size := 1 + r.IntN(300)
		if r.IntN(20) == 0 {
			size = 1 + r.IntN(200_000)
		}
		p := make([]byte, min(size, n))
		_, _ = from.Read(p)
		if _, err := c.Write(p); err != nil {
			return err
		}
		n -= len(p)
		if r.IntN(50) == 0 {
			time.Sleep(time.Duration(r.IntN(8000)) * time.Millisecond)
		}
	}
	return nil
}

// check reads n bytes and compares them with a stream.
func check(c net.Conn, r *rand.Rand, want io.Reader, n int) error {
	for at := 0; at < n; {
		p := make([]byte, min(1+r.IntN(70_000), n-at))
		k, err := c.Read(p)
		if err != nil {
			return err
		}
		w := make([]byte, k)
		_, _ = want.Read(w)
		if !bytes.Equal(w, p[:k]) {
			return fmt.Errorf("wrong bytes between %d and %d", at, at+k)
		}
		at += k
		if r.IntN(100) == 0 {
			time.Sleep(time.Duration(r.IntN(12_000)) * time.Millisecond)
		}
	}
	return nil
}

// world is a client and a worker of one stream.
type world struct {
	client, worker *transport.Credentials
	limits         Limits
	r              *rand.Rand
	cuts           int // that are left

	mu       sync.Mutex
	attached *Stream
	dials    int
}

// dial makes a connection to the worker, perhaps one that fails soon.
func (w *world) dial(ctx context.Context) (net.Conn, error) {
	w.mu.Lock()
	w.dials++
	a, b := 0, 0
	if w.cuts > 0 {
		w.cuts--
		a, b = 1+w.r.IntN(400_000), 1+w.r.IntN(400_000)
		if w.r.IntN(3) == 0 {
			a = 1 + w.r.IntN(4000)
		}
		if w.r.IntN(10) == 0 {
			w.mu.Unlock()
			return nil, errors.New("connection refused")
		}
	}
	w.mu.Unlock()
	near, far := pipe(a, b)
	go w.accept(far)
	c := w.client.ClientSide(near, transport.NewSessionName())
	if err := c.HandshakeContext(ctx); err != nil {
		_ = near.Close()
		return nil, err
	}
	return c, nil
}

func (w *world) accept(raw net.Conn) {
	c := w.worker.WorkerSide(raw)
	_ = c.SetDeadline(time.Now().Add(answerWait))
	if err := c.Handshake(); err != nil {
		_ = raw.Close()
		return
	}
	h, err := ReadHello(c)
	if err != nil {
		_ = raw.Close()
		return
	}
	w.mu.Lock()
	end := w.attached
	w.mu.Unlock()
	_ = end.Attach(c, h)
}

func newWorld(t *testing.T, seed uint64, l Limits, cuts int) *world {
	client, worker, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	return &world{client: client, worker: worker, limits: l, cuts: cuts, r: rand.New(rand.NewPCG(seed, 1)),
		attached: NewWorker(l)}
}

func (w *world) connect(t *testing.T) *Stream { return w.connectWith(t, nil) }

// connectWith connects with these first bytes, with as many streams as it takes: a client that gives up has sent
// nothing that counts.
func (w *world) connectWith(t *testing.T, first []byte) *Stream {
	for {
		s, err := Dial(t.Context(), w.limits, w.dial, first, func(Notice) {})
		if err == nil {
			return s
		}
		w.mu.Lock()
		w.attached.End(err)
		w.attached = NewWorker(w.limits)
		w.mu.Unlock()
	}
}

// TestSimulation: bytes go in both directions while the link is cut again and again, and arrive once and in order.
func TestSimulation(t *testing.T) {
	for round := range max(1, *cuts/100) {
		simulate(t, *seed+uint64(round), min(*cuts, 100))
	}
}

func simulate(t *testing.T, seed uint64, cuts int) {
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 2))
		l := Default
		l.Window = 1 << (10 + r.IntN(13))
		w := newWorld(t, seed, l, cuts)
		from := stream(seed)
		first := make([]byte, r.IntN(int(min(l.Window, MaxFirst))+1))
		_, _ = from.Read(first)
		c := w.connectWith(t, first)
		const up, down = 12_000_000, 9_000_000
		var all sync.WaitGroup
		errs := make([]error, 4)
		rs := make([]*rand.Rand, 4)
		for i := range rs {
			rs[i] = rand.New(rand.NewPCG(seed, uint64(10+i)))
		}
		all.Go(func() { errs[0] = send(c, rs[0], from, up-len(first)) })
		all.Go(func() { errs[1] = check(w.attached, rs[1], stream(seed), up) })
		all.Go(func() { errs[2] = send(w.attached, rs[2], stream(seed+1), down) })
		all.Go(func() { errs[3] = check(c, rs[3], stream(seed+1), down) })
		all.Wait()
		require.NoError(t, errors.Join(errs...), "seed %d", seed)
		require.NoError(t, c.CloseWrite())
		n, err := w.attached.Read(make([]byte, 1))
		require.Zero(t, n)
		require.Equal(t, io.EOF, err)
		_ = c.Close()
		_ = w.attached.Close()
		t.Logf("seed %d: window %d, %d connections", seed, l.Window, w.dials)
		synctest.Wait()
	})
}

// both makes a stream over connections that nothing cuts.
func both(t *testing.T, l Limits) (c, w *Stream, world *world) {
	world = newWorld(t, 1, l, 0)
	c = world.connect(t)
	synctest.Wait() // the worker's end has opened it too
	t.Cleanup(func() { _, _ = c.Close(), world.attached.Close() })
	return c, world.attached, world
}

// TestAConnectionIsToldBeforeItsBytes: who has read what came over a new connection has been told of it.
func TestAConnectionIsToldBeforeItsBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, Default, 0)
		var told atomic.Bool
		s, err := Dial(t.Context(), w.limits, w.dial, nil, func(n Notice) {
			if n.Up {
				time.Sleep(time.Second)
				told.Store(true)
			}
		})
		require.NoError(t, err)
		synctest.Wait()
		s.mu.Lock()
		_ = under(s.conn).Close()
		s.mu.Unlock()
		_, err = w.attached.Write([]byte{1})
		require.NoError(t, err)
		_, err = s.Read(make([]byte, 1))
		require.NoError(t, err)
		require.True(t, told.Load())
		part(s, w.attached)
	})
}

// part closes both ends of a link in a synctest bubble. If one end loses the connection meanwhile, it connects once
// more; the sleep lets the bubble's clock run until that is over, and takes no real time.
func part(client, worker *Stream) {
	_, _ = client.Close(), worker.Close()
	time.Sleep(time.Minute)
}

// TestFewBytesWaitForTheConnection: what is written during an upload is not behind a window of it.
func TestFewBytesWaitForTheConnection(t *testing.T) {
	s := NewState(Default, 0)
	require.EqualValues(t, Default.Window, s.Room(), "all may be written before there is a connection")
	s.Step(Event{Kind: Wrote, N: 10 * maxUnsent})
	s.Step(Event{Kind: Opened, Epoch: 1})
	require.Zero(t, s.Room())
	sent := uint64(0)
	for sent <= 9*maxUnsent {
		require.Zero(t, s.Room())
		r, _, ok := s.Next(0, func(uint64) int { return maxRecord })
		require.True(t, ok)
		sent += uint64(r.length)
	}
	require.EqualValues(t, sent-9*maxUnsent, s.Room())
	s.Step(Event{Kind: Dropped})
	require.EqualValues(t, Default.Window-10*maxUnsent, s.Room())
}

// TestOnlyAFullLinkHasARate: a session that sends little says nothing about its network.
func TestOnlyAFullLinkHasARate(t *testing.T) {
	s := NewState(Default, 0)
	s.Step(Event{Kind: Opened, Epoch: 1})
	send := func(at time.Duration, full bool) {
		before := s.written
		s.Step(Event{Kind: Wrote, At: at, N: 1000})
		for range 3 { // a ping is the first record
			s.Next(at, func(uint64) int { return 1000 })
		}
		s.Step(Event{Kind: Got, At: at + time.Second/5, Full: full, Record: record{kind: data, taken: before + 1000}})
	}
	send(0, false)
	require.Zero(t, s.Rate())
	send(time.Second, true)
	require.InDelta(t, 5000, s.Rate(), 1)
	send(2*time.Second, false)
	require.Equal(t, 1, s.rates.n)
}

func TestALinkThatGoesSilentIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, _ := both(t, Default)
		go func() { _, _ = io.Copy(w, w) }()
		talk := func() {
			_, err := c.Write([]byte("hello"))
			require.NoError(t, err)
			p := make([]byte, 5)
			_, err = io.ReadFull(c, p)
			require.NoError(t, err)
			require.Equal(t, "hello", string(p))
		}
		talk()
		require.EqualValues(t, 1, c.Measured().Connections)
		// From now on the connection takes bytes and delivers none.
		hole, _ := net.Pipe()
		c.mu.Lock()
		old := c.conn
		c.conn = hole
		c.mu.Unlock()
		began := time.Now()
		talk()
		require.EqualValues(t, 2, c.Measured().Connections)
		require.InDelta(t, Default.Silence.Seconds(), time.Since(began).Seconds(), Default.Beat.Seconds())
		_ = old.(*tls.Conn).NetConn().Close()
	})
}

func TestAStreamWithoutAConnectionEndsAfterTheGraceTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, world := both(t, Default)
		c.client.dial = func(context.Context) (net.Conn, error) { return nil, errors.New("no route") }
		began := time.Now()
		world.attached.mu.Lock()
		_ = under(world.attached.conn).Close()
		world.attached.mu.Unlock()
		for _, end := range []*Stream{c, w} {
			_, err := end.Read(make([]byte, 1))
			require.ErrorIs(t, err, ErrSilent)
			_, err = end.Write([]byte("x"))
			require.ErrorIs(t, err, ErrSilent)
		}
		require.InDelta(t, Default.Grace.Seconds(), time.Since(began).Seconds(), 2*Default.Beat.Seconds())
	})
}

// A reader that computes for minutes keeps its connection: pings have answers, and what comes meanwhile is kept.
func TestABusyReaderKeepsItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, _ := both(t, Default)
		const n = 3_000_000
		go func() { _ = send(c, rand.New(rand.NewPCG(1, 1)), stream(5), n) }()
		time.Sleep(10 * time.Minute)
		require.NoError(t, check(w, rand.New(rand.NewPCG(1, 2)), stream(5), n))
		require.EqualValues(t, 1, c.Measured().Connections)
		require.Zero(t, c.Measured().RTT, "the time of a pipe in memory")
	})
}

// Both ends write more than the window before they read.
func TestTwoWritersWhoDoNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := Default
		l.Window = 1 << 16
		c, w, _ := both(t, l)
		var all sync.WaitGroup
		for i, s := range []*Stream{c, w} {
			r := rand.New(rand.NewPCG(3, uint64(i)))
			all.Go(func() {
				half := make(chan error)
				go func() { half <- send(s, r, stream(uint64(i)), 1<<16) }()
				require.NoError(t, <-half)
				require.NoError(t, check(s, rand.New(rand.NewPCG(4, 1)), stream(uint64(1-i)), 1<<16))
			})
		}
		all.Wait()
		require.EqualValues(t, 1, c.Measured().Connections)
	})
}

func TestAWorkerThatHasForgottenTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, _ := both(t, Default)
		w.End(errors.New("the process has ended"))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, ErrUnknown)
	})
}

func TestCloseTellsTheOtherEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, _ := both(t, Default)
		_, err := c.Write([]byte("last"))
		require.NoError(t, err)
		go func() { time.Sleep(time.Second); _ = c.Close() }()
		p, err := io.ReadAll(w)
		require.NoError(t, err)
		require.Equal(t, "last", string(p))
		<-c.Done()
		_, err = c.Write([]byte("x"))
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// TestCloseWhileAnotherGoroutineSends: the other end is told so too, and does not wait for the grace time.
func TestCloseWhileAnotherGoroutineSends(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, _ := both(t, Default)
		c.writing.Lock()
		go func() { time.Sleep(byeWait / 2); c.writing.Unlock() }()
		go func() { _ = c.Close() }()
		began := time.Now()
		_, err := io.ReadAll(w)
		require.NoError(t, err)
		require.Equal(t, byeWait/2, time.Since(began))
	})
}

// What a reader holds back until it waits must go although a ping has come.
func TestOnWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, w, _ := both(t, Default)
		var waits atomic.Int64
		w.OnWait(func() (time.Duration, bool) { return 0, true }, func() { waits.Add(1) })
		go func() { _, _ = w.Read(make([]byte, 1)) }()
		synctest.Wait()
		before := waits.Load()
		require.NotZero(t, before)
		time.Sleep(2 * Default.Beat)
		synctest.Wait()
		require.Greater(t, waits.Load(), before)
		_, err := c.Write([]byte("x"))
		require.NoError(t, err)
		synctest.Wait()
	})
}

// Bytes that TLS has read ahead are there: a reader that lingers must not wait for others.
func TestLinger(t *testing.T) {
	c, w := linked(t)
	end := w.(*Stream)
	var sent atomic.Int64
	var linger atomic.Int64
	linger.Store(int64(time.Hour))
	end.OnWait(func() (time.Duration, bool) { return time.Duration(linger.Load()), true }, func() { sent.Add(1) })
	end.Sleep(true)
	for i := range 100 {
		for _, p := range []string{"a", "b"} {
			_, err := c.Write([]byte(p))
			require.NoError(t, err)
		}
		for range 2 {
			_, err := end.Read(make([]byte, 1))
			require.NoError(t, err)
		}
		if i == 0 {
			sent.Store(0) // the first read may have had no connection yet
		}
	}
	require.Zero(t, sent.Load())
	linger.Store(int64(time.Millisecond)) // nothing comes: what is held is sent
	read := make(chan error, 1)
	go func() {
		_, err := end.Read(make([]byte, 1))
		read <- err
	}()
	require.Eventually(t, func() bool { return sent.Load() > 0 }, 30*time.Second, time.Millisecond)
	_, err := c.Write([]byte("c"))
	require.NoError(t, err)
	require.NoError(t, <-read)
}

func TestDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _, _ := both(t, Default)
		require.NoError(t, c.SetDeadline(time.Now().Add(time.Minute)))
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	})
}

// distant is a connection whose writes arrive later, by the clock of a synctest bubble.
type distant struct{ net.Conn }

const distance = 20 * time.Millisecond

func (l distant) Write(p []byte) (int, error) {
	time.Sleep(distance)
	return l.Conn.Write(p)
}

// NetConn is the connection below TLS, which a link closes without a goodbye.
func (l distant) NetConn() net.Conn { return under(l.Conn) }

// TestTheFirstRTT: who asks for the time of a round trip as soon as there is a connection gets the measured one.
func TestTheFirstRTT(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, 1, Default, 0)
		c, err := Dial(t.Context(), w.limits, func(ctx context.Context) (net.Conn, error) {
			conn, err := w.dial(ctx)
			return distant{conn}, err
		}, nil, func(Notice) {})
		require.NoError(t, err)
		require.Zero(t, c.Measured().RTT)
		require.GreaterOrEqual(t, c.RTT(), distance.Seconds())
		part(c, w.attached)
		require.GreaterOrEqual(t, c.RTT(), distance.Seconds())
	})
}
