// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"sync"
	"time"

	"github.com/moby/spdystream"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/mycelya/mycelya/runtime/provider"
)

const (
	// The protocol of the subresource portforward: two SPDY streams for each connection to the pod, one for errors and one
	// for bytes.
	forwardProtocol = "portforward.k8s.io"
	spdyProtocol    = "SPDY/3.1"

	// How often the wait for a stream looks whether the connection has ended, which spdystream does not tell it.
	replyPause = 10 * time.Millisecond
	// How long the connection of a stream that was closed lasts, so that its last bytes arrive: at the end of a connection
	// the other end drops those that it has not passed on.
	byeWait = time.Second
	// A data frame has at most so many bytes: the other end allocates each.
	frameBytes = 256 << 10
	// What a pod's node says about a port is a line.
	maxForwardError = 4 << 10
	maxStatus       = 64 << 10
)

// forward opens a stream to the port of a pod through the API server. Each stream has a connection of its own, so the
// end of one is no news for the others.
func (c *cluster) forward(ctx context.Context, pod string) (net.Conn, error) {
	below, err := c.upgraded(ctx, pod)
	if err != nil {
		return nil, c.explain("create pods/portforward", err)
	}
	s, err := newStream(ctx, below)
	if err != nil {
		_ = below.Close()
		return nil, provider.Errorf(provider.ErrUnavailable, "The stream to the pod %s was not opened: %v.", pod, err)
	}
	return s, nil
}

// upgraded asks for the port of a pod, and returns the connection that the answer has made of the request's.
func (c *cluster) upgraded(ctx context.Context, pod string) (*connection, error) {
	var at net.Conn
	traced := httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(i httptrace.GotConnInfo) { at = i.Conn },
	})
	url := c.core.Post().Namespace(c.namespace).Resource("pods").Name(pod).SubResource("portforward").URL()
	request, err := http.NewRequestWithContext(traced, http.MethodPost, url.String(), nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", spdyProtocol)
	request.Header.Set("X-Stream-Protocol-Version", forwardProtocol)
	answer, err := c.upgrade.Do(request)
	if err != nil {
		return nil, err
	}
	body, ok := answer.Body.(io.ReadWriteCloser)
	if answer.StatusCode != http.StatusSwitchingProtocols || !ok || at == nil {
		defer answer.Body.Close()
		return nil, statusOf(answer)
	}
	return &connection{Conn: at, body: body}, nil
}

// statusOf is the error of an answer that does not upgrade the connection.
func statusOf(answer *http.Response) error {
	text, err := io.ReadAll(io.LimitReader(answer.Body, maxStatus))
	if err != nil {
		return err
	}
	var s metav1.Status
	if json.Unmarshal(text, &s) == nil && s.Status == metav1.StatusFailure {
		return &apierrors.StatusError{ErrStatus: s}
	}
	return fmt.Errorf("it answers %s: %q", answer.Status, text)
}

// connection is one that was upgraded. Reads go through the request's buffer, which may have bytes.
type connection struct {
	net.Conn
	body io.ReadWriteCloser
	once sync.Once
}

func (c *connection) Read(p []byte) (int, error)  { return c.body.Read(p) }
func (c *connection) Write(p []byte) (int, error) { return c.body.Write(p) }

// Close closes the connection. Its error is nil: spdystream waits for ten minutes after another one.
func (c *connection) Close() error {
	c.once.Do(func() {
		_ = c.Conn.Close()
		_ = c.body.Close()
	})
	return nil
}

// stream is a stream to the port of a pod.
type stream struct {
	net.Conn // from which reads read: an end of a pipe
	inbox    net.Conn
	below    *connection
	spdy     *spdystream.Connection
	data     *spdystream.Stream
	errors   *spdystream.Stream
	ended    chan struct{} // closed when no more bytes come

	mu     sync.Mutex // guards what follows
	err    error      // what the pod's node has said about the port
	closed bool
}

// newStream opens the two streams on a connection. It ends at once if ctx or the connection ends.
func newStream(ctx context.Context, below *connection) (*stream, error) {
	stop := context.AfterFunc(ctx, func() { _ = below.Close() })
	defer stop()
	conn, err := spdystream.NewConnection(below, false)
	if err != nil {
		return nil, err
	}
	go conn.Serve(func(s *spdystream.Stream) { _ = s.Refuse() })
	s := &stream{below: below, spdy: conn, ended: make(chan struct{})}
	s.Conn, s.inbox = net.Pipe()
	headers := func(kind string) http.Header {
		h := http.Header{}
		h.Set(corev1.StreamType, kind)
		h.Set(corev1.PortHeader, strconv.Itoa(Port))
		h.Set(corev1.PortForwardRequestIDHeader, "0")
		return h
	}
	if s.errors, err = s.open(ctx, headers(corev1.StreamTypeError)); err != nil {
		return nil, err
	}
	_ = s.errors.Close() // this end has no errors to tell
	if s.data, err = s.open(ctx, headers(corev1.StreamTypeData)); err != nil {
		return nil, err
	}
	go s.pump()
	go s.watchErrors()
	return s, nil
}

// open opens a stream and waits until the other end has accepted it.
func (s *stream) open(ctx context.Context, headers http.Header) (*spdystream.Stream, error) {
	out, err := s.spdy.CreateStream(headers, nil, false)
	if err != nil {
		return nil, err
	}
	for {
		err := out.WaitTimeout(replyPause)
		if !errors.Is(err, spdystream.ErrTimeout) {
			return out, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-s.spdy.CloseChan():
			return nil, io.ErrUnexpectedEOF
		default:
		}
	}
}

// pump passes the bytes of the pod on to Read, and drops them once the stream is closed.
func (s *stream) pump() {
	defer close(s.ended)
	for {
		p, err := s.data.ReadData()
		if err != nil {
			_ = s.inbox.Close()
			return
		}
		_, _ = s.inbox.Write(p)
	}
}

// watchErrors waits for what the pod's node says about the port. It ends the stream.
func (s *stream) watchErrors() {
	text, _ := io.ReadAll(io.LimitReader(s.errors, maxForwardError))
	_ = s.errors.Reset()
	if len(text) == 0 {
		return
	}
	s.mu.Lock()
	s.err = provider.Errorf(provider.ErrUnavailable, "The pod's node does not reach the worker: %s.", text)
	s.mu.Unlock()
	_ = s.below.Close()
}

// said is what the pod's node has said about the port, or else err.
func (s *stream) said(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil && s.err != nil && !s.closed {
		return s.err
	}
	return err
}

// Read implements net.Conn.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	return n, s.said(err)
}

// Write implements net.Conn.
func (s *stream) Write(p []byte) (n int, err error) {
	for len(p) > 0 && err == nil {
		part := p[:min(len(p), frameBytes)]
		if s.isClosed() {
			return n, net.ErrClosed
		}
		if err = s.data.WriteData(part, false); err == nil {
			n, p = n+len(part), p[len(part):]
		}
	}
	return n, s.said(err)
}

func (s *stream) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

// Close implements net.Conn. It does not wait. The end of the connection, which follows, ends all goroutines.
func (s *stream) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.mu.Unlock()
	if first {
		go s.sayBye()
	}
	return s.Conn.Close()
}

// sayBye tells the other end that no more bytes come, and closes the connection when it has done the same.
func (s *stream) sayBye() {
	_ = s.below.SetWriteDeadline(time.Now().Add(byeWait))
	_ = s.data.Close()
	timer := time.NewTimer(byeWait)
	defer timer.Stop()
	select {
	case <-s.ended:
	case <-s.spdy.CloseChan():
	case <-timer.C:
	}
	_ = s.below.Close()
}

// NetConn is the connection to the API server: a forked child closes its descriptor.
func (s *stream) NetConn() net.Conn { return s.below.Conn }

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetWriteDeadline implements net.Conn. A deadline that passes during a Write ends the stream.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.below.SetWriteDeadline(t) }

// LocalAddr implements net.Conn.
func (s *stream) LocalAddr() net.Addr { return s.below.LocalAddr() }

// RemoteAddr implements net.Conn: the API server's.
func (s *stream) RemoteAddr() net.Addr { return s.below.RemoteAddr() }
