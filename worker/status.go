// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/mycelya/mycelya/proto/transport"
)

// events counts what happens in a supervisor.
type events struct {
	sessions, refused prometheus.Counter
	ends              *prometheus.CounterVec
}

func newEvents() events {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "mycelya_" + name, Help: help})
	}
	return events{
		sessions: counter("sessions_total", "Processes that have got a client."),
		refused:  counter("connections_refused_total", "Connections that were closed without a session."),
		ends: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "mycelya_session_ends_total", Help: "Processes that have ended, by how: done, code or signal.",
		}, []string{"how"}),
	}
}

// ListenStatus opens the port of a status page. The page has no secret, but only processes of this host may read it:
// another address than a loopback one is an error.
func ListenStatus(address string) (net.Listener, error) {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return nil, err
	}
	if ip := net.ParseIP(host); ip == nil || !ip.IsLoopback() {
		return nil, fmt.Errorf("the status page is for this host only: %q is no loopback address, as 127.0.0.1:9090 is",
			address)
	}
	return net.Listen("tcp", address)
}

// Status serves a status page until the listener closes: /healthz answers 200 if another client would get a session,
// else 503 and the reason; /metrics has the metrics in Prometheus's format.
func (s *Supervisor) Status(l net.Listener) error {
	s.Begin()
	server := http.Server{Handler: s.statusPage(), ReadTimeout: 10 * time.Second, WriteTimeout: 10 * time.Second,
		MaxHeaderBytes: 1 << 14}
	err := server.Serve(l)
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Supervisor) statusPage() http.Handler {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mycelya_" + name, Help: help}, read)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(s.events.sessions, s.events.refused, s.events.ends,
		gauge("sessions", "Processes with a client.", func() float64 { n, _ := s.count(); return float64(n) }),
		gauge("connections_pending", "Connections whose first bytes have not come.", func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.pending))
		}),
		gauge("sessions_limit", "The most processes.", func() float64 { return maxSessions }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mycelya_build_info", Help: "1, with the build as a label.",
			ConstLabels: prometheus.Labels{"build": transport.Build},
		}, func() float64 { return 1 }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(r, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		if why := s.unhealthy(); why != nil {
			http.Error(w, why.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = fmt.Fprintln(w, "ok")
	})
	return mux
}

// unhealthy is why another client would get no session; nil if it would.
func (s *Supervisor) unhealthy() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return errors.New("the worker ends")
	case s.draining:
		return errStopping
	case len(s.live) >= maxSessions && s.spare == nil:
		return errFull
	}
	return nil
}
