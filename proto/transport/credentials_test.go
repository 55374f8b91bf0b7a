// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func mint(t testing.TB, lease time.Duration) (client, worker *Credentials) {
	client, worker, err := Mint(lease)
	require.NoError(t, err)
	return client, worker
}

// tcpPair is a TCP connection over loopback.
func tcpPair(t testing.TB) (client, server *net.TCPConn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	s, err := l.Accept()
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close(); _ = s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

// meet makes a handshake and sends a byte in each direction. It returns the errors of both ends.
func meet(t testing.TB, client, worker *tls.Config) (ofClient, ofWorker error) {
	c, s := tcpPair(t)
	use := func(conn *tls.Conn) error {
		defer conn.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		if err := conn.HandshakeContext(ctx); err != nil {
			return err
		}
		if _, err := conn.Write([]byte{1}); err != nil {
			return err
		}
		_, err := conn.Read(make([]byte, 1))
		return err
	}
	done := make(chan error)
	go func() { done <- use(tls.Server(s, worker)) }()
	ofClient = use(tls.Client(c, client))
	return ofClient, <-done
}

func TestWhoIsLetIn(t *testing.T) {
	client, worker := mint(t, time.Hour)
	otherClient, otherWorker := mint(t, time.Hour)
	expiredClient, expiredWorker := mint(t, -3*clockSkew)
	name := NewSessionName()
	with := func(c *tls.Config, change func(*tls.Config)) *tls.Config {
		change(c)
		return c
	}
	off := func(c *tls.Config, by time.Duration) *tls.Config { // by a clock that is wrong
		c.Time = func() time.Time { return time.Now().Add(by) }
		return c
	}
	for what, c := range map[string]struct {
		client, worker     *tls.Config
		ofClient, ofWorker string // parts of the errors
	}{
		"the right credentials": {client.Client(name), worker.Worker(), "", ""},
		"a question for an end": {client.Client(EndOf(name)), worker.Worker(), "", ""},
		"no certificate": {with(client.Client(name), func(c *tls.Config) { c.Certificates = nil }), worker.Worker(),
			"certificate required", "didn't provide a certificate"},
		"another client": {
			with(otherClient.Client(name), func(c *tls.Config) { c.RootCAs = client.Client(name).RootCAs }), worker.Worker(),
			"unknown certificate authority", "signed by unknown authority"},
		"another worker":       {client.Client(name), otherWorker.Worker(), "signed by unknown authority", "bad certificate"},
		"a worker as a client": {worker.Client(name), worker.Worker(), "bad certificate", "incompatible key usage"},
		"a client as a worker": {client.Client(name), client.Worker(), "certificate is not valid for any names", "bad cert"},
		"an end of the lease":  {expiredClient.Client(name), expiredWorker.Worker(), "has expired", "bad certificate"},
		"a worker 23 h late":   {client.Client(name), off(worker.Worker(), -23*time.Hour), "", ""},
		"a worker 23 h early":  {client.Client(name), off(worker.Worker(), 23*time.Hour), "", ""},
		"a worker two days late": {client.Client(name), off(worker.Worker(), -48*time.Hour),
			"expired certificate", "not yet valid"},
		"a client two days early": {off(client.Client(name), 48*time.Hour), worker.Worker(),
			"has expired", "bad certificate"},
		"a name that is not a session's": {
			with(client.Client(name), func(c *tls.Config) { c.ServerName = "example.org" }), worker.Worker(),
			"is valid for *", "bad certificate"},
		"an older version of TLS": {
			with(client.Client(name), func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }),
			worker.Worker(), "protocol version not supported", "unsupported versions"},
		"a stream that is not TLS": {nil, worker.Worker(), "", "does not look like a TLS handshake"},
	} {
		t.Run(what, func(t *testing.T) {
			if c.client == nil {
				a, b := tcpPair(t)
				_, err := a.Write([]byte("MYCL, and more bytes than a record's header has"))
				require.NoError(t, err)
				require.ErrorContains(t, tls.Server(b, c.worker).Handshake(), c.ofWorker)
				return
			}
			ofClient, ofWorker := meet(t, c.client, c.worker)
			requireError(t, ofClient, c.ofClient)
			requireError(t, ofWorker, c.ofWorker)
		})
	}
}

// requireError requires an error with this text in it; "": none.
func requireError(t testing.TB, err error, text string) {
	if text == "" {
		require.NoError(t, err)
	} else {
		require.ErrorContains(t, err, text)
	}
}

func TestCredentialsAsText(t *testing.T) {
	client, worker := mint(t, time.Hour)
	text, err := worker.Encode()
	require.NoError(t, err)
	parsed, err := ParseCredentials(text)
	require.NoError(t, err)
	ofClient, ofWorker := meet(t, client.Client(NewSessionName()), parsed.Worker())
	require.NoError(t, ofClient)
	require.NoError(t, ofWorker)

	_, other := mint(t, time.Hour)
	otherText, err := other.Encode()
	require.NoError(t, err)
	parts := bytes.SplitAfter(text, []byte("-----\n")) // begin and end lines end parts
	otherParts := bytes.SplitAfter(otherText, []byte("-----\n"))
	for what, bad := range map[string][]byte{
		"empty":             nil,
		"cut":               text[:len(text)/2],
		"more":              append(bytes.Clone(text), "more"...),
		"without a key":     bytes.Join([][]byte{parts[0], parts[1], parts[4], parts[5]}, nil),
		"another key":       bytes.Join([][]byte{parts[0], parts[1], otherParts[2], otherParts[3], parts[4], parts[5]}, nil),
		"another authority": bytes.Join([][]byte{parts[0], parts[1], parts[2], parts[3], otherParts[4], otherParts[5]}, nil),
	} {
		_, err := ParseCredentials(bad)
		require.ErrorIs(t, err, ErrCredentials, what)
		for line := range strings.Lines(string(text)) {
			require.NotContains(t, err.Error(), strings.TrimSpace(line), what)
		}
	}
}

// TestPeek: the first bytes tell the type of a frame or the name of a session, and stay unread.
func TestPeek(t *testing.T) {
	client, worker := mint(t, time.Hour)
	for _, name := range []string{NewSessionName(), EndOf(NewSessionName())} {
		c, s := tcpPair(t)
		errs := make(chan error, 1)
		go func() { errs <- tls.Client(c, client.Client(name)).Handshake() }()
		got, err := PeekName(s)
		require.NoError(t, err)
		require.Equal(t, name, got)
		require.NoError(t, tls.Server(s, worker.Worker()).Handshake())
		require.NoError(t, <-errs)
	}
	c, s := tcpPair(t)
	require.NoError(t, New(c).Send(Ended, 0, nil, nil))
	got, err := PeekType(s)
	require.NoError(t, err)
	require.Equal(t, Ended, got)
	_, err = PeekName(s)
	require.ErrorIs(t, err, errNotTLS)
}

// TestPeekOfPieces: a message may come in pieces. A client that sends no more is not waited for beyond the deadline.
func TestPeekOfPieces(t *testing.T) {
	client, _ := mint(t, time.Hour)
	name := NewSessionName()
	hello := helloOf(t, client.Client(name))
	for _, n := range []int{1, recordBytes, 200, len(hello) - 1} {
		c, s := tcpPair(t)
		_, err := c.Write(hello[:n])
		require.NoError(t, err)
		require.NoError(t, s.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		_, err = PeekName(s)
		require.ErrorContains(t, err, "timeout")
		require.NoError(t, s.SetReadDeadline(time.Now().Add(10*time.Second)))
		go func() { _, _ = c.Write(hello[n:]) }()
		got, err := PeekName(s)
		require.NoError(t, err)
		require.Equal(t, name, got)
	}
	for _, config := range []*tls.Config{{ServerName: "example.org"}, {InsecureSkipVerify: true}} {
		_, err := nameIn(helloOf(t, config))
		require.ErrorContains(t, err, "not a session")
	}
}

// helloOf is the first message of a TLS client.
func helloOf(t testing.TB, config *tls.Config) []byte {
	c, s := tcpPair(t)
	go func() { _ = tls.Client(c, config).Handshake() }()
	b := make([]byte, maxClientHello)
	n, err := s.Read(b)
	require.NoError(t, err)
	return b[:n]
}

func FuzzName(f *testing.F) {
	client, _ := mint(f, time.Hour)
	f.Add(helloOf(f, client.Client(NewSessionName())))
	f.Add([]byte{recordHandshake, 3, 1, 0, 0})
	f.Fuzz(func(t *testing.T, hello []byte) {
		if name, err := nameIn(hello); err == nil {
			require.True(t, validName(name))
		}
	})
}

func FuzzParseCredentials(f *testing.F) {
	_, worker := mint(f, time.Hour)
	text, err := worker.Encode()
	require.NoError(f, err)
	f.Add(text)
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := ParseCredentials(text); err == nil {
			_ = c.Worker()
		} else {
			require.ErrorIs(t, err, ErrCredentials)
		}
	})
}
