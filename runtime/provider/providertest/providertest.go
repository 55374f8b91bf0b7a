// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package providertest is the test suite that every provider must pass. It asks a worker for a Hello only, and never
// depends on how a provider works.
package providertest

import (
	"context"
	"crypto/rand"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const patience = time.Minute

// Suite is a provider to test.
type Suite struct {
	Make func(t *testing.T) provider.Provider // its workers need no PyTorch
	Kill func(provider.Handle)                // ends an instance's worker as a crash does
	Left func(t *testing.T) []string          // lists processes and files of ended instances: there must be none
	// Options are the provider's own.
	Options map[string]string
	// Detaches: the provider has workers that outlive their process. Their sessions begin with "providertest-".
	Detaches bool
	// OneStream: Dial works once, and the provider does not choose the worker's device.
	OneStream bool
}

// spec is a worker's, with a name.
func (s Suite) spec(session string) provider.Spec {
	out := provider.Spec{Session: session, Device: "cpu", Lease: time.Hour, Idle: time.Hour,
		Options: map[string]string{}}
	if s.OneStream {
		out.Device = ""
	}
	maps.Copy(out.Options, s.Options)
	return out
}

// detached is the spec of a worker that outlives its process.
func (s Suite) detached(t *testing.T) provider.Spec {
	out := s.spec("providertest-" + rand.Text())
	out.Detached = true
	// Whatever a test does, it leaves no worker.
	t.Cleanup(func() { s.sweep(t, out.Session) })
	return out
}

// sweep ends the workers with a name, and returns them.
func (s Suite) sweep(t *testing.T, session string) (out []provider.Found) {
	all, err := s.Make(t).Sweep(deadline(t), func(f provider.Found) bool { return f.Session == session })
	require.NoError(t, err)
	for _, f := range all {
		require.Equal(t, f.Session == session, f.Ended)
		if f.Ended {
			out = append(out, f)
		}
	}
	return out
}

// Run runs every test.
func (s Suite) Run(t *testing.T) {
	for _, test := range []struct {
		name string
		run  func(*testing.T)
	}{
		{"hello", s.hello},
		{"many streams", s.manyStreams},
		{"strangers", s.strangers},
		{"stop twice, at once", s.stopTwice},
		{"crash", s.crash},
		{"log", s.log},
		{"cancelled start", s.cancelledStart},
		{"dead context", s.deadContext},
		{"impossible spec", s.impossibleSpec},
		{"a stream is a net.Conn", s.conn},
		{"attach", s.attach},
		{"metrics", s.metrics},
		{"sweep", s.sweeps},
		{"lease", s.lease},
		{"idle", s.idle},
	} {
		t.Run(test.name, test.run)
	}
}

func (s Suite) nothingLeft(t *testing.T) {
	t.Helper()
	Gone(t, func() []string { return s.Left(t) })
}

func (s Suite) started(t *testing.T) provider.Instance {
	in, err := s.Make(t).Start(deadline(t), s.spec("test"))
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	return in
}

func (s Suite) hello(t *testing.T) {
	in := s.started(t)
	require.NotEmpty(t, in.Handle().ID)
	require.Equal(t, "test", in.Handle().Session)
	require.NoError(t, exchange(t, in))
}

func (s Suite) manyStreams(t *testing.T) {
	in := s.started(t)
	if s.OneStream {
		require.NoError(t, exchange(t, in))
		require.ErrorIs(t, exchange(t, in), provider.ErrUnavailable)
		return
	}
	var wg sync.WaitGroup
	errs := [8]error{}
	for i := range errs {
		wg.Go(func() { errs[i] = exchange(t, in) })
	}
	wg.Wait()
	for _, err := range errs {
		require.NoError(t, err)
	}
}

// strangers: a client without the instance's credentials gets no Hello, and the worker serves other clients as before.
// Only this user can reach an instance without credentials.
func (s Suite) strangers(t *testing.T) {
	in := s.started(t)
	if in.Credentials() == nil {
		return
	}
	other, _, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	require.ErrorIs(t, exchange(t, stranger{in, other}), provider.ErrAuth)
	nc, err := in.Dial(deadline(t))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetDeadline(time.Now().Add(patience)))
	require.NoError(t, transport.New(nc).Send(transport.Hello, 1, nil, nil))
	got, err := io.ReadAll(nc)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Empty(t, got)
	require.NoError(t, exchange(t, in))
}

// stranger is an instance that is met with other credentials.
type stranger struct {
	provider.Instance
	credentials *transport.Credentials
}

func (s stranger) Credentials() *transport.Credentials { return s.credentials }

func (s Suite) stopTwice(t *testing.T) {
	in := s.started(t)
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if err := in.Stop(deadline(t), 5*time.Second); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	require.NoError(t, in.Stop(deadline(t), 0))
	e, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Equal(t, provider.Done, e.Reason)
	_, err = in.Dial(deadline(t))
	require.ErrorIs(t, err, provider.ErrUnavailable)
	s.nothingLeft(t)
}

func (s Suite) crash(t *testing.T) {
	in := s.started(t)
	short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := in.Wait(short)
	require.ErrorIs(t, err, context.DeadlineExceeded, "the worker is running")
	s.Kill(in.Handle())
	e, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Equal(t, provider.Crashed, e.Reason)
	require.NotEmpty(t, e.String())
	_, err = in.Dial(deadline(t))
	require.ErrorIs(t, err, provider.ErrUnavailable)
	require.NoError(t, in.Stop(deadline(t), time.Second))
	s.nothingLeft(t)
}

// log: what a worker writes is read while it runs, and when it has ended. A worker with one stream has nothing to
// write.
func (s Suite) log(t *testing.T) {
	in := s.started(t)
	read := func() string {
		text, err := in.(provider.Logger).Logs(deadline(t))
		require.NoError(t, err)
		return text
	}
	line := ""
	if !s.OneStream {
		nc, err := in.Dial(deadline(t))
		require.NoError(t, err)
		require.NoError(t, nc.Close())
		line = "a connection is refused"
	}
	require.Eventually(t, func() bool { return strings.Contains(read(), line) }, patience, 20*time.Millisecond)
	s.Kill(in.Handle())
	_, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Contains(t, read(), line)
	require.NoError(t, in.Stop(deadline(t), time.Second))
	s.nothingLeft(t)
}

func (s Suite) cancelledStart(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		in, err := s.Make(t).Start(ctx, s.spec(""))
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		} else {
			require.NoError(t, in.Stop(context.Background(), time.Second))
		}
		s.nothingLeft(t)
	}
}

func (s Suite) deadContext(t *testing.T) {
	in := s.started(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, in.Stop(ctx, time.Minute), "the worker ends although the context has ended")
	s.nothingLeft(t)
}

func (s Suite) impossibleSpec(t *testing.T) {
	for _, spec := range []provider.Spec{
		{Device: "tpu:0"}, {Device: "cuda:-1"}, {Device: "cuda:x"}, {Device: "cuda:01"}, {Threads: -1},
		{Options: map[string]string{"no such option": "1"}},
	} {
		for name, value := range s.Options {
			if spec.Options == nil {
				spec.Options = map[string]string{}
			}
			spec.Options[name] = value
		}
		spec.Lease, spec.Idle = time.Hour, time.Hour
		_, err := s.Make(t).Start(deadline(t), spec)
		require.ErrorIs(t, err, provider.ErrInvalidSpec)
	}
	s.nothingLeft(t)
}

// conn: deadlines and Close of a stream end what waits for it.
func (s Suite) conn(t *testing.T) {
	in := s.started(t)
	nc, err := in.Dial(deadline(t))
	require.NoError(t, err)
	defer nc.Close()
	require.NoError(t, nc.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
	_, err = nc.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, nc.SetReadDeadline(time.Time{}))
	ended := make(chan error, 1)
	go func() {
		_, err := nc.Read(make([]byte, 1))
		ended <- err
	}()
	time.Sleep(10 * time.Millisecond)
	require.NoError(t, nc.Close())
	select {
	case err := <-ended:
		require.Error(t, err)
	case <-time.After(patience):
		t.Error("Close does not end a Read")
	}
	_, err = nc.Write([]byte{0})
	require.Error(t, err)
}

// attach: another process uses a worker by its name, and stops it.
func (s Suite) attach(t *testing.T) {
	_, err := s.Make(t).Attach(deadline(t), s.spec("providertest-nobody"))
	require.ErrorIs(t, err, provider.ErrNotFound)
	if !s.Detaches {
		return
	}
	spec := s.detached(t)
	first, err := s.Make(t).Start(deadline(t), spec)
	require.NoError(t, err)
	require.NoError(t, exchange(t, first))
	_, err = s.Make(t).Start(deadline(t), spec)
	require.ErrorIs(t, err, provider.ErrInvalidSpec, "a name has one machine")
	second, err := s.Make(t).Attach(deadline(t), s.spec(spec.Session))
	require.NoError(t, err)
	require.Equal(t, first.Handle(), second.Handle())
	require.NoError(t, exchange(t, second))
	require.NoError(t, second.Stop(deadline(t), time.Second))
	_, err = first.Wait(deadline(t))
	require.NoError(t, err)
	_, err = s.Make(t).Attach(deadline(t), s.spec(spec.Session))
	require.ErrorIs(t, err, provider.ErrNotFound)
}

// sweeps: a worker that nobody stops is found by another process, with what is known of it, and ended.
func (s Suite) sweeps(t *testing.T) {
	if !s.Detaches {
		all, err := s.Make(t).Sweep(deadline(t), func(provider.Found) bool { return true })
		require.NoError(t, err)
		require.Empty(t, all)
		return
	}
	spec := s.detached(t)
	in, err := s.Make(t).Start(deadline(t), spec)
	require.NoError(t, err)
	found := s.sweep(t, spec.Session)
	require.Len(t, found, 1)
	require.Equal(t, in.Handle(), found[0].Handle)
	require.WithinDuration(t, time.Now(), found[0].Since, time.Minute)
	require.WithinDuration(t, found[0].Since.Add(time.Hour), found[0].Until, time.Minute)
	_, err = in.Wait(deadline(t))
	require.NoError(t, err)
	require.Empty(t, s.sweep(t, spec.Session))
}

func (s Suite) lease(t *testing.T) {
	s.clock(t, provider.LeaseOver, 2*time.Second, func(spec *provider.Spec, d time.Duration) { spec.Lease = d })
}

func (s Suite) idle(t *testing.T) {
	s.clock(t, provider.IdleTooLong, time.Second, func(spec *provider.Spec, d time.Duration) { spec.Idle = d })
}

// clock: a worker ends by its clock although its client has forgotten it. A start on a slow machine may take longer
// than a short clock: the next one has more time.
func (s Suite) clock(t *testing.T, want provider.Reason, least time.Duration, set func(*provider.Spec, time.Duration)) {
	var in provider.Instance
	for d := least; in == nil; d *= 2 {
		spec := s.spec("test")
		if s.Detaches {
			spec = s.detached(t)
		}
		set(&spec, d)
		began := time.Now()
		var err error
		if in, err = s.Make(t).Start(deadline(t), spec); err != nil {
			require.Greater(t, time.Since(began), d, "%v", err)
			in = nil
		}
	}
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	e, err := in.Wait(deadline(t))
	require.NoError(t, err)
	require.Equal(t, want, e.Reason, e.Detail)
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// metrics: another process learns how a worker does while a client uses it. The client notices nothing.
func (s Suite) metrics(t *testing.T) {
	if s.OneStream {
		_, err := provider.Metrics(deadline(t), s.started(t))
		require.ErrorIs(t, err, provider.ErrUnavailable)
		require.ErrorContains(t, err, "has one stream, which its client uses")
		return
	}
	spec := s.spec("test")
	if s.Detaches {
		spec = s.detached(t)
	}
	in, err := s.Make(t).Start(deadline(t), spec)
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	other := in
	if s.Detaches {
		all, err := s.Make(t).Sweep(deadline(t), func(provider.Found) bool { return false })
		require.NoError(t, err)
		i := slices.IndexFunc(all, func(f provider.Found) bool { return f.Handle == in.Handle() })
		require.GreaterOrEqual(t, i, 0)
		require.True(t, all[i].Detached)
		other, err = s.Make(t).Attach(deadline(t), provider.Spec{Session: spec.Session, Options: all[i].Options})
		require.NoError(t, err, "what a sweep tells is enough to find it")
	}
	has := func(line string) {
		require.Eventually(t, func() bool {
			text, err := provider.Metrics(deadline(t), other)
			require.NoError(t, err)
			return strings.Contains(text, "\n"+line+"\n")
		}, patience, 20*time.Millisecond, line)
	}
	has("mycelya_sessions 0")
	c, err := hello(t, in)
	require.NoError(t, err)
	has("mycelya_sessions 1")
	require.NoError(t, c.Send(transport.Sync, 2, new(proto.Sync), nil))
	h, err := c.Next()
	require.NoError(t, err)
	require.Equal(t, transport.SyncReply, h.Type)
	c.Close()
}

// exchange exchanges Hellos on a new stream.
func exchange(t *testing.T, in provider.Instance) error {
	c, err := hello(t, in)
	if err == nil {
		c.Close()
	}
	return err
}

// hello opens a stream, and exchanges Hellos.
func hello(t *testing.T, in provider.Instance) (c *transport.Conn, err error) {
	ours := &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion}
	first, err := transport.Frame(transport.Hello, 1, ours)
	if err != nil {
		return nil, err
	}
	nc, err := provider.Open(deadline(t), in, transport.NewSessionName(), first, func(link.Notice) {})
	if err != nil {
		return nil, err
	}
	c = transport.New(nc)
	defer func() {
		if err != nil {
			c.Close()
		}
	}()
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	if _, err := c.Next(); err != nil {
		return nil, err
	}
	var h proto.Hello
	if err := c.Meta(&h); err != nil {
		return nil, err
	}
	if h.Error != "" {
		return nil, &provider.Error{Kind: provider.ErrUnavailable, Text: h.Error}
	}
	return c, nil
}
