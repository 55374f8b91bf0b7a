// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package remote

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

// Usage is what a supervisor uses, from its status page.
type Usage struct {
	Resident    float64 // bytes
	Descriptors float64
	Goroutines  float64
	Sessions    float64 // processes with a client
	Pending     float64 // connections whose first bytes have not come
	Total       float64 // sessions that there have been
	Done        float64 // of the sessions' processes: ends without an error,
	Code        float64 // with an exit code,
	Signal      float64 // and by a signal
}

func (u Usage) String() string {
	return fmt.Sprintf("%.0f MiB, %.0f descriptors, %.0f goroutines, %.0f sessions", u.Resident/(1<<20), u.Descriptors,
		u.Goroutines, u.Sessions)
}

// Usage reads the status page.
func (w *Worker) Usage() (Usage, error) {
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", w.page())
		}}}
	answer, err := client.Get("http://worker/metrics")
	if err != nil {
		return Usage{}, err
	}
	defer answer.Body.Close()
	return parse(answer.Body)
}

// parse reads Prometheus's text format.
func parse(r io.Reader) (u Usage, err error) {
	into := map[string]*float64{
		"process_resident_memory_bytes":            &u.Resident,
		"process_open_fds":                         &u.Descriptors,
		"go_goroutines":                            &u.Goroutines,
		"mycelya_sessions":                         &u.Sessions,
		"mycelya_connections_pending":              &u.Pending,
		"mycelya_sessions_total":                   &u.Total,
		`mycelya_session_ends_total{how="done"}`:   &u.Done,
		`mycelya_session_ends_total{how="code"}`:   &u.Code,
		`mycelya_session_ends_total{how="signal"}`: &u.Signal,
	}
	for lines := bufio.NewScanner(r); lines.Scan(); {
		name, value, _ := strings.Cut(lines.Text(), " ")
		if at := into[name]; at != nil {
			if *at, err = strconv.ParseFloat(value, 64); err != nil {
				return u, err
			}
		}
	}
	if u.Descriptors == 0 || u.Goroutines == 0 || u.Resident == 0 {
		return u, fmt.Errorf("the status page lacks the worker's own metrics")
	}
	return u, nil
}

// A quiet supervisor may hold more than at the start: the runtime of Go keeps memory and the stacks of threads, and the
// ends of 64 sessions are kept.
const (
	moreMemory      = 96 << 20
	moreDescriptors = 4
	moreGoroutines  = 8
)

// Leaked compares a supervisor without clients with what it used at the start.
func (u Usage) Leaked(start Usage) error {
	switch {
	case u.Resident > start.Resident+moreMemory, u.Descriptors > start.Descriptors+moreDescriptors,
		u.Goroutines > start.Goroutines+moreGoroutines, u.Pending > 0:
		return fmt.Errorf("the supervisor has grown: %v at the start, %v now, %.0f connections wait", start, u, u.Pending)
	}
	return nil
}

// Quiet waits until the worker has at most so many sessions, and returns what the supervisor uses then.
func (w *Worker) Quiet(sessions int, within time.Duration) (u Usage, err error) {
	for end := time.Now().Add(within); ; time.Sleep(100 * time.Millisecond) {
		if u, err = w.Usage(); err != nil {
			return u, err
		}
		children, err := w.Children()
		if err != nil {
			return u, err
		}
		// One more process may wait for the next client.
		if int(u.Sessions) <= sessions && len(children) <= sessions+1 && u.Pending == 0 {
			return u, nil
		}
		if time.Now().After(end) {
			return u, fmt.Errorf("after %v the worker still has %.0f sessions, %d processes and %.0f connections that wait",
				within, u.Sessions, len(children), u.Pending)
		}
	}
}
