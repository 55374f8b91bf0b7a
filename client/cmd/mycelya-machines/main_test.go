// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/providers"
)

// cloud is a provider whose instances are rows of a table. tests/e2e/test_cli.py uses this program with real workers.
type cloud struct {
	rows []provider.Found
	err  error
	bare bool // its instances tell nothing
}

func (*cloud) Start(context.Context, provider.Spec) (provider.Instance, error) {
	panic("this program never starts")
}

func (c *cloud) Attach(_ context.Context, s provider.Spec) (provider.Instance, error) {
	for _, f := range c.rows {
		if f.Session == s.Session {
			if c.bare {
				return row{f}, nil
			}
			return talker{row{f}, s.Options}, nil
		}
	}
	return nil, provider.Errorf(provider.ErrNotFound, "There is no machine %q.", s.Session)
}

func (c *cloud) Sweep(_ context.Context, end func(provider.Found) bool) ([]provider.Found, error) {
	var out []provider.Found
	for _, f := range c.rows {
		f.Ended = end(f)
		out = append(out, f)
	}
	return out, c.err
}

func (*cloud) Check(_ context.Context, s provider.Spec) error {
	if s.Options["host"] == "down" {
		return provider.Errorf(provider.ErrUnavailable, "The host does not answer.")
	}
	return nil
}

func (*cloud) Price(gpu string, gpus int) (provider.Price, bool) {
	return provider.Price{PerHour: 2.5 * float64(gpus), Currency: "USD", Date: "2026-05-07"}, gpu == "A100"
}

type row struct{ f provider.Found }

func (r row) Handle() provider.Handle                   { return r.f.Handle }
func (row) Dial(context.Context) (net.Conn, error)      { return nil, errors.New("nobody listens") }
func (row) Credentials() *transport.Credentials         { return nil }
func (row) Wait(context.Context) (provider.Exit, error) { panic("nothing waits") }
func (row) Stop(context.Context, time.Duration) error   { panic("Sweep ends instances") }
func (row) FDs() []int                                  { return nil }

type talker struct {
	row
	options map[string]string
}

func (t talker) Logs(context.Context) (string, error) {
	return "log of " + t.f.Session + t.options["host"], nil
}

// Dial connects to a worker that answers one question. The worker of "three" has a client.
func (t talker) Dial(context.Context) (net.Conn, error) {
	here, there := net.Pipe()
	go func() {
		c := transport.New(there)
		defer c.Close()
		text := "mycelya_sessions 0\n"
		if t.f.Session == "three" {
			text = "mycelya_sessions 1\n"
		}
		if h, err := c.Next(); err == nil && h.Type == transport.Report {
			_ = c.Send(transport.Reported, h.Seq, &proto.Reported{Metrics: text}, nil)
		}
	}()
	return here, nil
}

// table has a cloud with three machines, one without access, one that tells nothing, and a name without a provider.
func table() []providers.Row {
	found := func(of, id, name string, used bool) provider.Found {
		return provider.Found{Handle: provider.Handle{Provider: of, ID: id, Session: name}, GPU: "A100", GPUs: 2,
			Detached: true, Options: map[string]string{"host": "h"}, Since: time.Unix(1, 0), Idle: time.Minute, Used: used}
	}
	of := func(c *cloud) func(provider.Paths) provider.Provider {
		return func(provider.Paths) provider.Provider { return c }
	}
	return []providers.Row{
		{Name: "cloud", Aliases: []string{"sky"}, New: of(&cloud{rows: []provider.Found{
			found("cloud", "1", "one", false), found("cloud", "2", "two", true), found("cloud", "3", "three", false)}})},
		{Name: "closed", New: of(&cloud{err: provider.Errorf(provider.ErrAuth, "No token.")})},
		{Name: "quiet", New: of(&cloud{bare: true, rows: []provider.Found{found("quiet", "1", "q", true)}})},
		{Name: "later"},
	}
}

// call runs the program and returns its exit code and its answer.
func call(t *testing.T, args ...string) (int, map[string]any) {
	var stdout, stderr bytes.Buffer
	code := run(t.Context(), table(), args, &stdout, &stderr)
	if code == 2 {
		require.NotEmpty(t, stderr.String())
		return code, nil
	}
	var out map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &out), stdout.String())
	return code, out
}

func items(t *testing.T, list any) (out []map[string]any) {
	for _, item := range list.([]any) {
		out = append(out, item.(map[string]any))
	}
	return out
}

func TestList(t *testing.T) {
	code, out := call(t, "list")
	require.Zero(t, code)
	machines := items(t, out["machines"])
	require.Len(t, machines, 4)
	require.Equal(t, true, machines[2]["used"], "its worker says so")
	require.Equal(t, map[string]any{"handle": "cloud:1", "provider": "cloud", "id": "1", "name": "one", "gpu": "A100",
		"gpus": 2.0, "since": time.Unix(1, 0).Format(time.RFC3339), "until": nil, "idle_seconds": 60.0, "used": false,
		"ended": false, "detached": true, "options": map[string]any{"host": "h"},
		"price_per_hour": 5.0, "currency": "USD", "priced": "2026-05-07"}, machines[0])
	require.Equal(t, []map[string]any{{"provider": "closed", "error": "No token.", "kind": "auth"}},
		items(t, out["errors"]))
}

func TestEnd(t *testing.T) {
	for _, test := range []struct {
		args  []string
		ended []bool
	}{
		{[]string{"end", "cloud:1", "cloud:2"}, []bool{true, true}},
		{[]string{"-unused", "end", "cloud:1", "cloud:2", "cloud:3"}, []bool{true, false, false}},
		{[]string{"end", "cloud:2"}, []bool{true}},
		{[]string{"end", "cloud:3"}, []bool{true}},
		{[]string{"end", "cloud:4"}, nil},
	} {
		code, out := call(t, test.args...)
		require.Zero(t, code)
		var ended []bool
		for _, m := range items(t, out["machines"]) {
			ended = append(ended, m["ended"].(bool))
		}
		require.Equal(t, test.ended, ended, test.args)
		require.Empty(t, out["errors"], "only the providers of the handles are asked")
	}
	for _, wrong := range []string{"one", "later:1", "cloud:", "nowhere:1"} {
		code, out := call(t, "end", wrong)
		require.Equal(t, 1, code)
		require.Contains(t, out["error"], "is not the handle of a machine")
	}
}

func TestRead(t *testing.T) {
	_, out := call(t, "-o", "host=h", "logs", "sky", "one")
	require.Equal(t, "log of oneh", out["log"])
	_, out = call(t, "metrics", "cloud", "two")
	require.Equal(t, "mycelya_sessions 0\n", out["metrics"])
	for _, test := range []struct{ args, text []string }{
		{[]string{"logs", "quiet", "q"}, []string{"keeps no logs"}},
		{[]string{"metrics", "quiet", "q"}, []string{"does not report: nobody listens"}},
		{[]string{"logs", "cloud", "four"}, []string{`There is no machine "four".`}},
		{[]string{"logs", "later", "x"}, []string{`"later" is not a provider of this version`}},
	} {
		code, out := call(t, test.args...)
		require.Equal(t, 1, code)
		require.Contains(t, out["error"], test.text[0])
	}
}

func TestCheckAndPrice(t *testing.T) {
	_, out := call(t, "-o", "host=down", "check", "cloud", "later")
	require.Equal(t, []map[string]any{
		{"provider": "cloud", "served": true, "checked": true, "error": "The host does not answer."},
		{"provider": "later", "served": false, "checked": false, "error": ""},
	}, items(t, out["providers"]))
	_, out = call(t, "price", "cloud", "A100", "4")
	require.Equal(t, map[string]any{"price_per_hour": 10.0, "currency": "USD", "priced": "2026-05-07"}, out)
	_, out = call(t, "price", "cloud", "T4")
	require.Nil(t, out["price_per_hour"])
	code, out := call(t, "price", "cloud", "A100", "0")
	require.Equal(t, 1, code)
	require.Contains(t, out["error"], `"0" is not a number of GPUs`)
}

func TestArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"list", "x"}, {"fly"}, {"logs", "cloud"}} {
		code, out := call(t, args...)
		require.Equal(t, 1, code)
		require.Contains(t, out["error"], "is no command")
	}
	code, _ := call(t, "-o", "host", "list")
	require.Equal(t, 2, code)
	_, out := call(t, "version")
	require.Equal(t, transport.Build, out["build"])
}

// mute is a cloud whose workers do not answer.
type mute struct {
	cloud
	asked chan struct{}
}

func (m *mute) Attach(ctx context.Context, _ provider.Spec) (provider.Instance, error) {
	m.asked <- struct{}{}
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestAWorkerThatDoesNotAnswer checks that it counts as used, and one that cannot be reached as unused.
func TestAWorkerThatDoesNotAnswer(t *testing.T) {
	found := []provider.Found{{Handle: provider.Handle{ID: "1", Session: "one"}, Detached: true}}
	ctx, cancel := context.WithCancel(t.Context())
	m := &mute{asked: make(chan struct{})}
	go func() { <-m.asked; cancel() }()
	require.True(t, askWorkers(ctx, m, found)[found[0].Handle])
	require.False(t, askWorkers(t.Context(), &cloud{}, found)[found[0].Handle])
}
