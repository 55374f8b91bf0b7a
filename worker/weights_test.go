// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/hub"
	"github.com/mycelya/mycelya/worker/hub/hubtest"
	"github.com/mycelya/mycelya/worker/session"
	"github.com/mycelya/mycelya/worker/supervisor"
)

const (
	helperArgument = "a-process-that-fetches-weights"
	cacheArgument  = "cache="
)

// helperProcess is what mycelya-worker --fetch does. The last argument has the folder of the cache.
func helperProcess() {
	if err := supervisor.LockDownHelper(); err != nil {
		panic(err)
	}
	folder := strings.TrimPrefix(os.Args[len(os.Args)-1], cacheArgument)
	f := &hub.Fetcher{Cache: &hub.Cache{Path: folder, Bytes: 1 << 30}, Chunk: 1 << 12,
		Timeouts: hub.Timeouts{Stall: 20 * time.Second, Whole: time.Minute, Pause: time.Millisecond}}
	if err := supervisor.ServeHelper(func(c *net.UnixConn) error { return hub.Serve(c, f) }); err != nil {
		panic(err)
	}
}

// superviseFetches runs a supervisor whose sessions may fetch, and returns its address and its cache.
func superviseFetches(t testing.TB) (*serving, string) {
	t.Helper()
	cache := filepath.Join(t.TempDir(), "weights")
	out, _ := supervise(t, func(s *supervisor.Supervisor) {
		s.Helper = func() *exec.Cmd { return exec.Command(os.Args[0], helperArgument, cacheArgument+cache) }
	})
	return out, cache
}

// socketFolder is a folder with a short path, as sockets need.
func socketFolder(t testing.TB) string {
	dir, err := os.MkdirTemp("", "mw")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// fetch fetches, and returns the sequence number and the last report, with the weights of all reports.
func (c *client) fetch(m *proto.Fetch) (uint64, *proto.Fetching) {
	c.t.Helper()
	seq := c.send(transport.Fetch, m, nil)
	var weights []*proto.Weight
	for {
		var r proto.Fetching
		h := c.expect(transport.Fetching, 0, &r)
		if h.Seq != seq {
			continue
		}
		if weights = append(weights, r.Weights...); r.End {
			r.Weights = weights
			return seq, &r
		}
	}
}

// TestFetch: a session in its own process gets weights from a process that is filtered, too.
func TestFetch(t *testing.T) {
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{
		"model.safetensors": hubtest.Safetensors(map[string][]byte{"a": []byte("12345"), "b": []byte("678")}),
		"x/m.safetensors":   hubtest.Safetensors(map[string][]byte{"a": []byte("9"), "none": nil}),
	}}})
	s, _ := superviseFetches(t)
	c := s.connect(t)
	for round := range 2 {
		seq, r := c.fetch(&proto.Fetch{Endpoint: h.API.URL, Repo: "me/model", Token: "hf_secret"})
		require.Nil(t, r.Status)
		var names []string
		for _, w := range r.Weights {
			names = append(names, w.Folder+":"+w.Name)
		}
		require.Equal(t, []string{":a", ":b", "x:a", "x:none"}, names)
		require.Equal(t, []int64{3}, r.Weights[1].Sizes)
		require.Equal(t, round == 0, r.Fetched > 0)
		require.Equal(t, r.Total, r.Done)
		id := uint64(10 * (round + 1))
		for _, storages := range [][]uint64{{id, 0, id + 1, 0}, {0, id + 2, 0, id + 3}} {
			require.Nil(t, c.ask(transport.Load, &proto.Load{Found: seq, Storages: storages}).Status)
		}
		for i, want := range []string{"12345", "9", "678", ""} {
			got, st := c.read(id+uint64(i), len(want))
			require.Nil(t, st)
			require.Equal(t, want, string(got))
		}
		require.Nil(t, c.ask(transport.Unfetch, &proto.Unfetch{Fetch: seq}).Status)
	}
	_, r := c.fetch(&proto.Fetch{Endpoint: h.API.URL, Repo: "me/other", Token: "hf_secret"})
	require.Equal(t, int32(proto.ErrValue), r.Status.Kind)
	require.Contains(t, r.Status.Text, "There is no repository")
	require.NotContains(t, s.log.String(), "hf_secret")
}

// TestLoadDuringAFetch: the tensors of a file can be used while the next file comes.
func TestLoadDuringAFetch(t *testing.T) {
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{
		"a/model.safetensors": hubtest.Safetensors(map[string][]byte{"x": []byte("12345")}),
		"b/model.safetensors": hubtest.Safetensors(map[string][]byte{"x": []byte("67")}),
	}}})
	h.Inject("", hubtest.Stall)
	c := inProcess(t, t.TempDir()).connect(t)
	seq := c.send(transport.Fetch, &proto.Fetch{Endpoint: h.API.URL, Repo: "me/model"}, nil)
	var r proto.Fetching
	for len(r.Weights) == 0 {
		c.expect(transport.Fetching, seq, &r)
	}
	require.False(t, r.End)
	require.Equal(t, []string{"a", "x"}, []string{r.Weights[0].Folder, r.Weights[0].Name})
	c.send(transport.Load, &proto.Load{Found: seq, Storages: []uint64{1}}, nil)
	view := &proto.Read{Storage: 1, Dtype: r.Weights[0].Dtype, Sizes: []int64{5}, Strides: []int64{1}}
	read := c.send(transport.Read, view, nil)
	for {
		head, err := c.c.Next()
		require.NoError(t, err)
		if head.Type != transport.ReadReply { // the fetch goes on
			continue
		}
		require.Equal(t, read, head.Seq)
		got := make([]byte, head.Payload)
		require.NoError(t, c.c.ReadBody(got))
		require.Equal(t, "12345", string(got))
		return
	}
}

// TestASessionThatGoes ends its fetch, and its helper with it.
func TestASessionThatGoes(t *testing.T) {
	big := hubtest.Safetensors(map[string][]byte{"a": make([]byte, 1<<20)})
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{"model.safetensors": big}}})
	h.Inject(slices.Repeat([]hubtest.Fault{hubtest.Stall}, 1000)...)
	s, cache := superviseFetches(t)
	for _, how := range []string{"the session ends", "the fetch ends"} {
		c := s.connect(t)
		before := h.Left()
		seq := c.send(transport.Fetch, &proto.Fetch{Endpoint: h.API.URL, Repo: "me/model"}, nil)
		require.Eventually(t, func() bool { return h.Left() < before }, patience, time.Millisecond, how)
		require.Len(t, processes(t, cache), 1)
		if how == "the session ends" {
			require.NoError(t, c.c.Close())
		} else {
			c.upload(1, []byte("x"))
			unfetch := c.send(transport.Unfetch, &proto.Unfetch{Fetch: seq}, nil)
			for typ := transport.Fetching; typ == transport.Fetching; {
				head, err := c.c.Next()
				require.NoError(t, err)
				if typ = head.Type; typ == transport.StateReply {
					require.Equal(t, unfetch, head.Seq)
				}
			}
			require.Equal(t, uint64(1), c.sync().Storages, "the session goes on")
		}
		require.Eventually(t, func() bool { return len(processes(t, cache)) == 0 }, patience, 10*time.Millisecond, how)
	}
}

// processes are the processes with the folder of a cache in their arguments.
func processes(t testing.TB, cache string) (out []string) {
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	require.NoError(t, err)
	for _, file := range all {
		if text, err := os.ReadFile(file); err == nil && strings.Contains(string(text), cacheArgument+cache) {
			out = append(out, file)
		}
	}
	return out
}

// inProcess is a server whose helpers are goroutines.
func inProcess(t testing.TB, cache string) *serving {
	f := &hub.Fetcher{Cache: &hub.Cache{Path: cache, Bytes: 1 << 30}}
	l, err := net.Listen("unix", filepath.Join(socketFolder(t), "h"))
	require.NoError(t, err)
	var helpers sync.WaitGroup
	t.Cleanup(func() {
		_ = l.Close()
		helpers.Wait() // they write into the cache
	})
	helper := func() (*net.UnixConn, error) {
		mine, err := net.Dial("unix", l.Addr().String())
		if err != nil {
			return nil, err
		}
		theirs, err := l.Accept()
		if err != nil {
			return nil, err
		}
		helpers.Go(func() { _ = hub.Serve(theirs.(*net.UnixConn), f) })
		return mine.(*net.UnixConn), nil
	}
	return start(t, &session.Server{Load: refBackend, Helper: helper})
}

// TestFetchesThatFail: the session goes on.
func TestFetchesThatFail(t *testing.T) {
	one := hubtest.Safetensors(map[string][]byte{"a": []byte("1")})
	h := hubtest.New(t, map[string]*hubtest.Repo{
		"me/twice":  {Files: map[string][]byte{"x.safetensors": one, "y.safetensors": one}},
		"me/broken": {Files: map[string][]byte{"model.safetensors": []byte("\x05\x00\x00\x00\x00\x00\x00\x00hello")}},
	})
	c := inProcess(t, t.TempDir()).connect(t)
	for repo, want := range map[string]string{
		"me/twice":   `The files "x.safetensors" and "y.safetensors" both have a tensor "a".`,
		"me/broken":  `The file "model.safetensors" of the repository cannot be read: it is not a valid safetensors file`,
		"me/nothing": "There is no repository",
		"me":         "There is no repository",
	} {
		seq, r := c.fetch(&proto.Fetch{Endpoint: h.API.URL, Repo: repo})
		require.Contains(t, r.Status.GetText(), want)
		load := &proto.Load{Found: seq, Storages: make([]uint64, len(r.Weights)+1)}
		require.Contains(t, c.ask(transport.Load, load).Status.GetText(), "was lost while it fetched")
		require.Nil(t, c.ask(transport.Load, &proto.Load{Found: seq}).Status, "it has nothing")
		require.Nil(t, c.ask(transport.Unfetch, &proto.Unfetch{Fetch: seq}).Status)
	}
	require.Nil(t, c.ask(transport.Unfetch, &proto.Unfetch{Fetch: 99}).Status)
	none := start(t, &session.Server{Load: refBackend}).connect(t)
	_, r := none.fetch(&proto.Fetch{Repo: "me/model"})
	require.Contains(t, r.Status.Text, "--weights")
}

// TestBreachesOfFetches: each ends its session, and no other.
func TestBreachesOfFetches(t *testing.T) {
	one := hubtest.Safetensors(map[string][]byte{"a": []byte("1")})
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{"model.safetensors": one}}})
	s := inProcess(t, t.TempDir())
	honest := s.connect(t)
	good := &proto.Fetch{Endpoint: h.API.URL, Repo: "me/model"}
	for name, breach := range map[string]func(c *client){
		"a storage that exists": func(c *client) {
			c.upload(3, nil)
			seq, _ := c.fetch(good)
			c.send(transport.Load, &proto.Load{Found: seq, Storages: []uint64{3}}, nil)
		},
		"a number twice": func(c *client) {
			seq, _ := c.fetch(good)
			require.NoError(c.t, c.c.Send(transport.Fetch, seq, good, nil))
		},
		"a body":   func(c *client) { c.send(transport.Fetch, good, []byte("x")) },
		"a report": func(c *client) { c.send(transport.Fetching, &proto.Fetching{End: true}, nil) },
	} {
		t.Run(name, func(t *testing.T) {
			c := s.connect(t)
			breach(c)
			require.NotEmpty(t, c.fault())
			require.Zero(t, honest.sync().Storages)
		})
	}
	c := s.connect(t)
	h.Inject(slices.Repeat([]hubtest.Fault{hubtest.Stall}, 1000)...)
	h.Change("me/model", func(r *hubtest.Repo) {
		r.Files["model.safetensors"] = hubtest.Safetensors(map[string][]byte{"b": []byte("2")})
	})
	for range 4 {
		c.send(transport.Fetch, good, nil)
	}
	_, r := c.fetch(good)
	require.Contains(t, r.Status.Text, "from at most 4 repositories at once")
}
