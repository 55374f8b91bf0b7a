// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/http/httpproxy"
)

// The worker resolves names that the client and servers give, so a request could be aimed at services that only the
// worker's host can reach. A guard refuses that. It looks at the address of each connection, after the name was
// resolved, so a name that resolves to another address the next time does not pass.

// class says who can reach an address.
type class uint8

const (
	public   class = iota + 1
	private        // the worker's network
	loopback       // the worker's host
	never          // metadata of a cloud's machine, and what is no address of a server
)

var (
	// neverIn are link-local, reserved and multicast addresses, among them 169.254.169.254, and the addresses of
	// clouds' services for their machines.
	neverIn = prefixes("169.254.0.0/16", "fe80::/10", "0.0.0.0/8", "192.0.0.0/24", "224.0.0.0/4", "240.0.0.0/4",
		"ff00::/8", "::/128", "100.100.100.200/32", "168.63.129.16/32", "fd00:ec2::254/128", "fd20:ce::254/128")
	privateIn = prefixes("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "198.18.0.0/15", "fc00::/7",
		"fec0::/10")
	// Addresses of these networks contain an IPv4 address, from a byte on.
	translated = map[netip.Prefix]int{
		netip.MustParsePrefix("64:ff9b::/96"): 12, netip.MustParsePrefix("2002::/16"): 2, netip.MustParsePrefix("::/96"): 12,
	}
)

func prefixes(all ...string) (out []netip.Prefix) {
	for _, p := range all {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

// classOf is the class of an address.
func classOf(ip netip.Addr) class {
	ip = ip.Unmap().WithZone("")
	in := func(p netip.Prefix) bool { return p.Contains(ip) }
	switch {
	case ip.IsLoopback():
		return loopback
	case slices.ContainsFunc(neverIn, in):
		return never
	case slices.ContainsFunc(privateIn, in):
		return private
	}
	for p, at := range translated {
		if p.Contains(ip) {
			b := ip.As16()
			return classOf(netip.AddrFrom4([4]byte(b[at : at+4])))
		}
	}
	return public
}

// errRefused means that the guard refuses an address.
var errRefused = errors.New("its address is refused")

// guard makes the connections of one request.
type guard struct {
	endpoint string // host and port that the client has named
	proxies  []string
	dialer   net.Dialer

	mu    sync.Mutex
	class class // of the endpoint's address, once it is known
}

// newGuard returns the guard of a request to an endpoint. A proxy that the worker's environment names decides itself
// what it connects to.
func newGuard(endpoint *url.URL) *guard {
	g := &guard{endpoint: hostPort(endpoint), dialer: net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}}
	env := httpproxy.FromEnvironment()
	for _, text := range []string{env.HTTPProxy, env.HTTPSProxy} {
		if u, err := url.Parse(text); err == nil && u.Host != "" {
			g.proxies = append(g.proxies, hostPort(u))
		}
	}
	return g
}

// hostPort is the host and the port that a URL means.
func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"https": "443", "http": "80", "socks5": "1080"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

// dial connects to a host and port.
func (g *guard) dial(ctx context.Context, network, to string) (net.Conn, error) {
	d := g.dialer
	if to == g.endpoint || !slices.Contains(g.proxies, to) {
		d.ControlContext = func(_ context.Context, _, address string, _ syscall.RawConn) error {
			return g.admit(to, address)
		}
	}
	return d.DialContext(ctx, network, to)
}

// admit says whether a connection to a host may go to an address.
func (g *guard) admit(to, address string) error {
	at, err := netip.ParseAddrPort(address)
	if err != nil {
		return err
	}
	c := classOf(at.Addr())
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case c == never:
		return fmt.Errorf("%w: %v is not for servers of weights", errRefused, at.Addr())
	case to == g.endpoint:
		g.class = c
		return nil
	case c == public || c == g.class:
		return nil
	}
	return fmt.Errorf("%w: %v is inside the worker's network, and the hub's own server is not", errRefused, at.Addr())
}

// follows says whether a redirect may lead to an address.
func (g *guard) follows(u *url.URL) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	switch {
	case u.Host == "" || u.User != nil:
		return fmt.Errorf("%w: the redirect does not name a server", errRefused)
	case u.Scheme == "https", u.Scheme == "http" && (hostPort(u) == g.endpoint || g.class == loopback):
		return nil
	}
	return fmt.Errorf("%w: the redirect to %s is not https", errRefused, quote(u.Scheme+"://"+u.Host))
}

// client returns the HTTP client of a request. It follows no redirects.
func (g *guard) client(timeouts Timeouts) *http.Client {
	t := &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: g.dial, ForceAttemptHTTP2: false,
		MaxIdleConnsPerHost: parallel, IdleConnTimeout: time.Minute,
		TLSHandshakeTimeout: 30 * time.Second, ResponseHeaderTimeout: timeouts.Stall,
		MaxResponseHeaderBytes: 256 << 10, DisableCompression: true,
	}
	return &http.Client{
		Transport:     t,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}
