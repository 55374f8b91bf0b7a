// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/common/expfmt"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/session"
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

// ListenStatus opens the port of a status page, or "unix:" and the path of a socket, for this user only. The page has
// no secret, but only processes of this host may read it: another address than a loopback one is an error.
func ListenStatus(address string) (net.Listener, error) {
	if path, ok := strings.CutPrefix(address, "unix:"); ok {
		return listenForUser(path)
	}
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

// listenForUser listens on a socket that only this user can open. A socket that a worker has left there is replaced.
func listenForUser(path string) (net.Listener, error) {
	if info, err := os.Lstat(path); err == nil && info.Mode()&os.ModeSocket != 0 {
		_ = os.Remove(path)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, 0o600); err != nil {
		_ = l.Close()
		return nil, err
	}
	return l, nil
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

// report returns the metrics in Prometheus's text format.
func (s *Supervisor) report() (string, error) {
	families, err := s.metrics().Gather()
	var text strings.Builder
	for _, f := range families {
		if err == nil {
			_, err = expfmt.MetricFamilyToText(&text, f)
		}
	}
	return text.String(), err
}

// metrics makes a registry of the metrics. Its values are those of the moment when they are gathered.
func (s *Supervisor) metrics() *prometheus.Registry {
	gauge := func(name, help string, read func() float64) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: "mycelya_" + name, Help: help}, read)
	}
	r := prometheus.NewRegistry()
	r.MustRegister(newUsageCollector(s), s.events.sessions, s.events.refused, s.events.ends,
		gauge("sessions", "Processes with a client.", func() float64 { n, _ := s.count(); return float64(n) }),
		gauge("connections_pending", "Connections whose first bytes have not come.", func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(len(s.pending))
		}),
		gauge("sessions_limit", "The most processes.", func() float64 { return session.MaxSessions }),
		gauge("session_memory_bytes", "Memory of the processes with a client.", func() float64 { return s.usage().memory }),
		gauge("session_cpu_seconds", "Processor time of the processes with a client.",
			func() float64 { return s.usage().cpu }),
		gauge("session_calls", "Calls that the processes with a client have run.",
			func() float64 { return float64(s.usage().calls) }),
		gauge("last_call_seconds", "Time since the last of these calls began; -1: there was none.", func() float64 {
			last := s.usage().last
			if last.IsZero() {
				return -1
			}
			return max(0, time.Since(last)).Seconds()
		}),
		gauge("lease_seconds_left", "Time to the end of the worker's lease; -1: it has none.", func() float64 {
			lease, _ := s.left(time.Now())
			return lease
		}),
		gauge("alone_seconds_left", "Time to the end of a worker without a client; -1: it has no such limit.",
			func() float64 {
				_, alone := s.left(time.Now())
				return alone
			}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "mycelya_build_info", Help: "1, with the build as a label.",
			ConstLabels: prometheus.Labels{"build": transport.Build},
		}, func() float64 { return 1 }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return r
}

func (s *Supervisor) statusPage() http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(s.metrics(), promhttp.HandlerOpts{}))
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
	case len(s.live) >= session.MaxSessions && s.spare == nil:
		return errFull
	}
	return nil
}
