// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package hubtest is a hub for tests: two servers on the loopback interface, one with the interface and one with the
// bytes of large files. It fails on purpose where a test says so. It never opens a port on another interface.
package hubtest

import (
	"bytes"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Commit is the commit of all repositories.
const Commit = "0123456789abcdef0123456789abcdef01234567"

// Repo is a repository.
type Repo struct {
	Files map[string][]byte
	// Token may read the repository; "": everybody may.
	Token string
	// Gated: who has no token is told so.
	Gated bool
	// Wrong has files whose bytes are not those of their hash.
	Wrong map[string][]byte
	// Small files are in git itself: the hub knows only the hash of git's object.
	Small map[string]bool
}

// Fault is what happens to a request for the bytes of a file.
type Fault string

// Faults.
const (
	TooMany   Fault = "429"
	Broken    Fault = "503"
	Reset     Fault = "reset"     // the connection ends without an answer
	Cut       Fault = "cut"       // it ends in the middle of the bytes
	Stall     Fault = "stall"     // no byte comes any more
	WholeFile Fault = "whole"     // the server ignores the range
	OtherPart Fault = "other"     // the server says that it sends another part
	Expired   Fault = "expired"   // the signed address is not valid any more
	Elsewhere Fault = "elsewhere" // a redirect to Hub.Elsewhere
)

// Hub is a running hub.
type Hub struct {
	API, Bytes *httptest.Server
	PageSize   int    // of listings; 0: 1000
	Elsewhere  string // where a redirect of Elsewhere leads

	mu       sync.Mutex
	repos    map[string]*Repo
	faults   []Fault // of the next requests for bytes, in order
	api      int     // faults 503 of the next requests of the interface
	served   int64
	requests []string
	tokens   map[string]bool // that came to the server of the bytes
	release  chan struct{}
}

// New starts a hub that ends with the test.
func New(t testing.TB, repos map[string]*Repo) *Hub {
	h := &Hub{repos: repos, tokens: map[string]bool{}, release: make(chan struct{})}
	h.API = httptest.NewServer(http.HandlerFunc(h.serveAPI))
	h.Bytes = httptest.NewServer(http.HandlerFunc(h.serveBytes))
	t.Cleanup(func() {
		close(h.release)
		h.API.CloseClientConnections()
		h.Bytes.CloseClientConnections()
		h.API.Close()
		h.Bytes.Close()
	})
	return h
}

// Inject has the next requests for bytes fail.
func (h *Hub) Inject(faults ...Fault) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.faults = append(h.faults, faults...)
}

// InjectAPI has the next requests of the interface fail.
func (h *Hub) InjectAPI(n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.api = n
}

// Left is how many faults have not happened.
func (h *Hub) Left() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.faults)
}

// Served is how many bytes of files were sent.
func (h *Hub) Served() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.served
}

// Requests are the methods and paths of all requests.
func (h *Hub) Requests() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.requests)
}

// TokensElsewhere are the tokens that came to the server of the bytes.
func (h *Hub) TokensElsewhere() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Sorted(maps.Keys(h.tokens))
}

// Change changes a repository.
func (h *Hub) Change(name string, change func(r *Repo)) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change(h.repos[name])
}

func fail(w http.ResponseWriter, status int, code string) {
	if code != "" {
		w.Header().Set("X-Error-Code", code)
	}
	w.WriteHeader(status)
}

// serveAPI serves the interface, and redirects requests for files.
func (h *Hub) serveAPI(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests = append(h.requests, r.Method+" "+r.URL.Path)
	if h.api > 0 {
		h.api--
		fail(w, http.StatusServiceUnavailable, "")
		return
	}
	parts := strings.Split(strings.Trim(r.URL.EscapedPath(), "/"), "/")
	for i, p := range parts {
		parts[i], _ = url.PathUnescape(p)
	}
	if len(parts) > 5 && parts[0] == "api" {
		parts = parts[2:]
	}
	if len(parts) < 4 {
		fail(w, http.StatusNotFound, "")
		return
	}
	repo := h.repos[parts[0]+"/"+parts[1]]
	allowed := repo != nil && (repo.Token == "" || r.Header.Get("Authorization") == "Bearer "+repo.Token)
	switch {
	case repo == nil, !allowed && !repo.Gated:
		fail(w, http.StatusUnauthorized, "RepoNotFound")
	case parts[3] != "main" && parts[3] != "refs/pr/1" && parts[3] != Commit:
		fail(w, http.StatusNotFound, "RevisionNotFound")
	case parts[2] == "revision":
		_ = json.NewEncoder(w).Encode(map[string]any{"sha": Commit})
	case parts[2] == "tree":
		h.tree(w, r, repo, strings.Join(parts[4:], "/"))
	case parts[2] == "resolve" && !allowed:
		fail(w, http.StatusForbidden, "GatedRepo")
	case parts[2] == "resolve":
		h.resolve(w, r, repo, parts[0]+"/"+parts[1], strings.Join(parts[4:], "/"))
	default:
		fail(w, http.StatusNotFound, "")
	}
}

// tree lists a folder.
func (h *Hub) tree(w http.ResponseWriter, r *http.Request, repo *Repo, folder string) {
	var all []map[string]any
	folders := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(repo.Files)) {
		if folder != "" && !strings.HasPrefix(name, folder+"/") {
			continue
		}
		for i, c := range name {
			if c == '/' && !folders[name[:i]] {
				folders[name[:i]] = true
				all = append(all, map[string]any{"type": "directory", "path": name[:i], "oid": Commit, "size": 0})
			}
		}
		data := repo.Files[name]
		e := map[string]any{"type": "file", "path": name, "size": len(data), "oid": GitHash(data)}
		if !repo.Small[name] {
			sum := sha256.Sum256(data)
			e["lfs"] = map[string]any{"oid": hex.EncodeToString(sum[:]), "size": len(data), "pointerSize": 134}
		}
		all = append(all, e)
	}
	if len(all) == 0 && folder != "" {
		fail(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	size := h.PageSize
	if size == 0 {
		size = 1000
	}
	at, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
	end := min(at+size, len(all))
	if end < len(all) {
		next := *r.URL
		next.RawQuery = url.Values{"recursive": {"true"}, "cursor": {strconv.Itoa(end)}}.Encode()
		w.Header().Set("Link", fmt.Sprintf(`<%s%s>; rel="next"`, h.API.URL, next.String()))
	}
	_ = json.NewEncoder(w).Encode(all[min(at, end):end])
}

// GitHash is the hash of git's object of a file.
func GitHash(data []byte) string {
	sum := sha1.Sum(append(fmt.Appendf(nil, "blob %d\x00", len(data)), data...))
	return hex.EncodeToString(sum[:])
}

func (h *Hub) resolve(w http.ResponseWriter, r *http.Request, repo *Repo, name, file string) {
	if _, ok := repo.Files[file]; !ok {
		fail(w, http.StatusNotFound, "EntryNotFound")
		return
	}
	to := h.Bytes.URL + "/" + name + "/" + file + "?signature=a-secret-signature"
	if len(h.faults) > 0 && h.faults[0] == Elsewhere {
		h.faults = h.faults[1:]
		to = h.Elsewhere
	}
	http.Redirect(w, r, to, http.StatusFound)
}

// serveBytes serves the bytes of files.
func (h *Hub) serveBytes(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	h.requests = append(h.requests, r.Method+" bytes "+r.URL.Path)
	if token := r.Header.Get("Authorization"); token != "" {
		h.tokens[token] = true
	}
	parts := strings.SplitN(strings.Trim(r.URL.Path, "/"), "/", 3)
	var repo *Repo
	if len(parts) == 3 {
		repo = h.repos[parts[0]+"/"+parts[1]]
	}
	if repo == nil {
		h.mu.Unlock()
		fail(w, http.StatusNotFound, "")
		return
	}
	data, wrong := repo.Wrong[parts[2]]
	if !wrong {
		data = repo.Files[parts[2]]
	}
	fault := Fault("")
	if len(h.faults) > 0 && r.Method == http.MethodGet && h.faults[0] != Elsewhere {
		fault = h.faults[0]
		h.faults = h.faults[1:]
	}
	h.mu.Unlock()
	begin, end := rangeOf(r, len(data))
	switch fault {
	case TooMany:
		w.Header().Set("Retry-After", "0")
		fail(w, http.StatusTooManyRequests, "")
	case Broken:
		fail(w, http.StatusServiceUnavailable, "")
	case Expired:
		fail(w, http.StatusForbidden, "")
	case Reset:
		panic(http.ErrAbortHandler)
	case Cut, Stall:
		part(w, begin, end, len(data))
		h.send(w, data[begin:begin+(end-begin)/2])
		_ = http.NewResponseController(w).Flush()
		if fault == Stall {
			<-h.release
		}
		panic(http.ErrAbortHandler)
	case WholeFile:
		h.send(w, data)
	case OtherPart:
		part(w, begin, end, len(data)+1)
		h.send(w, data[begin:end])
	default:
		if r.Method == http.MethodHead {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(data))
			return
		}
		if r.Header.Get("Range") != "" {
			part(w, begin, end, len(data))
		}
		h.send(w, data[begin:end])
	}
}

// rangeOf is the part of a file that a request asks for.
func rangeOf(r *http.Request, size int) (begin, end int) {
	end = size - 1
	_, _ = fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end)
	return min(begin, size), min(end+1, size)
}

func part(w http.ResponseWriter, begin, end, size int) {
	w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, end-1, size))
	w.Header().Set("Content-Length", strconv.Itoa(end-begin))
	w.WriteHeader(http.StatusPartialContent)
}

func (h *Hub) send(w http.ResponseWriter, data []byte) {
	n, _ := w.Write(data)
	h.mu.Lock()
	h.served += int64(n)
	h.mu.Unlock()
}

// Safetensors is a file with one tensor of bytes for each name.
func Safetensors(tensors map[string][]byte) []byte {
	header, data := map[string]any{"__metadata__": map[string]string{"format": "pt"}}, []byte{}
	for _, name := range slices.Sorted(maps.Keys(tensors)) {
		b := tensors[name]
		header[name] = map[string]any{"dtype": "U8", "shape": []int{len(b)}, "data_offsets": []int{len(data),
			len(data) + len(b)}}
		data = append(data, b...)
	}
	text, err := json.Marshal(header)
	if err != nil {
		panic(err)
	}
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...), data...)
}
