// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/supervisor"
)

// remote is a supervisor with credentials, on a TCP port or a unix socket.
type remote struct {
	network     string
	addr        string
	log         *logBuffer
	credentials *transport.Credentials // of the client
	supervisor  *supervisor.Supervisor
}

func superviseRemote(t testing.TB) *remote {
	t.Helper()
	r, l := newRemote(t)
	serveUntilTheEnd(t, r.supervisor, l)
	return r
}

// newRemote makes a supervisor on a TCP port, and its listener.
func newRemote(t testing.TB) (*remote, net.Listener) {
	t.Helper()
	return newRemoteOn(t, "tcp", "127.0.0.1:0")
}

func newRemoteOn(t testing.TB, network, address string) (*remote, net.Listener) {
	t.Helper()
	l, err := net.Listen(network, address)
	require.NoError(t, err)
	client, ours, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	r := &remote{network: network, addr: l.Addr().String(), log: &logBuffer{}, credentials: client}
	r.supervisor = &supervisor.Supervisor{
		Command: func() *exec.Cmd { return exec.Command(os.Args[0], sessionArgument, secureArgument) },
		Log:     slog.New(slog.NewTextHandler(r.log, nil)), Output: r.log, Credentials: ours,
	}
	return r, l
}

// raw is a connection without TLS.
func (r *remote) raw(t testing.TB) net.Conn {
	t.Helper()
	c, err := net.Dial(r.network, r.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	return c
}

// link opens the link of a session.
func (r *remote) link(t testing.TB, name string) (*link.Stream, error) {
	dial := func(ctx context.Context) (net.Conn, error) {
		c, err := (&net.Dialer{}).DialContext(ctx, r.network, r.addr)
		if err != nil {
			return nil, err
		}
		secure := r.credentials.ClientSide(c, name)
		return secure, secure.HandshakeContext(ctx)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	s, err := link.Dial(ctx, link.Default, dial, nil, func(link.Notice) {})
	if err == nil {
		t.Cleanup(func() { _ = s.Close() })
	}
	return s, err
}

// session connects to the session with this name and returns the number of its process.
func (r *remote) session(t testing.TB, name string) (*client, int) {
	t.Helper()
	s, err := r.link(t, name)
	require.NoError(t, err)
	return helloOf(t, s)
}

// helloOf exchanges Hellos over the link of a session, and returns the number of its process.
func helloOf(t testing.TB, s *link.Stream) (*client, int) {
	t.Helper()
	c := clientOf(t, s)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.Empty(t, h.Error)
	return c, int(h.Pid)
}

// refused makes a handshake and requires that nothing comes from it.
func (r *remote) refused(t testing.TB, config *tls.Config) {
	t.Helper()
	raw := r.raw(t)
	defer raw.Close()
	c := tls.Client(raw, config)
	if c.Handshake() == nil {
		_ = transport.New(c).Send(transport.Hello, 0, goodHello(), nil)
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	}
}

// works requires that a session computes.
func works(t testing.TB, c *client) {
	t.Helper()
	c.send(transport.Program, sent(1, unary("aten::relu")), nil)
	c.upload(1, f32(1, -2))
	require.Zero(t, c.call(callOf(1, 2, 1, 2)).Failed)
	got, st := c.read(2, 8)
	require.Nil(t, st)
	require.Equal(t, f32(1, 0), got)
	c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{1, 2}}, nil)
}

func TestSessionsOverTCP(t *testing.T) {
	r := superviseRemote(t)
	first, a := r.session(t, transport.NewSessionName())
	second, b := r.session(t, transport.NewSessionName())
	require.NotEqual(t, a, b)
	works(t, first)
	works(t, second)
	require.NoError(t, first.c.Close())
	require.Eventually(t, func() bool { return !isRunning(a) }, time.Minute, time.Millisecond)
	works(t, second)
	big := bytes.Repeat([]byte{1, 2, 3, 4}, 1<<20)
	second.upload(3, big)
	got, st := second.read(3, len(big))
	require.Nil(t, st)
	require.Equal(t, big, got)
}

// TestNobodyElseIsLetIn: who has not the client's credentials learns nothing, and no session and no new client notices.
func TestNobodyElseIsLetIn(t *testing.T) {
	r := superviseRemote(t)
	name := transport.NewSessionName()
	first, _ := r.session(t, name)
	stranger, other, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	with := func(config *tls.Config, change func(*tls.Config)) *tls.Config {
		change(config)
		return config
	}
	trusting := func(c *tls.Config) { c.RootCAs = r.credentials.Client(name).RootCAs }
	for _, n := range []string{name, transport.NewSessionName(), transport.EndOf(name)} {
		for what, config := range map[string]*tls.Config{
			"another client": with(stranger.Client(n), trusting),
			"another worker": with(other.Client(n), trusting),
			"no certificate": with(r.credentials.Client(n), func(c *tls.Config) { c.Certificates = nil }),
			"no name":        with(r.credentials.Client(n), func(c *tls.Config) { c.ServerName = "example.org" }),
			"TLS 1.2": with(r.credentials.Client(n), func(c *tls.Config) {
				c.MinVersion, c.MaxVersion = 0, tls.VersionTLS12
			}),
		} {
			t.Run(what, func(t *testing.T) { r.refused(t, config) })
		}
	}
	for _, junk := range []string{
		"GET / HTTP/1.1\r\n\r\n", "MYCL and more than a record", strings.Repeat("\x16\x03\x03\xff\xff", 1<<12),
	} {
		c := r.raw(t)
		_, err := c.Write([]byte(junk))
		require.NoError(t, err)
		_ = c.(*net.TCPConn).CloseWrite() // the worker may have closed it already
		got, _ := io.ReadAll(c)
		require.Empty(t, got)
	}
	works(t, first)
	second, _ := r.session(t, transport.NewSessionName())
	works(t, second)
	secret, err := r.credentials.Encode()
	require.NoError(t, err)
	for line := range strings.Lines(string(secret)) {
		require.NotContains(t, r.log.String(), strings.TrimSpace(line))
	}
	require.Contains(t, r.log.String(), "signed by unknown authority")
}

// TestASessionHasOneClient: a second client that has the credentials and knows the name does not get into a session.
func TestASessionHasOneClient(t *testing.T) {
	r := superviseRemote(t)
	name := transport.NewSessionName()
	first, _ := r.session(t, name)
	_, err := r.link(t, name)
	require.ErrorIs(t, err, link.ErrReplaced)
	works(t, first)
	const late = "MYLK\x01\x00\x00\x00\xff\x00\x00\x00\x00\x00\x00\x00" // the connection of epoch 255
	for what, hello := range map[string]string{
		"more than was sent": late + strings.Repeat("\xff", 8) + strings.Repeat("\x00", 8),
		"less than it took":  late + strings.Repeat("\x00", 16),
		"no hello":           strings.Repeat("x", 32),
		"a part of a hello":  "MYLK",
	} {
		t.Run(what, func(t *testing.T) {
			c := tls.Client(r.raw(t), r.credentials.Client(name))
			_, err := c.Write([]byte(hello))
			require.NoError(t, err)
			require.NoError(t, c.CloseWrite())
			answer, _ := io.ReadAll(c)
			if len(answer) > 0 {
				require.Equal(t, byte(link.Unknown), answer[5])
			}
			works(t, first)
		})
	}
}

// TestALostConnection: the session goes on after its connection was cut, also when a reply was under way.
func TestALostConnection(t *testing.T) {
	r := superviseRemote(t)
	s, err := r.link(t, transport.NewSessionName())
	require.NoError(t, err)
	c := clientOf(t, s)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	big := bytes.Repeat([]byte{1, 2, 3, 4}, 1<<20)
	c.upload(9, big)
	for i := range 20 {
		done := make(chan struct{})
		go func() {
			defer close(done)
			time.Sleep(time.Duration(i) * time.Millisecond / 4)
			if at, ok := s.NetConn().(*tls.Conn); ok {
				_ = at.NetConn().Close()
			}
		}()
		works(t, c)
		got, st := c.read(9, len(big))
		require.Nil(t, st)
		require.Equal(t, big, got)
		<-done
	}
	require.Greater(t, s.Measured().Connections, uint64(10))
}

// TestSilentConnectionsKeepNobodyOut: neither those without a byte, nor those with a part of a handshake.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	r := superviseRemote(t)
	first, _ := r.session(t, transport.NewSessionName()) // takes the process that was started ahead
	quick := false
	for try := 0; !quick && try < 5; try++ { // a slow machine may need long for other reasons
		r.silences(t)
		began := time.Now()
		second, pid := r.session(t, transport.NewSessionName())
		quick = time.Since(began) < 9*time.Second
		works(t, second)
		works(t, first)
		if !quick {
			require.NoError(t, second.c.Close())
			require.Eventually(t, func() bool { return !isRunning(pid) }, patience, time.Millisecond)
		}
	}
	require.True(t, quick, "each new client has waited for the deadline of the silent connections")
	require.LessOrEqual(t, len(children(t)), 3, "two sessions, and one process for all others")
}

// silences opens connections that say nothing, or a part of what they must say.
func (r *remote) silences(t testing.TB) {
	t.Helper()
	for i := range 200 {
		c := r.raw(t)
		if i%2 == 0 {
			_, err := c.Write([]byte{22, 3, 1, 2, 0, 1})
			require.NoError(t, err)
		}
	}
	for range 40 { // whole first messages, and then silence
		c := r.raw(t)
		go func() {
			_ = tls.Client(silent{c}, r.credentials.Client(transport.NewSessionName())).Handshake()
		}()
	}
}

// silent sends what TLS writes first, and then nothing more.
type silent struct{ net.Conn }

func (s silent) Read([]byte) (int, error) { select {} }

func TestTheEndOfASessionOverTCP(t *testing.T) {
	r := superviseRemote(t)
	name := transport.NewSessionName()
	c, pid := r.session(t, name)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
	_, err := c.c.Next()
	require.Error(t, err)
	end := r.end(t, name)
	require.True(t, end.Ended)
	require.Equal(t, uint64(pid), end.Pid)
	require.Equal(t, "segmentation fault", end.Signal)
	require.False(t, r.asked(t, transport.NewSessionName()).Ended, "not a session of this worker")
}

// end asks how the process of a session has ended, until it has.
func (r *remote) end(t testing.TB, name string) *proto.EndedReply {
	t.Helper()
	return ended(t, func() *proto.EndedReply { return r.asked(t, name) })
}

// asked asks once how the process of a session has ended.
func (r *remote) asked(t testing.TB, name string) *proto.EndedReply {
	t.Helper()
	q := clientOf(t, tls.Client(r.raw(t), r.credentials.Client(transport.EndOf(name))))
	var reply proto.EndedReply
	q.expect(transport.EndedReply, q.send(transport.Ended, &proto.Ended{}, nil), &reply)
	return &reply
}
