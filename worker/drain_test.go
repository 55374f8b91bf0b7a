// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"context"
	"crypto/tls"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
	"github.com/mycelya/mycelya/proto/transport"
)

const stopped = "The worker is being stopped."

// eachWay runs a test with a session over a unix socket and one over TCP.
func eachWay(t *testing.T, test func(t *testing.T, r *running, c *client, pid int), args ...string) {
	t.Run("unix socket", func(t *testing.T) {
		r, s := runUnix(t, args...)
		c, pid := s.session(t)
		test(t, r, c, pid)
	})
	t.Run("TCP", func(t *testing.T) {
		r, at := runRemote(t, args...)
		c, pid := at.session(t, transport.NewSessionName())
		test(t, r, c, pid)
	})
}

// TestAStoppedWorkerAnswersWhatHasArrived: all calls that were sent before the signal run, and have answers.
func TestAStoppedWorkerAnswersWhatHasArrived(t *testing.T) {
	const n, calls = 1000, 40
	eachWay(t, func(t *testing.T, r *running, c *client, pid int) {
		c.upload(1, make([]byte, 4*n))
		c.send(transport.Program, sent(1, chain(300)), nil)
		first := c.seq + 1
		for i := range uint64(calls) {
			c.send(transport.Call, callOf(1, n, 1+i, 2+i), nil)
		}
		read := c.send(transport.Read, &proto.Read{Storage: 1 + calls, Dtype: 7, Sizes: []int64{n}, Strides: []int64{1}}, nil)
		c.expect(transport.Done, first, new(proto.Done)) // all calls have arrived
		r.signal(t, syscall.SIGTERM)
		for i := range uint64(calls - 1) {
			var d proto.Done
			c.expect(transport.Done, first+1+i, &d)
			require.Empty(t, d.Errors)
		}
		var reply proto.ReadReply
		require.EqualValues(t, 4*n, c.expect(transport.ReadReply, read, &reply).Payload)
		require.Equal(t, stopped, c.fault())
		require.NoError(t, c.c.Close())
		require.Zero(t, r.ends(t))
		require.False(t, isRunning(pid))
		require.NotContains(t, r.log.String(), "ERROR")
	}, "--drain", "1m")
}

func TestTorchIsDrained(t *testing.T) {
	r, s := runUnix(t, append(withTorch(t), "--drain", "1m")...)
	c, _ := s.session(t)
	works(t, c)
	r.signal(t, syscall.SIGTERM)
	require.Equal(t, stopped, c.fault())
	require.NoError(t, c.c.Close())
	require.Zero(t, r.ends(t))
}

// TestADrainIsShort: no client holds a worker up: not one that is idle, not one that never stops sending, and not one
// that has sent a part of a frame.
func TestADrainIsShort(t *testing.T) {
	for name, does := range map[string]func(t *testing.T, c *client){
		"idle": func(*testing.T, *client) {},
		"busy": func(t *testing.T, c *client) {
			go func() {
				for seq := uint64(1); c.c.Send(transport.Sync, seq, &proto.Sync{}, nil) == nil; seq++ {
				}
			}()
			for range 1000 {
				c.expect(transport.SyncReply, 0, new(proto.SyncReply))
			}
		},
		"a part of a header": func(t *testing.T, c *client) {
			_, err := c.c.Net().Write([]byte("MYCL\x01"))
			require.NoError(t, err)
		},
		"a part of an upload": func(t *testing.T, c *client) {
			a, b := net.Pipe()
			go func() {
				_ = transport.New(a).Send(transport.Upload, 1, &proto.Upload{Storage: 1, Bytes: 100}, make([]byte, 100))
			}()
			frame := make([]byte, 200)
			_, err := io.ReadFull(b, frame[:150])
			require.NoError(t, err)
			_, err = c.c.Net().Write(frame[:150])
			require.NoError(t, err)
		},
	} {
		t.Run(name, func(t *testing.T) {
			eachWay(t, func(t *testing.T, r *running, c *client, pid int) {
				c.send(transport.Sync, &proto.Sync{}, nil)
				c.expect(transport.SyncReply, c.seq, new(proto.SyncReply))
				does(t, c)
				r.signal(t, syscall.SIGINT)
				for {
					h, err := c.c.Next()
					require.NoError(t, err)
					if h.Type == transport.Hello {
						break
					}
				}
				var h proto.Hello
				require.NoError(t, c.c.Meta(&h))
				require.Equal(t, stopped, h.Error)
				_, err := c.c.Next()
				require.Error(t, err)
				require.NoError(t, c.c.Close())
				require.Zero(t, r.ends(t))
			}, "--drain", "1m")
		})
	}
}

// TestADrainingWorkerTakesNobody: new clients get the reason, and the status page says so.
func TestADrainingWorkerTakesNobody(t *testing.T) {
	socket := filepath.Join(socketFolder(t), "status")
	page := http.Client{Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		}}}
	health := func() (int, string) {
		answer, err := page.Get("http://worker/healthz")
		require.NoError(t, err)
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		return answer.StatusCode, string(text)
	}
	draining := func(t *testing.T, r *running, pid int) {
		code, _ := health()
		require.Equal(t, http.StatusOK, code)
		pause(t, pid) // holds the drain up
		require.NoError(t, syscall.Kill(r.cmd.Process.Pid, syscall.SIGTERM))
		require.Eventually(t, func() bool {
			code, text := health()
			return code == http.StatusServiceUnavailable && text == "the worker is being stopped\n"
		}, time.Minute, 5*time.Millisecond)
	}
	goesOn := func(t *testing.T, r *running, c *client, pid int) {
		seq := c.send(transport.Sync, &proto.Sync{}, nil)
		require.NoError(t, syscall.Kill(pid, syscall.SIGCONT))
		c.expect(transport.SyncReply, seq, new(proto.SyncReply))
		require.Equal(t, stopped, c.fault())
		require.NoError(t, c.c.Close())
		require.Zero(t, r.ends(t))
	}
	t.Run("unix socket", func(t *testing.T) {
		r, s := runUnix(t, "--drain", "1m", "--status", "unix:"+socket)
		c, pid := s.session(t)
		draining(t, r, pid)
		late := s.dial(t)
		late.send(transport.Hello, goodHello(), nil)
		require.Equal(t, stopped, late.fault())
		require.False(t, s.asked(t, pid).Ended, "questions have answers")
		goesOn(t, r, c, pid)
	})
	t.Run("TCP", func(t *testing.T) {
		r, at := runRemote(t, "--drain", "1m", "--status", "unix:"+socket)
		c, pid := at.session(t, transport.NewSessionName())
		draining(t, r, pid)
		_, err := at.link(t, transport.NewSessionName())
		require.ErrorIs(t, err, link.ErrStopping)
		goesOn(t, r, c, pid)
	})
}

// TestALostClientMayComeBackToADrain: a client that has just lost its connection reads the reason over another one.
func TestALostClientMayComeBackToADrain(t *testing.T) {
	r, at := runRemote(t, "--drain", "1m")
	s, err := at.link(t, transport.NewSessionName())
	require.NoError(t, err)
	c := clientOf(t, s)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	pause(t, int(h.Pid))
	require.NoError(t, syscall.Kill(r.cmd.Process.Pid, syscall.SIGTERM))
	r.logs(t, "ends at a signal")
	time.Sleep(50 * time.Millisecond) // the process has been told
	require.NoError(t, s.NetConn().(*tls.Conn).NetConn().Close())
	time.Sleep(50 * time.Millisecond) // and the client has dialled again
	require.NoError(t, syscall.Kill(int(h.Pid), syscall.SIGCONT))
	require.Equal(t, stopped, c.fault())
	require.NoError(t, c.c.Close())
	require.Zero(t, r.ends(t))
	require.Greater(t, s.Measured().Connections, uint64(1))
}

// TestADrainThatEndsAtOnce: after its time, at a second signal, at SIGHUP, and when stdin ends.
func TestADrainThatEndsAtOnce(t *testing.T) {
	both := func(t *testing.T, r *running) {
		r.signal(t, syscall.SIGTERM)
		require.Eventually(t, func() bool {
			// The second signal must find the first one taken.
			select {
			case <-r.ended:
				return true
			default:
				_ = syscall.Kill(r.cmd.Process.Pid, syscall.SIGINT)
				return false
			}
		}, time.Minute, 20*time.Millisecond)
	}
	for name, does := range map[string]struct {
		longest string
		end     func(t *testing.T, r *running)
	}{
		"time":          {"300ms", func(t *testing.T, r *running) { r.signal(t, syscall.SIGTERM) }},
		"no time":       {"0", func(t *testing.T, r *running) { r.signal(t, syscall.SIGTERM) }},
		"second signal": {"1m", both},
		"hangup":        {"1m", func(t *testing.T, r *running) { r.signal(t, syscall.SIGHUP) }},
		"end of stdin": {"1m", func(t *testing.T, r *running) {
			r.signal(t, syscall.SIGTERM)
			require.NoError(t, r.stdin.Close())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			r, s := runUnix(t, "--drain", does.longest, "--stdin-eof")
			_, pid := s.session(t)
			pause(t, pid)
			does.end(t, r)
			require.Zero(t, r.ends(t))
			require.False(t, isRunning(pid))
			require.NoFileExists(t, s.addr)
		})
	}
}

// TestAWorkerForOneClient: a client has as many sessions as it wants. Another one takes its place in all of them.
func TestAWorkerForOneClient(t *testing.T) {
	t.Run("unix socket", func(t *testing.T) {
		_, s := runUnix(t, "--single")
		oneClient(t, func() *client { return s.dial(t) })
	})
	t.Run("TCP", func(t *testing.T) {
		_, at := runRemote(t, "--single")
		oneClient(t, func() *client {
			s, err := at.link(t, transport.NewSessionName())
			require.NoError(t, err)
			return clientOf(t, s)
		})
	})
}

func oneClient(t *testing.T, dial func() *client) {
	session := func(name string) *client {
		c, hello := dial(), goodHello()
		hello.Client = name
		c.send(transport.Hello, hello, nil)
		var h proto.Hello
		c.expect(transport.Hello, 0, &h)
		require.Empty(t, h.Error)
		return c
	}
	first, second := transport.NewSessionName(), transport.NewSessionName()
	var before []*client
	for _, name := range []string{first, second, first, "", ""} {
		mine := []*client{session(name)}
		if name != "" {
			mine = append(mine, session(name), session(name))
		}
		for _, c := range before {
			require.Equal(t, transport.AnotherClient, c.fault())
		}
		for _, c := range mine {
			works(t, c)
		}
		before = mine
	}
	for _, name := range []string{"x", strings.ToUpper(first), first + "a", transport.EndOf(first)} {
		c, hello := dial(), goodHello()
		hello.Client = name
		c.send(transport.Hello, hello, nil)
		require.Contains(t, c.fault(), "The name of a client has 26 lower-case letters")
	}
	works(t, before[0])
}
