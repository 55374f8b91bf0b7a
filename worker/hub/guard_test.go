// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"net/netip"
	"net/url"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestClassOf(t *testing.T) {
	for text, want := range map[string]class{
		"8.8.8.8": public, "2606:4700::1": public, "64:ff9b::808:808": public,
		"127.0.0.1": loopback, "127.9.9.9": loopback, "::1": loopback, "::ffff:127.0.0.1": loopback,
		"64:ff9b::7f00:1": loopback,
		"10.1.2.3":        private, "172.16.0.1": private, "172.31.255.255": private, "192.168.1.1": private,
		"100.64.0.1": private, "fd12::1": private, "::ffff:10.0.0.1": private, "2002:a00:1::": private,
		"169.254.169.254": never, "169.254.170.2": never, "fe80::1": never, "fe80::1%eth0": never, "0.0.0.0": never,
		"::": never, "224.0.0.1": never, "ff02::1": never, "255.255.255.255": never, "100.100.100.200": never,
		"168.63.129.16": never, "192.0.0.192": never, "fd00:ec2::254": never, "::ffff:169.254.169.254": never,
		"64:ff9b::a9fe:a9fe": never, "2002:a9fe:a9fe::": never, "172.32.0.1": public,
	} {
		require.Equal(t, want, classOf(netip.MustParseAddr(text)), text)
	}
}

// TestWhereConnectionsGo: the endpoint says whether connections may go into the worker's network.
func TestWhereConnectionsGo(t *testing.T) {
	for _, c := range []struct {
		endpoint, to string
		ok           bool
	}{
		{"8.8.8.8", "8.8.4.4", true}, {"8.8.8.8", "10.0.0.1", false}, {"8.8.8.8", "127.0.0.1", false},
		{"8.8.8.8", "169.254.169.254", false}, {"10.0.0.1", "192.168.0.1", true}, {"10.0.0.1", "127.0.0.1", false},
		{"10.0.0.1", "8.8.8.8", true}, {"127.0.0.1", "127.0.0.1", true}, {"127.0.0.1", "10.0.0.1", false},
		{"127.0.0.1", "169.254.169.254", false},
	} {
		u, err := url.Parse("https://hub.example")
		require.NoError(t, err)
		g := newGuard(u)
		require.ErrorIs(t, g.admit("cdn.example:443", "127.0.0.1:443"), errRefused, "before the endpoint is known")
		require.NoError(t, g.admit("hub.example:443", c.endpoint+":443"))
		err = g.admit("cdn.example:443", c.to+":443")
		require.Equal(t, c.ok, err == nil, "%v: %v", c, err)
	}
	u, err := url.Parse("https://hub.example")
	require.NoError(t, err)
	require.ErrorIs(t, newGuard(u).admit("hub.example:443", "169.254.169.254:443"), errRefused)
}

func TestRedirectsToPlainHTTP(t *testing.T) {
	at := func(text string) *url.URL {
		u, err := url.Parse(text)
		require.NoError(t, err)
		return u
	}
	g := newGuard(at("https://hub.example"))
	require.NoError(t, g.follows(at("https://cdn.example/x")))
	require.ErrorIs(t, g.follows(at("http://cdn.example/x")), errRefused)
	require.ErrorIs(t, g.follows(at("http://hub.example/x")), errRefused)
	g = newGuard(at("http://hub.example"))
	require.NoError(t, g.follows(at("http://hub.example/x")))
	require.ErrorIs(t, g.follows(at("http://cdn.example/x")), errRefused)
}
