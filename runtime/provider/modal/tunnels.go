// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package modal

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	sdk "github.com/modal-labs/libmodal/modal-go"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
)

// tunnels are the ways to a worker. Both carry TLS between client and worker, which Modal cannot read.
type tunnels struct {
	raw    string        // host and a random high port: TCP, which many company networks block
	secure string        // host and port 443: within TLS that ends at Modal
	only   string        // "tcp", "tls", or "" for both
	second atomic.Bool   // secure is tried first
	wait   time.Duration // how long one way may take to open, or to carry a question to the worker and back
}

const (
	// wayWait is the default of tunnels.wait.
	wayWait = 4 * time.Second
	// How often the ways are tried that lead to a worker which listens and does not answer.
	tries = 5
	// How long a worker with its files may take until it answers. It answers before it loads PyTorch.
	answerWait = 2 * time.Minute
	// Between questions to a worker that may not listen yet: it may have a short idle time.
	mostPauseOfAsking = 200 * time.Millisecond
	// How long Modal may take to open the tunnels of a sandbox that runs.
	tunnelsWait = 30 * time.Second
)

// through opens a stream by the way that was last known to work, and otherwise by the other, and uses it. A way that
// opens and carries nothing is left when another one may follow.
func (t *tunnels) through(
	ctx context.Context, use func(context.Context, net.Conn) (net.Conn, error),
) (net.Conn, error) {
	var errs []error
	first := t.second.Load()
	for _, secure := range []bool{first, !first} {
		c, err := t.try(ctx, secure, secure == first && t.raw != "" && t.secure != "", use)
		if err == nil {
			t.second.Store(secure)
			return c, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return nil, provider.Errorf(provider.ErrUnavailable, "The worker's tunnels cannot be opened: %v.",
		errors.Join(errs...))
}

// try uses one of the ways. hurried: another one may follow.
func (t *tunnels) try(
	ctx context.Context, secure, hurried bool, use func(context.Context, net.Conn) (net.Conn, error),
) (net.Conn, error) {
	if hurried {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.wait)
		defer cancel()
	}
	c, err := t.open(ctx, secure)
	if err != nil {
		return nil, err
	}
	return use(ctx, c)
}

var errNoWay = errors.New("there is no such tunnel")

// open opens a stream by one of the ways.
func (t *tunnels) open(ctx context.Context, secure bool) (net.Conn, error) {
	addr := t.raw
	if secure {
		addr = t.secure
	}
	if addr == "" {
		return nil, errNoWay
	}
	ctx, cancel := context.WithTimeout(ctx, t.wait)
	defer cancel()
	c, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil || !secure {
		return c, err
	}
	host, _, _ := net.SplitHostPort(addr)
	outer := tls.Client(c, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12, DynamicRecordSizingDisabled: true})
	if err := outer.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, fmt.Errorf("TLS with %s: %w", addr, err)
	}
	return outer, nil
}

// ask opens a stream by one of the ways, and asks the worker about a session that does not exist. Its answer shows that
// the way leads to this worker, and back.
func (t *tunnels) ask(ctx context.Context, secure bool, credentials *transport.Credentials) error {
	ctx, cancel := context.WithTimeout(ctx, t.wait)
	defer cancel()
	c, err := t.open(ctx, secure)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	inner := credentials.ClientSide(c, transport.EndOf(transport.NewSessionName()))
	if err := inner.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return err
	}
	conn := transport.New(inner)
	defer conn.Close()
	if err := conn.Send(transport.Ended, 0, &proto.Ended{}, nil); err != nil {
		return err
	}
	h, err := conn.Next()
	if err == nil && h.Type != transport.EndedReply {
		err = fmt.Errorf("the worker answers with a %v", h.Type)
	}
	return err
}

// find asks Modal for the tunnels of a sandbox. only: "tcp", "tls", or "" for both.
func (t *tunnels) find(ctx context.Context, sb *sdk.Sandbox, only string) error {
	t.only = only
	all, err := sb.Tunnels(ctx, tunnelsWait)
	if err != nil {
		return err
	}
	if way := all[rawPort]; way != nil && only != "tls" {
		if host, port, err := way.TCPSocket(); err == nil {
			t.raw = net.JoinHostPort(host, strconv.Itoa(port))
		}
	}
	if way := all[tlsPort]; way != nil && only != "tcp" {
		host, port := way.TLSSocket()
		t.secure = net.JoinHostPort(host, strconv.Itoa(port))
	}
	if t.raw == "" && t.secure == "" {
		return errNoWay
	}
	return nil
}

// findTunnels finds the ways to the worker.
func (in *instance) findTunnels(ctx context.Context, sb *sdk.Sandbox, only string) error {
	return explain(ctx, "open the sandbox's tunnels", in.tunnels.find(ctx, sb, only))
}

// awaitAnswer returns when the worker has answered by one of the ways.
func (in *instance) awaitAnswer(ctx context.Context) error {
	began := time.Now()
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, mostPauseOfAsking) {
		var failed [2]error
		for i, secure := range []bool{false, true} {
			if failed[i] = in.tunnels.ask(ctx, secure, in.tls); failed[i] == nil {
				in.tunnels.second.Store(secure)
				in.answered.Store(true)
				return nil
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-in.Ended():
			return provider.Errorf(provider.ErrUnavailable, "The worker in the sandbox %s %v before it could be used. %s",
				in.id, in.Exit(), in.log.tail())
		case <-time.After(pause):
		}
		waited := time.Since(began)
		if waited > answerWait || waited > tries*in.tunnels.wait && in.log.listening() {
			return in.noAnswer(failed)
		}
	}
}

// noAnswer says why a worker has not answered.
func (in *instance) noAnswer(failed [2]error) error {
	if !in.log.listening() {
		return provider.Errorf(provider.ErrTimeout, "The worker in the sandbox %s has not started within %v. %s", in.id,
			answerWait, in.log.tail())
	}
	return &provider.Error{Kind: provider.ErrUnavailable, Err: errors.Join(failed[0], failed[1]),
		Text: fmt.Sprintf("The worker in the sandbox %s runs, and this host cannot reach it%s: %v over TCP to %q; %v over "+
			"TLS to %q. Allow connections to these, or leave out tunnel=, so that both are tried.", in.id,
			forced(in.tunnels.only), failed[0], in.tunnels.raw, failed[1], in.tunnels.secure)}
}

func forced(only string) string {
	if only == "" {
		return ""
	}
	return fmt.Sprintf(" with tunnel=%q", only)
}
