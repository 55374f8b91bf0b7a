// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package providertest is what every provider has to do. It is a library of tests; it asks a worker for no more than a
// Hello, and it never knows how a provider works.
package providertest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

const patience = 30 * time.Second

// Run runs every test. make gives a provider whose workers need no PyTorch; kill ends an instance's worker as a crash
// does; left lists what is left of stopped instances, processes and files: it must be nothing.
func Run(t *testing.T, make func(t *testing.T) provider.Provider, kill func(provider.Handle), left func(t *testing.T) []string) {
	started := func(t *testing.T) provider.Instance {
		in, err := make(t).Start(deadline(t), provider.Spec{Session: "test", Device: "cpu"})
		require.NoError(t, err)
		t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
		return in
	}
	empty := func(t *testing.T) { require.Empty(t, left(t)) }

	t.Run("hello", func(t *testing.T) {
		in := started(t)
		require.NotEmpty(t, in.Handle().ID)
		require.Equal(t, "test", in.Handle().Session)
		require.NoError(t, hello(t, in))
	})
	t.Run("many streams", func(t *testing.T) {
		in := started(t)
		var wg sync.WaitGroup
		errs := [8]error{}
		for i := range errs {
			wg.Go(func() { errs[i] = hello(t, in) })
		}
		wg.Wait()
		for _, err := range errs {
			require.NoError(t, err)
		}
	})
	t.Run("stop twice, at once", func(t *testing.T) {
		in := started(t)
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
		empty(t)
	})
	t.Run("crash", func(t *testing.T) {
		in := started(t)
		short, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
		defer cancel()
		_, err := in.Wait(short)
		require.ErrorIs(t, err, context.DeadlineExceeded, "it is running")
		kill(in.Handle())
		e, err := in.Wait(deadline(t))
		require.NoError(t, err)
		require.Equal(t, provider.Crashed, e.Reason)
		require.NotEmpty(t, e.String())
		_, err = in.Dial(deadline(t))
		require.ErrorIs(t, err, provider.ErrUnavailable)
		require.NoError(t, in.Stop(deadline(t), time.Second))
		empty(t)
	})
	t.Run("cancelled start", func(t *testing.T) {
		for _, after := range []time.Duration{0, time.Millisecond, 5 * time.Millisecond} {
			ctx, cancel := context.WithTimeout(context.Background(), after)
			in, err := make(t).Start(ctx, provider.Spec{})
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
			} else {
				require.NoError(t, in.Stop(context.Background(), time.Second))
			}
			empty(t)
		}
	})
	t.Run("dead context", func(t *testing.T) {
		in := started(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		require.NoError(t, in.Stop(ctx, time.Minute), "the caller is on its way out: the worker ends all the same")
		empty(t)
	})
	t.Run("impossible spec", func(t *testing.T) {
		for _, s := range []provider.Spec{{Device: "tpu:0"}, {Device: "cuda:-1"}, {Device: "cuda:x"}, {Device: "cuda:01"}, {Threads: -1}} {
			_, err := make(t).Start(deadline(t), s)
			require.ErrorIs(t, err, provider.ErrInvalidSpec)
		}
		empty(t)
	})
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// hello exchanges the first frames on a new stream.
func hello(t *testing.T, in provider.Instance) error {
	nc, err := in.Dial(deadline(t))
	if err != nil {
		return err
	}
	c := transport.New(nc)
	defer c.Close()
	if err := nc.SetDeadline(time.Now().Add(patience)); err != nil {
		return err
	}
	if err := c.Send(transport.Hello, 1, &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion}, nil); err != nil {
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
