// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/modal/fakeplane"
	"github.com/mycelya/mycelya/tests/trips/count"
)

// attached attaches to a machine of this host.
func attached(t *testing.T, name string) *instance {
	t.Helper()
	in, err := refProvider().Attach(within(t), detached(name))
	require.NoError(t, err)
	return in.(*instance)
}

// opens opens a session, whose Hello goes with its first connection.
func opens(t *testing.T, in provider.Instance) {
	t.Helper()
	ours := &proto.Hello{Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion}
	first, err := transport.Frame(transport.Hello, 1, ours)
	require.NoError(t, err)
	c, err := provider.Open(within(t), in, transport.NewSessionName(), first, func(link.Notice) {})
	require.NoError(t, err)
	conn := transport.New(c)
	defer conn.Close()
	var theirs proto.Hello
	_, err = conn.Next()
	require.NoError(t, err)
	require.NoError(t, conn.Meta(&theirs))
	require.Empty(t, theirs.Error)
}

// TestAttachingIsThreeRoundTrips: an attach asks Modal only, and the session's connection is the first to the worker.
func TestAttachingIsThreeRoundTrips(t *testing.T) {
	plane := newPlane(t)
	started(t, detached("near"))
	plane.Inject(func(f *fakeplane.Faults) { f.BlockRaw, f.BlockTLS = true, true })
	in := attached(t, "near")
	plane.Inject(func(f *fakeplane.Faults) { f.BlockRaw, f.BlockTLS = false, false })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	counter := new(count.Counter)
	behind := in.tunnels.raw
	go func() { _ = count.Line{Delay: 5 * time.Millisecond, Counter: counter}.Serve(l, "tcp", behind) }()
	in.tunnels.raw = l.Addr().String()
	opens(t, in)
	require.Equal(t, 3, counter.Result().Trips, "TCP, TLS, Hello")
	require.Equal(t, 1, counter.Result().Connections)
}

// TestAttachWithOneBlockedTunnel: a tunnel that opens and carries nothing costs one wait, once.
func TestAttachWithOneBlockedTunnel(t *testing.T) {
	plane := newPlane(t)
	started(t, detached("half"))
	plane.Inject(func(f *fakeplane.Faults) { f.BlockRaw = true })
	in := attached(t, "half")
	require.False(t, in.tunnels.second.Load())
	opens(t, in)
	require.True(t, in.tunnels.second.Load())
}

// TestAttachWithoutAWay: the error names both ways.
func TestAttachWithoutAWay(t *testing.T) {
	plane := newPlane(t)
	started(t, detached("none"))
	plane.Inject(func(f *fakeplane.Faults) { f.BlockRaw, f.BlockTLS = true, true })
	in := attached(t, "none")
	in.tunnels.wait = 50 * time.Millisecond
	_, err := provider.Connect(within(t), in, transport.NewSessionName())
	require.ErrorIs(t, err, provider.ErrUnavailable)
	require.ErrorContains(t, err, "this host cannot reach it: ")
	require.ErrorContains(t, err, in.tunnels.raw)
	require.ErrorContains(t, err, in.tunnels.secure)
}
