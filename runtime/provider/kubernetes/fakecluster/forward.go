// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package fakecluster

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/apimachinery/pkg/util/httpstream/spdy"
)

const (
	forwardProtocol = "portforward.k8s.io"
	pingPeriod      = 5 * time.Second
)

// forward serves a request for the ports of a pod, with the library that nodes use.
func (c *Cluster) forward(w http.ResponseWriter, r *http.Request, name string) {
	pod := c.store.pod(name)
	if pod == nil || pod.Status.Phase != corev1.PodRunning {
		fail(w, apierrors.NewInternalError(errNotRunning))
		return
	}
	if _, err := httpstream.Handshake(r, w, []string{forwardProtocol}); err != nil {
		return // it has answered
	}
	f := &forwarding{address: pod.Status.PodIP, pairs: map[string]pair{}}
	below := &hijacker{ResponseWriter: w}
	conn := spdy.NewResponseUpgraderWithPings(pingPeriod).UpgradeResponse(below, r,
		func(s httpstream.Stream, replied <-chan struct{}) error {
			for c.holds() {
				time.Sleep(probePause)
			}
			go f.serve(s, replied)
			return nil
		})
	if conn == nil {
		return
	}
	<-conn.CloseChan()
	_ = below.conn.Close() // conn.Close would wait for ten minutes, as the connection may have ended
	c.mu.Lock()
	delete(c.hijacked, below.conn)
	c.mu.Unlock()
}

// hijacker keeps the connection that it gives.
type hijacker struct {
	http.ResponseWriter
	conn net.Conn
}

// Hijack implements http.Hijacker.
func (h *hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffer, err := h.ResponseWriter.(http.Hijacker).Hijack()
	h.conn = conn
	return conn, buffer, err
}

// forwarding is one connection of a client.
type forwarding struct {
	address string

	mu    sync.Mutex
	pairs map[string]pair // by the number of the request
}

// pair are the two streams of a request.
type pair struct{ errors, data httpstream.Stream }

// serve serves the pair of a stream, if this is the second one of it: they come in either order.
func (f *forwarding) serve(s httpstream.Stream, replied <-chan struct{}) {
	<-replied
	if p, whole := f.paired(s); whole {
		f.pass(p.data, p.errors)
	}
}

// paired adds a stream to its pair, and says whether that is whole.
func (f *forwarding) paired(s httpstream.Stream) (pair, bool) {
	id := s.Headers().Get(corev1.PortForwardRequestIDHeader)
	f.mu.Lock()
	defer f.mu.Unlock()
	p := f.pairs[id]
	if s.Headers().Get(corev1.StreamType) == corev1.StreamTypeError {
		p.errors = s
	} else {
		p.data = s
	}
	f.pairs[id] = p
	return p, p.errors != nil && p.data != nil
}

// pass passes bytes between a stream and the port that it names.
func (f *forwarding) pass(s, errors httpstream.Stream) {
	defer s.Reset()
	defer errors.Reset()
	port := s.Headers().Get(corev1.PortHeader)
	conn, err := net.Dial("tcp", net.JoinHostPort(f.address, port))
	if err != nil {
		_, _ = fmt.Fprintf(errors, "error forwarding port %s: %v", port, err)
		_ = errors.Close()
		_, _ = io.Copy(io.Discard, s)
		return
	}
	defer conn.Close()
	there := make(chan struct{})
	go func() {
		_, _ = io.Copy(conn, s)
		_ = conn.(*net.TCPConn).CloseWrite()
		close(there)
	}()
	_, _ = io.Copy(s, conn)
	_ = s.Close()
	select {
	case <-there:
	case <-time.After(time.Second): // the client writes into a connection that the worker has ended
	}
}
