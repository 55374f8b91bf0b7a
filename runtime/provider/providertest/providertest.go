// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package providertest is the test suite that every provider must pass. It asks a worker for a Hello only, and never
// depends on how a provider works.
package providertest

import (
	"context"
	"io"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const patience = 30 * time.Second

// Suite is a provider to test.
type Suite struct {
	Make func(t *testing.T) provider.Provider // its workers need no PyTorch
	Kill func(provider.Handle)                // ends an instance's worker as a crash does
	Left func(t *testing.T) []string          // lists processes and files of ended instances: there must be none
	// Options are the provider's own.
	Options map[string]string
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
		{"cancelled start", s.cancelledStart},
		{"dead context", s.deadContext},
		{"impossible spec", s.impossibleSpec},
	} {
		t.Run(test.name, test.run)
	}
}

func (s Suite) started(t *testing.T) provider.Instance {
	in, err := s.Make(t).Start(deadline(t), provider.Spec{Session: "test", Device: "cpu", Options: s.Options})
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
	require.Empty(t, s.Left(t))
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
	require.Empty(t, s.Left(t))
}

func (s Suite) cancelledStart(t *testing.T) {
	for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
		ctx, cancel := context.WithTimeout(context.Background(), after)
		in, err := s.Make(t).Start(ctx, provider.Spec{Options: s.Options})
		cancel()
		if err != nil {
			require.ErrorIs(t, err, context.DeadlineExceeded)
		} else {
			require.NoError(t, in.Stop(context.Background(), time.Second))
		}
		require.Empty(t, s.Left(t))
	}
}

func (s Suite) deadContext(t *testing.T) {
	in := s.started(t)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, in.Stop(ctx, time.Minute), "the worker ends although the context has ended")
	require.Empty(t, s.Left(t))
}

func (s Suite) impossibleSpec(t *testing.T) {
	for _, spec := range []provider.Spec{
		{Device: "tpu:0"}, {Device: "cuda:-1"}, {Device: "cuda:x"}, {Device: "cuda:01"}, {Threads: -1},
		{Options: map[string]string{"no such option": "1"}},
	} {
		_, err := s.Make(t).Start(deadline(t), spec)
		require.ErrorIs(t, err, provider.ErrInvalidSpec)
	}
	require.Empty(t, s.Left(t))
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// exchange exchanges Hellos on a new stream.
func exchange(t *testing.T, in provider.Instance) error {
	nc, err := provider.Open(deadline(t), in, transport.NewSessionName(), func(link.Notice) {})
	if err != nil {
		return err
	}
	c := transport.New(nc)
	defer c.Close()
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	ours := &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion}
	if err := c.Send(transport.Hello, 1, ours, nil); err != nil {
		return err
	}
	if _, err := c.Next(); err != nil {
		return err
	}
	var h proto.Hello
	if err := c.Meta(&h); err != nil {
		return err
	}
	if h.Error != "" {
		return &provider.Error{Kind: provider.ErrUnavailable, Text: h.Error}
	}
	return nil
}
