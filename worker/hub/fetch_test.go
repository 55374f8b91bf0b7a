// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/hub/hubtest"
)

const secret = "hf_aSecretToken"

// noise is bytes that do not repeat.
func noise(n int) []byte {
	out := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range out {
		out[i] = byte(r.Uint32())
	}
	return out
}

// weights is a file with one tensor of noise.
func weights(name string, n int) []byte {
	return hubtest.Safetensors(map[string][]byte{name: noise(n)})
}

// tester fetches from a hub into a cache of its own.
type tester struct {
	*testing.T
	hub   *hubtest.Hub
	f     *Fetcher
	last  Progress
	files map[string][]byte
}

func newTester(t *testing.T, repos map[string]*hubtest.Repo) *tester {
	return &tester{T: t, hub: hubtest.New(t, repos), f: &Fetcher{
		Cache:    &Cache{Path: filepath.Join(t.TempDir(), "weights"), Bytes: 1 << 30},
		Timeouts: Timeouts{Stall: 20 * time.Second, Whole: time.Minute, Pause: time.Millisecond}, Chunk: 1 << 10,
	}}
}

// fetch fetches, and reads the files.
func (t *tester) fetch(r Request) error {
	if r.Endpoint == "" {
		r.Endpoint = t.hub.API.URL
	}
	if r.Repo == "" {
		r.Repo = "me/model"
	}
	t.files = map[string][]byte{}
	var mu sync.Mutex
	last := ""
	return t.f.Fetch(context.Background(), r, func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		t.last = p
	}, func(f File) error {
		defer f.F.Close()
		require.Less(t, last, f.Path, "in their order")
		last = f.Path
		b, err := io.ReadAll(f.F)
		t.files[f.Path] = b
		require.Equal(t, f.Size, int64(len(b)))
		require.Equal(t, parent(f.Path), f.Folder)
		return err
	})
}

func (t *tester) names() (out []string) {
	for name := range t.files {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}

// onDisk are the files of the cache.
func (t *tester) onDisk() (out []string) {
	entries, err := os.ReadDir(t.f.Cache.Path)
	require.NoError(t, err)
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func repo(files map[string][]byte) map[string]*hubtest.Repo {
	return map[string]*hubtest.Repo{"me/model": {Files: files}}
}

func TestFetch(t *testing.T) {
	small := weights("s", 100)
	x := newTester(t, map[string]*hubtest.Repo{"me/model": {
		Files: map[string][]byte{"model.safetensors": weights("w", 50_000), "unet/model.safetensors": small,
			"config.json": []byte("{}"), "README.md": nil},
		Small: map[string]bool{"unet/model.safetensors": true},
	}})
	x.hub.PageSize = 2
	require.NoError(t, x.fetch(Request{}))
	require.Equal(t, weights("w", 50_000), x.files["model.safetensors"])
	require.Equal(t, small, x.files["unet/model.safetensors"])
	all := int64(len(x.files["model.safetensors"]) + len(small))
	require.Equal(t, Progress{Total: all, Done: all, Fetched: all, Files: 2}, x.last)
	require.Len(t, x.onDisk(), 2, "nothing but the files")

	served := x.hub.Served()
	require.NoError(t, x.fetch(Request{Revision: "refs/pr/1"}))
	require.Equal(t, small, x.files["unet/model.safetensors"])
	require.Equal(t, served, x.hub.Served(), "the second time comes from the cache")
	require.Equal(t, Progress{Total: all, Done: all, Files: 2}, x.last)

	require.NoError(t, x.fetch(Request{Path: "unet/"}))
	require.Equal(t, []string{"unet/model.safetensors"}, x.names())
	require.NoError(t, x.fetch(Request{Path: "model.safetensors"}))
	require.Equal(t, []string{"model.safetensors"}, x.names())
}

// TestCuts: a connection that is cut after some progress is followed by another one without a pause.
func TestCuts(t *testing.T) {
	const chunk, chunks = 16 * enough, 4
	header := len(weights("w", chunk*chunks)) - chunk*chunks
	data := weights("w", chunk*chunks-header)
	require.Len(t, data, chunk*chunks)
	x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
	x.f.Chunk, x.f.Timeouts.Pause = chunk, time.Hour
	// The last one comes after enough bytes even if all hit one chunk.
	x.hub.Inject(slices.Repeat([]hubtest.Fault{hubtest.Cut}, 3)...)
	require.NoError(t, x.fetch(Request{}))
	require.Equal(t, data, x.files["model.safetensors"])
	require.Zero(t, x.hub.Left())
}

// TestFaults: each kind of a fault, several times.
func TestFaults(t *testing.T) {
	data := weights("w", 100_000)
	for _, fault := range []hubtest.Fault{hubtest.TooMany, hubtest.Broken, hubtest.Reset, hubtest.Cut, hubtest.Stall,
		hubtest.Expired} {
		t.Run(string(fault), func(t *testing.T) {
			x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
			if fault == hubtest.Stall {
				x.f.Timeouts.Stall = 500 * time.Millisecond
			}
			x.hub.Inject(slices.Repeat([]hubtest.Fault{fault}, 6)...)
			x.hub.InjectAPI(3)
			require.NoError(t, x.fetch(Request{}))
			require.Equal(t, data, x.files["model.safetensors"])
			require.Zero(t, x.hub.Left())
		})
	}
}

// TestFaultsOfAllKinds: 60 faults in a fetch of one file, in a random order.
func TestFaultsOfAllKinds(t *testing.T) {
	data := weights("w", 200_000)
	kinds := []hubtest.Fault{hubtest.TooMany, hubtest.Broken, hubtest.Reset, hubtest.Cut, hubtest.Expired}
	for seed := range uint64(5) {
		x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
		r := rand.New(rand.NewPCG(seed, 3))
		for range 60 {
			x.hub.Inject(kinds[r.IntN(len(kinds))], "")
		}
		require.NoError(t, x.fetch(Request{}), "seed %d", seed)
		require.Equal(t, data, x.files["model.safetensors"])
		require.Zero(t, x.hub.Left())
	}
}

// TestAServerThatStaysBroken: the error says so, and the next fetch goes on where this one has ended.
func TestAServerThatStaysBroken(t *testing.T) {
	data := weights("w", 100_000)
	x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
	x.hub.Inject(slices.Repeat([]hubtest.Fault{""}, 40)...)
	x.hub.Inject(slices.Repeat([]hubtest.Fault{hubtest.Broken}, 300)...)
	err := x.fetch(Request{})
	require.ErrorContains(t, err, "an error of its own (503). Try again later.")
	x.hub.Inject(slices.Repeat([]hubtest.Fault{""}, 1)...)
	for x.hub.Left() > 0 { // the rest of the faults
		_ = x.fetch(Request{})
	}
	require.NoError(t, x.fetch(Request{}))
	require.Equal(t, data, x.files["model.safetensors"])
	require.Less(t, x.last.Fetched, int64(80_000), "the first 40 requests were not repeated")
	require.Equal(t, int64(len(data)), x.last.Done)
}

func TestAServerWithoutRanges(t *testing.T) {
	data := weights("w", 100_000)
	x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
	x.hub.Inject(slices.Repeat([]hubtest.Fault{hubtest.WholeFile}, 20)...)
	require.NoError(t, x.fetch(Request{}))
	require.Equal(t, data, x.files["model.safetensors"])
	require.Equal(t, int64(len(data)), x.last.Done)
	x = newTester(t, repo(map[string][]byte{"model.safetensors": data}))
	x.hub.Inject(hubtest.OtherPart)
	require.ErrorContains(t, x.fetch(Request{}), "sends another part of the file")
}

// TestWrongBytes: bytes without the listed hash are never given out, and the next fetch can succeed.
func TestWrongBytes(t *testing.T) {
	data := weights("w", 10_000)
	wrong := bytes.Clone(data)
	wrong[5000] ^= 1
	for _, small := range []bool{false, true} {
		x := newTester(t, map[string]*hubtest.Repo{"me/model": {
			Files: map[string][]byte{"model.safetensors": data}, Wrong: map[string][]byte{"model.safetensors": wrong},
			Small: map[string]bool{"model.safetensors": small},
		}})
		require.ErrorContains(t, x.fetch(Request{}), "do not have the hash that the hub lists, twice")
		require.Empty(t, x.files)
		require.Empty(t, x.onDisk())
		x.hub.Change("me/model", func(r *hubtest.Repo) { r.Wrong = nil })
		require.NoError(t, x.fetch(Request{}))
		require.Equal(t, data, x.files["model.safetensors"])
	}
}

// TestADamagedCache: a file that was changed on the disk is fetched again.
func TestADamagedCache(t *testing.T) {
	data := weights("w", 10_000)
	x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
	require.NoError(t, x.fetch(Request{}))
	path := filepath.Join(x.f.Cache.Path, x.onDisk()[0])
	for _, damage := range [][]byte{nil, data[1:], append(bytes.Clone(data), 0), append([]byte{1}, data[1:]...)} {
		require.NoError(t, os.WriteFile(path, damage, 0o600))
		require.NoError(t, x.fetch(Request{}))
		require.Equal(t, data, x.files["model.safetensors"])
		require.Equal(t, int64(len(data)), x.last.Fetched)
	}
	require.NoError(t, os.WriteFile(path+mapEnd, []byte("garbage"), 0o600))
	require.NoError(t, os.WriteFile(path+partEnd, []byte("garbage"), 0o600))
	require.NoError(t, os.Remove(path))
	require.NoError(t, x.fetch(Request{}))
	require.Equal(t, data, x.files["model.safetensors"])
}

// TestTheCacheIsBounded: the file that was used longest ago goes.
func TestTheCacheIsBounded(t *testing.T) {
	x := newTester(t, repo(map[string][]byte{"a/model.safetensors": weights("a", 100_000),
		"b/model.safetensors": weights("b", 100_100), "c/model.safetensors": weights("c", 100_200)}))
	x.f.Cache.Bytes = 250_000
	for _, folder := range []string{"a", "b", "a"} {
		require.NoError(t, x.fetch(Request{Path: folder}))
	}
	old := time.Now().Add(-time.Hour)
	require.Equal(t, int64(0), x.last.Fetched)
	for i, folder := range []string{"b", "a"} {
		h := x.hashOf(folder + "/model.safetensors")
		require.NoError(t, os.Chtimes(x.f.Cache.path(h), old, old.Add(time.Duration(i)*time.Minute)))
	}
	require.NoError(t, x.fetch(Request{Path: "c"}))
	require.Len(t, x.onDisk(), 2)
	require.NoError(t, x.fetch(Request{Path: "a"}))
	require.Zero(t, x.last.Fetched, "b was used longest ago")
	require.ErrorContains(t, x.fetch(Request{}), "the worker keeps at most 250000 bytes of weights on its disk. Start "+
		"the worker with a larger --weights-bytes")
	require.Len(t, x.onDisk(), 2, "nothing is removed for what does not fit")
}

// TestAFullDisk: what is not needed any more goes, and then the error says what to do.
func TestAFullDisk(t *testing.T) {
	x := newTester(t, repo(map[string][]byte{"a/model.safetensors": weights("a", 100_000),
		"b/model.safetensors": weights("b", 100_100)}))
	require.NoError(t, x.fetch(Request{Path: "a"}))
	capacity := int64(150_000)
	x.f.Cache.free = func(folder string) (int64, error) {
		entries, err := os.ReadDir(folder)
		left := capacity
		for _, e := range entries {
			info, err := e.Info()
			require.NoError(t, err)
			left -= info.Size()
		}
		return left, err
	}
	require.NoError(t, x.fetch(Request{Path: "b"}))
	require.Len(t, x.onDisk(), 1)
	capacity = 90_000
	require.ErrorContains(t, x.fetch(Request{Path: "a"}), "The worker's disk is full: the weights need 100")
	require.Len(t, x.onDisk(), 1, "nothing is removed in vain")
	require.ErrorContains(t, onDisk(fmt.Errorf("write: %w", syscall.ENOSPC)), "start the worker with --weights on")
	x.f.Cache.Path = filepath.Join(x.f.Cache.Path, x.onDisk()[0], "below a file")
	require.ErrorContains(t, x.fetch(Request{Path: "a"}), "cannot keep weights on its disk")
}

// TestAFetchThatTakesTooLong ends with an error, and what has come is kept.
func TestAFetchThatTakesTooLong(t *testing.T) {
	x := newTester(t, repo(map[string][]byte{"model.safetensors": weights("w", 100_000)}))
	x.hub.Inject(slices.Repeat([]hubtest.Fault{hubtest.Stall}, 100)...)
	x.f.Timeouts.Whole = 3 * time.Second
	require.ErrorContains(t, x.fetch(Request{}), "did not come within 3s. What has come is kept; load them again.")
}

func TestRetryAfter(t *testing.T) {
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, " 7 ": 7 * time.Second, "-1": 0,
		"x": 0, "999999999999": maxRetryAfter, "86400": maxRetryAfter, "Mon, 02 Jan 2006 15:04:05 GMT": 0} {
		require.Equal(t, want, min(retryAfter(text), maxRetryAfter), text)
	}
	soon := retryAfter(time.Now().Add(time.Minute).UTC().Format(http.TimeFormat))
	require.InDelta(t, 60, soon.Seconds(), 30)
}

// hashOf is the hash by which the hub lists a file.
func (t *tester) hashOf(file string) hash {
	endpoint, err := (&Request{Endpoint: t.hub.API.URL, Repo: "me/model"}).check()
	require.NoError(t, err)
	all, err := newWeb(Request{Repo: "me/model"}, endpoint, t.f.Timeouts).list(context.Background(), hubtest.Commit)
	require.NoError(t, err)
	i := slices.IndexFunc(all, func(f remote) bool { return f.path == file })
	return all[i].hash
}

func TestIndexes(t *testing.T) {
	index := func(names ...string) []byte {
		var all []string
		for i, n := range names {
			all = append(all, fmt.Sprintf(`"t%d":%q`, i, n))
		}
		return []byte(`{"metadata":{},"weight_map":{` + strings.Join(all, ",") + `}}`)
	}
	a, b := weights("a", 1000), weights("b", 2000)
	x := newTester(t, repo(map[string][]byte{"model.safetensors.index.json": index("m-1.safetensors", "m-2.safetensors",
		"m-1.safetensors"), "m-1.safetensors": a, "m-2.safetensors": b, "consolidated.safetensors": a}))
	require.NoError(t, x.fetch(Request{}))
	require.Equal(t, []string{"m-1.safetensors", "m-2.safetensors"}, x.names())
	require.NoError(t, x.fetch(Request{Path: "model.safetensors.index.json"}))
	require.Len(t, x.files, 2)
	for want, text := range map[string][]byte{
		`names the file "m-3.safetensors", which is no safetensors file`: index("m-1.safetensors", "m-3.safetensors"),
		`names the file "../../etc/passwd"`:                              index("../../etc/passwd"),
		"does not name any file":                                         []byte(`{"weight_map":[]}`),
	} {
		x.hub.Change("me/model", func(r *hubtest.Repo) { r.Files["model.safetensors.index.json"] = text })
		require.ErrorContains(t, x.fetch(Request{}), want)
	}
}

func TestChoose(t *testing.T) {
	for want, files := range map[string]string{
		"model":                     "model other model.fp16",
		"a b":                       "a b a.fp16",
		"a.fp16":                    "a.fp16",
		"diffusion_pytorch_model":   "diffusion_pytorch_model diffusion_pytorch_model.fp16 x",
		"adapter_model":             "adapter_model",
		"u/model x/y/model":         "u/model x/y/model x/y/z",
		"first second/deep/shallow": "first second/deep/shallow",
	} {
		var all []remote
		for name := range strings.FieldsSeq(files) {
			all = append(all, remote{path: name + weightsEnd})
		}
		got, err := (&web{}).choose(all)
		require.NoError(t, err)
		var names []string
		for _, f := range got.files {
			names = append(names, strings.TrimSuffix(f.path, weightsEnd))
		}
		require.Equal(t, want, strings.Join(names, " "))
	}
	got := chooseIn([]remote{{path: "m.fp16" + indexEnd}, {path: "m" + indexEnd}, {path: "m-1" + weightsEnd}})
	require.Equal(t, choice{indexes: []remote{{path: "m" + indexEnd}}}, got)
}

// TestRefusals: each error says what is wrong and what to do, and none has a secret.
func TestRefusals(t *testing.T) {
	gone := httptest.NewServer(nil)
	gone.Close()
	x := newTester(t, map[string]*hubtest.Repo{
		"me/model":  {Files: map[string][]byte{"model.safetensors": weights("w", 10)}},
		"me/gated":  {Files: map[string][]byte{"model.safetensors": weights("w", 10)}, Gated: true, Token: secret},
		"me/mine":   {Files: map[string][]byte{"model.safetensors": weights("w", 10)}, Token: secret},
		"me/pickle": {Files: map[string][]byte{"pytorch_model.bin": noise(10), "config.json": noise(3)}},
		"me/none":   {Files: map[string][]byte{"config.json": noise(3)}},
		"me/empty":  {},
	})
	for _, c := range []struct {
		r     Request
		value bool
		want  string
	}{
		{Request{Repo: "me/gated"}, false, `"me/gated" is gated: its owner lets only some accounts read it. Ask for access`},
		{Request{Repo: "me/gated", Token: "hf_other"}, false, "the token's account has no access"},
		{Request{Repo: "me/mine"}, true, "for a private repository, pass a token: token=…"},
		{Request{Repo: "me/mine", Token: "hf_other"}, true, "whether the token's account may read it"},
		{Request{Repo: "me/nothing"}, true, `There is no repository "me/nothing" on "127.0.0.1:`},
		{Request{Revision: "v9"}, true, `has no revision "v9". Give a branch, a tag or a commit.`},
		{Request{Path: "unet"}, true, `has no folder or file "unet"`},
		{Request{Path: "other.safetensors"}, true, `has no folder or file "other.safetensors"`},
		{Request{Repo: "me/pickle"}, true, `only as pickle files ("pytorch_model.bin" and the like). A pickle file can`},
		{Request{Repo: "me/none"}, true, "has no safetensors files"},
		{Request{Repo: "me/empty"}, true, "is empty"},
		{Request{Repo: "../../x"}, true, "is no name of a repository; it has the form owner/name"},
		{Request{Repo: "a/b/c"}, true, "is no name of a repository"},
		{Request{Repo: "me/.."}, true, "is no name of a repository"},
		{Request{Revision: "a\nb"}, true, "is no revision"},
		{Request{Path: "../x"}, true, "is no path in a repository"},
		{Request{Path: "/x"}, true, "is no path in a repository"},
		{Request{Token: "a b"}, true, "characters that no token has"},
		{Request{Endpoint: "ftp://x"}, true, "set HF_ENDPOINT to such an address"},
		{Request{Endpoint: "https://me:pw@x"}, true, "without a name, a password"},
		{Request{Endpoint: "http://hub.example", Token: secret}, true, "others on the network could read the token"},
		{Request{Endpoint: "http://169.254.169.254"}, false, "169.254.169.254 is not for servers of weights"},
		{Request{Endpoint: gone.URL}, false, "the connection is refused. Check whether the worker's host may use"},
		{Request{Endpoint: x.hub.Bytes.URL}, true, "There is no repository"},
	} {
		t.Run(c.r.String()+c.r.Endpoint, func(t *testing.T) {
			err := x.fetch(c.r)
			require.ErrorContains(t, err, c.want)
			var mine *Error
			require.ErrorAs(t, err, &mine)
			require.Equal(t, c.value, mine.Value)
			require.NotContains(t, err.Error(), secret)
			require.NotContains(t, err.Error(), "a-secret-signature")
		})
	}
	require.NoError(t, x.fetch(Request{Repo: "me/gated", Token: secret}))
	require.NoError(t, x.fetch(Request{Repo: "me/mine", Token: secret}))
	require.Empty(t, x.hub.TokensElsewhere(), "the token goes to the hub's own server only")
	require.ErrorContains(t, x.fetch(Request{Repo: "me/gated"}), "is gated", "the cache gives nobody access")
	require.ErrorContains(t, x.fetch(Request{Repo: "me/mine"}), "pass a token")
}

// TestRedirects: a redirect does not lead to where the hub's own server is not.
func TestRedirects(t *testing.T) {
	x := newTester(t, repo(map[string][]byte{"model.safetensors": weights("w", 10)}))
	for to, want := range map[string]string{
		"http://169.254.169.254/latest/meta-data/": "169.254.169.254 is not for servers of weights",
		"http://[fd00:ec2::254]/latest":            "fd00:ec2::254 is not for servers of weights",
		"http://[::ffff:169.254.169.254]/":         "169.254.169.254 is not for servers",
		"http://10.0.0.1/":                         "10.0.0.1 is inside the worker's network, and the hub's own",
		"file:///etc/passwd":                       "the redirect does not name a server",
		"gopher://127.0.0.1/":                      "is not https",
		"https://user:pw@127.0.0.1/":               "the redirect does not name a server",
	} {
		x.hub.Elsewhere = to
		x.hub.Inject(hubtest.Elsewhere)
		err := x.fetch(Request{})
		require.ErrorContains(t, err, want, to)
		require.NotContains(t, err.Error(), "user:pw")
	}
	require.NoError(t, x.fetch(Request{}))
}

func TestACertificateOfNobody(t *testing.T) {
	s := httptest.NewTLSServer(nil)
	t.Cleanup(s.Close)
	s.Config.ErrorLog = nil
	x := newTester(t, nil)
	require.ErrorContains(t, x.fetch(Request{Endpoint: s.URL}), "cannot verify the certificate of")
}

// TestAFetchThatIsCanceled ends while the server is silent.
func TestAFetchThatIsCanceled(t *testing.T) {
	x := newTester(t, repo(map[string][]byte{"model.safetensors": weights("w", 100_000)}))
	x.hub.Inject(slices.Repeat([]hubtest.Fault{hubtest.Stall}, 100)...)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- x.f.Fetch(ctx, Request{Endpoint: x.hub.API.URL, Repo: "me/model"}, func(Progress) {},
			func(File) error { return nil })
	}()
	require.Eventually(t, func() bool { return x.hub.Left() < 100 }, 30*time.Second, time.Millisecond)
	cancel()
	select {
	case err := <-ended:
		require.ErrorIs(t, err, context.Canceled)
	case <-time.After(30 * time.Second):
		t.Fatal("the fetch does not end")
	}
}

// TestTwoFetchesOfOneFile: the file is fetched once.
func TestTwoFetchesOfOneFile(t *testing.T) {
	data := weights("w", 300_000)
	x := newTester(t, repo(map[string][]byte{"model.safetensors": data}))
	var all sync.WaitGroup
	errs := make([]error, 4)
	for i := range errs {
		all.Go(func() {
			errs[i] = x.f.Fetch(context.Background(), Request{Endpoint: x.hub.API.URL, Repo: "me/model"}, func(Progress) {},
				func(f File) error {
					defer f.F.Close()
					b, err := io.ReadAll(f.F)
					if err == nil && !bytes.Equal(b, data) {
						err = errors.New("wrong bytes")
					}
					return err
				})
		})
	}
	all.Wait()
	require.NoError(t, errors.Join(errs...))
	require.Equal(t, int64(len(data)), x.hub.Served())
}

// TestAFileByItsHash needs no server once it is in the cache.
func TestAFileByItsHash(t *testing.T) {
	data := weights("w", 10_000)
	x := newTester(t, repo(map[string][]byte{"sub/x.safetensors": data, "other.bin": noise(100)}))
	h := x.hashOf("sub/x.safetensors")
	require.NoError(t, x.fetch(Request{Path: "sub/x.safetensors", SHA256: h.hex}))
	require.Equal(t, data, x.files["sub/x.safetensors"])
	require.NoError(t, x.fetch(Request{Endpoint: "https://hub.invalid", Path: "a/b", SHA256: h.hex}))
	require.Equal(t, data, x.files["a/b"])
	other := x.hashOf("other.bin").hex
	require.ErrorContains(t, x.fetch(Request{Path: "sub/x.safetensors", SHA256: other}), "is another one now")
	require.ErrorContains(t, x.fetch(Request{Path: "x", SHA256: "abc"}), "is no SHA-256")
}
