// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
)

const (
	// chunkBytes is what one request fetches, and parallel how many requests run at a time. One connection to a content
	// network carries some 50 MB/s.
	chunkBytes = 16 << 20
	parallel   = 8
)

var (
	// errNoRanges means that a server sends whole files only.
	errNoRanges = errors.New("the server sends whole files only")
	// errWrongHash means that a file is not the one that the hub has listed.
	errWrongHash = errors.New("the hash is wrong")
)

// blob fetches one file into the part that the caller has locked.
type blob struct {
	w     *web
	cache *Cache
	file  remote
	from  *url.URL // where the hub has the file
	part  *os.File
	chunk int64
	count func(n int) // called with each number of bytes that has come
	taken func()      // called when a request is under way for each chunk

	mu      sync.Mutex
	come    int // bytes that were counted
	changed *sync.Cond
	direct  *url.URL // where the last redirect has led; nil: not known, or it does not answer any more
	have    []bool   // by chunk
	next    int      // the first chunk that no request is under way for
	failed  bool     // the hash will not be complete
}

// begin finds out what an earlier fetch has left.
func (b *blob) begin() {
	b.changed = sync.NewCond(&b.mu)
	b.have = make([]bool, (b.file.size+b.chunk-1)/b.chunk)
	b.resume()
}

// fetch fetches what is missing, and checks the hash of all.
func (b *blob) fetch(ctx context.Context) error {
	if err := b.part.Truncate(b.file.size); err != nil {
		return onDisk(err)
	}
	err := b.run(ctx, b.chunks)
	if errors.Is(err, errNoRanges) {
		clear(b.have)
		b.add(-b.come)
		err = b.run(ctx, b.whole)
	}
	if err == nil || errors.Is(err, errWrongHash) || !b.some() {
		return err
	}
	b.note()
	return err
}

// add counts bytes that have come.
func (b *blob) add(n int) {
	b.mu.Lock()
	b.come += n
	b.mu.Unlock()
	b.count(n)
}

// run fetches with a function, and computes the hash beside it.
func (b *blob) run(ctx context.Context, fetch func(ctx context.Context) error) error {
	b.failed, b.next = false, 0
	right := make(chan error, 1)
	go func() { right <- b.check() }()
	err := fetch(ctx)
	b.mu.Lock()
	b.failed = err != nil
	b.changed.Signal()
	b.mu.Unlock()
	wrong := <-right
	if err != nil {
		return err
	}
	return wrong
}

// check computes the hash of the chunks in their order as they come.
func (b *blob) check() error {
	sum, buffer := b.file.hash.sum(b.file.size), make([]byte, 1<<20)
	for i := range b.have {
		b.mu.Lock()
		for !b.have[i] && !b.failed {
			b.changed.Wait()
		}
		failed := b.failed
		b.mu.Unlock()
		if failed {
			return nil
		}
		begin, end := b.bounds(i)
		for begin < end {
			n, err := b.part.ReadAt(buffer[:min(int64(len(buffer)), end-begin)], begin)
			if n == 0 {
				return onDisk(err)
			}
			sum.Write(buffer[:n])
			begin += int64(n)
		}
	}
	if !b.file.hash.is(sum) {
		return errWrongHash
	}
	return nil
}

// bounds are where a chunk lies in the file.
func (b *blob) bounds(i int) (begin, end int64) {
	begin = int64(i) * b.chunk
	return begin, min(begin+b.chunk, b.file.size)
}

func (b *blob) some() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, have := range b.have {
		if have {
			return true
		}
	}
	return false
}

// resume finds out which chunks an earlier fetch has left. The hash of the whole file decides whether that is true.
func (b *blob) resume() {
	text, err := os.ReadFile(b.cache.path(b.file.hash) + mapEnd)
	name, chunks, ok := strings.Cut(string(text), "\n")
	info, errStat := b.part.Stat()
	if err != nil || errStat != nil || !ok || name != mapName(b.file, b.chunk) || len(chunks) != len(b.have) ||
		info.Size() != b.file.size {
		return
	}
	for i := range b.have {
		if b.have[i] = chunks[i] == '1'; b.have[i] {
			begin, end := b.bounds(i)
			b.add(int(end - begin))
		}
	}
}

// note writes down which chunks are there, for a later fetch.
func (b *blob) note() {
	b.mu.Lock()
	text := []byte(mapName(b.file, b.chunk) + "\n")
	for _, have := range b.have {
		text = append(text, map[bool]byte{false: '0', true: '1'}[have])
	}
	b.mu.Unlock()
	_ = os.WriteFile(b.cache.path(b.file.hash)+mapEnd, text, 0o600)
}

// chunks fetches the missing chunks, several at a time.
func (b *blob) chunks(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var all sync.WaitGroup
	for range min(parallel, len(b.have)) {
		all.Go(func() {
			for ctx.Err() == nil {
				i, ok := b.take()
				if !ok {
					b.taken()
					return
				}
				if err := b.one(ctx, i); err != nil {
					cancel(err)
					return
				}
			}
		})
	}
	all.Wait()
	return context.Cause(ctx)
}

// take is the next chunk to fetch.
func (b *blob) take() (int, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.next < len(b.have) {
		i := b.next
		b.next++
		if !b.have[i] {
			return i, true
		}
	}
	return 0, false
}

// one fetches a chunk.
func (b *blob) one(ctx context.Context, i int) error {
	at, end := b.bounds(i)
	err := b.w.retry(ctx, func() (int64, error) {
		n, err := b.piece(ctx, at, end)
		at += n
		return n, err
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.have[i] = true
	b.changed.Signal()
	noted := b.chunk < chunkBytes || i%4 == 0
	b.mu.Unlock()
	if noted { // at most some chunks are fetched again if this process is killed
		b.note()
	}
	return nil
}

// get opens the file at its last direct address, or else through the hub.
func (b *blob) get(ctx context.Context, header http.Header) (*http.Response, *url.URL, error) {
	b.mu.Lock()
	direct := b.direct
	b.mu.Unlock()
	if direct != nil {
		res, at, err := b.w.open(ctx, http.MethodGet, direct, header)
		var again *temporary
		if err == nil || errors.As(err, &again) || ctx.Err() != nil {
			return res, at, err
		}
		b.mu.Lock() // its address was signed for a time
		b.direct = nil
		b.mu.Unlock()
	}
	res, at, err := b.w.open(ctx, http.MethodGet, b.from, header)
	if err == nil {
		b.mu.Lock()
		b.direct = at
		b.mu.Unlock()
	}
	return res, at, err
}

// piece fetches the bytes from an offset on, up to an end, and returns how many have come.
func (b *blob) piece(ctx context.Context, at, end int64) (int64, error) {
	if at == end {
		return 0, nil
	}
	header := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", at, end-1)}, "Accept-Encoding": {"identity"}}
	res, from, err := b.get(ctx, header)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode == http.StatusOK && (at > 0 || end < b.file.size):
		return 0, errNoRanges
	case res.StatusCode == http.StatusOK:
	case res.StatusCode != http.StatusPartialContent:
		return 0, errorf("%s answers with status %d where a part of a file is expected.", quote(from.Host), res.StatusCode)
	case res.Header.Get("Content-Range") != fmt.Sprintf("bytes %d-%d/%d", at, end-1, b.file.size):
		return 0, errorf("%s sends another part of the file %s than was asked for (%s). Try again later.",
			quote(from.Host), quote(b.file.path), quote(res.Header.Get("Content-Range")))
	}
	return b.copy(res.Body, from, at, end)
}

// copy writes the bytes of a body at their offset.
func (b *blob) copy(body io.ReadCloser, from *url.URL, at, end int64) (n int64, err error) {
	in, buffer := b.w.watched(body), make([]byte, 256<<10)
	defer in.timer.Stop()
	for at+n < end {
		got, err := in.Read(buffer[:min(int64(len(buffer)), end-at-n)])
		if got > 0 {
			if _, err := b.part.WriteAt(buffer[:got], at+n); err != nil {
				return n, onDisk(err)
			}
			n += int64(got)
			b.add(got)
		}
		if at+n == end {
			break
		}
		if err != nil {
			return n, b.w.unreachable(from, err)
		}
	}
	return n, nil
}

// whole fetches the file from a server that knows no ranges.
func (b *blob) whole(ctx context.Context) error {
	err := b.w.retry(ctx, func() (int64, error) {
		b.add(-b.come)
		res, from, err := b.get(ctx, http.Header{"Accept-Encoding": {"identity"}})
		if err != nil {
			return 0, err
		}
		defer res.Body.Close()
		_, err = b.copy(res.Body, from, 0, b.file.size)
		return 0, err
	})
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.have {
		b.have[i] = true
	}
	b.changed.Signal()
	return nil
}
