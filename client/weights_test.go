// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"encoding/json"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/trace"
	"github.com/mycelya/mycelya/worker/hub/hubtest"
)

// question is a question about weights, in the form of runtime/weights.go.
type question struct {
	What, Endpoint, Repo string
	Fetch, Seen, Found   uint64
	Storages             []uint64
}

type news struct {
	Fetch, News, Done, Total, Found uint64
	End                             bool
	Weights                         []struct{ Folder, Name, DType string }
}

// ask asks a question, and waits for its answer.
func (d *device) ask(q question) (out news, err error) {
	text, err := json.Marshal(q)
	require.NoError(d, err)
	ticket, err := d.Ask(0, text, trace.Place{})
	if err == nil {
		err = d.ended(ticket, d.Wait(ticket, 30*time.Second))
	}
	if err != nil {
		return out, err
	}
	answer, err := d.Answer(ticket, 1<<20)
	if err == nil {
		err = json.Unmarshal(answer, &out)
	}
	return out, err
}

// fetch asks for news until the end.
func (d *device) fetch(endpoint, repo string) (out news, err error) {
	if out, err = d.ask(question{What: "fetch", Endpoint: endpoint, Repo: repo}); err != nil {
		return out, err
	}
	for !out.End && err == nil {
		fetch := out.Fetch
		out, err = d.ask(question{What: "news", Fetch: fetch, Seen: out.News})
		out.Fetch = fetch
	}
	return out, err
}

// TestWeights: several threads have the worker fetch, one of them something that does not exist.
func TestWeights(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{
		"model.safetensors": hubtest.Safetensors(map[string][]byte{"a": {0, 0, 128, 63}, "b": {0, 0, 0, 64, 0, 0, 64, 64}}),
	}}})
	d := open(t)
	var all sync.WaitGroup
	for i := range 3 {
		all.Go(func() {
			if i == 2 {
				got, err := d.fetch(h.API.URL, "me/none")
				require.ErrorContains(t, err, "There is no repository")
				_, err = d.ask(question{What: "unfetch", Fetch: got.Fetch})
				require.NoError(t, err)
				return
			}
			got, err := d.fetch(h.API.URL, "me/model")
			require.NoError(t, err)
			require.Len(t, got.Weights, 2)
			require.Equal(t, "u8", got.Weights[1].DType)
			require.Equal(t, got.Total, got.Done)
			id := uint64(10 * (i + 1))
			_, err = d.ask(question{What: "load", Found: got.Found, Storages: []uint64{id, id + 1}})
			require.NoError(t, err)
			d.want(id, 1)
			d.want(id+1, 2, 3)
			_, err = d.ask(question{What: "unfetch", Fetch: got.Fetch})
			require.NoError(t, err)
		})
	}
	all.Wait()
	require.Positive(t, d.metric("weights_bytes_fetched"))
	require.Positive(t, d.metric("weights_bytes_fetched")+d.metric("weights_bytes_cached"))
	require.Less(t, d.metric("round_trips"), 1000.0)
	_, err := d.ask(question{What: "news", Fetch: 99})
	require.ErrorContains(t, err, "there is no fetch 99")
}

// TestNewsThatDoNotCome: a wait for news ends when it is canceled, and with the session.
func TestNewsThatDoNotCome(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{
		"model.safetensors": hubtest.Safetensors(map[string][]byte{"a": make([]byte, 100)}),
	}}})
	h.Inject(slices.Repeat([]hubtest.Fault{hubtest.Stall}, 100)...)
	d := open(t)
	begun, err := d.ask(question{What: "fetch", Endpoint: h.API.URL, Repo: "me/model"})
	require.NoError(t, err)
	text, err := json.Marshal(question{What: "news", Fetch: begun.Fetch, Seen: 1 << 40})
	require.NoError(t, err)
	ticket, err := d.Ask(0, text, trace.Place{})
	require.NoError(t, err)
	begin := time.Now()
	d.Cancel(ticket)
	require.Less(t, time.Since(begin), 30*time.Second, "it waits for nothing")
	d.upload(1, 7)
	d.want(1, 7)
	ticket, err = d.Ask(0, text, trace.Place{})
	require.NoError(t, err)
	closed := make(chan struct{})
	go func() {
		d.Close(0)
		close(closed)
	}()
	require.Error(t, d.ended(ticket, d.Wait(ticket, 30*time.Second)))
	<-closed // the worker does not write into the cache any more
}
