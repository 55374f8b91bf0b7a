// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"context"
	"errors"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// maxIndex bounds an index file in bytes.
const maxIndex = 64 << 20

// Fetcher fetches files into a cache.
type Fetcher struct {
	Cache    *Cache
	Timeouts Timeouts // zero: DefaultTimeouts
	Chunk    int64    // bytes that one request fetches; 0: 16 MiB
}

// File is a file that was fetched, or was in the cache.
type File struct {
	Folder string // of the repository; "": the repository itself
	Path   string // in the repository
	Size   int64
	F      *os.File // open for reading; who gets the File closes it
}

// Progress is how far a fetch has come. All numbers but Files are bytes.
type Progress struct {
	Total   int64 // of all files
	Done    int64 // that are on the worker's disk, and were compared with their hash as far as they came from there
	Fetched int64 // that have come over the network
	Files   int   // how many were fetched, or were in the cache
}

// fetching is one fetch.
type fetching struct {
	*Fetcher
	w       *web
	total   atomic.Int64
	done    atomic.Int64
	fetched atomic.Int64
	files   atomic.Int64
}

// Fetch fetches what a request names, and calls each with each file in the order of their paths. It calls progress from
// time to time, from another goroutine. An error is an *Error, the error of each, or that of the context.
func (f *Fetcher) Fetch(ctx context.Context, r Request, progress func(Progress), each func(File) error) error {
	endpoint, err := r.check()
	if err != nil {
		return err
	}
	timeouts := f.Timeouts
	if timeouts == (Timeouts{}) {
		timeouts = DefaultTimeouts
	}
	ctx, cancel := context.WithTimeoutCause(ctx, timeouts.Whole,
		errorf("The weights of %v did not come within %v. What has come is kept; load them again.", &r, timeouts.Whole))
	defer cancel()
	o := &fetching{Fetcher: f, w: newWeb(r, endpoint, timeouts)}
	defer o.w.client.CloseIdleConnections()
	defer o.report(progress)()
	if r.SHA256 != "" {
		return o.one(ctx, each)
	}
	return o.all(ctx, each)
}

// report calls progress from time to time, until the function that it returns is called. That calls progress once more.
func (o *fetching) report(progress func(Progress)) (end func()) {
	now := func() Progress {
		return Progress{o.total.Load(), o.done.Load(), o.fetched.Load(), int(o.files.Load())}
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(progressTime)
		defer tick.Stop()
		last, idle := Progress{}, 0
		for {
			select {
			case <-stop:
				progress(now())
				return
			case <-tick.C:
			}
			if p := now(); p != last || idle >= progressIdle {
				progress(p)
				last, idle = p, 0
			}
			idle++
		}
	}()
	return func() { close(stop); <-stopped }
}

const (
	// progressTime is the time between two reports. Without progress there is one in so many: less than a second, the
	// shortest time after which a client takes a silent worker for lost (MYCELYA_TIMEOUT).
	progressTime = 200 * time.Millisecond
	progressIdle = 3
)

// all fetches the weights of the request's path.
func (o *fetching) all(ctx context.Context, each func(File) error) error {
	commit, err := o.w.commit(ctx)
	if err != nil {
		return err
	}
	listing, err := o.w.list(ctx, commit)
	if err != nil {
		return err
	}
	chosen, err := o.w.choose(listing)
	if err != nil {
		return err
	}
	files := chosen.files
	for _, index := range chosen.indexes {
		shards, err := o.index(ctx, commit, index, listing)
		if err != nil {
			return err
		}
		files = append(files, shards...)
	}
	slices.SortFunc(files, func(a, b remote) int { return strings.Compare(a.path, b.path) })
	files = slices.CompactFunc(files, func(a, b remote) bool { return a.path == b.path })
	if len(files) > maxFiles {
		return errorf("%v has %d files of weights; at most %d are fetched at once. Give path= with a folder of it.",
			&o.w.request, len(files), maxFiles)
	}
	return o.fetch(ctx, commit, files, each)
}

// one fetches the file that the request names with its hash. The cache needs no server.
func (o *fetching) one(ctx context.Context, each func(File) error) error {
	path := o.w.request.Path
	want := hash{kind: sha256Hash, hex: o.w.request.SHA256}
	if info, err := os.Stat(o.Cache.path(want)); err == nil {
		f := remote{path: path, size: info.Size(), hash: want}
		o.total.Store(f.size)
		if file, err := o.Cache.open(ctx, f, o.read); err != nil {
			return err
		} else if file != nil {
			return o.give(f, file, each)
		}
	}
	commit, err := o.w.commit(ctx)
	if err != nil {
		return err
	}
	listing, err := o.w.list(ctx, commit)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(listing, func(f remote) bool { return f.path == path })
	switch {
	case i < 0:
		return o.w.noPath()
	case listing[i].hash != want:
		return errorf("The file %s of the repository %v is another one now.", quote(path), &o.w.request)
	}
	return o.fetch(ctx, commit, listing[i:i+1], each)
}

// index fetches an index, and returns the files that it names.
func (o *fetching) index(ctx context.Context, commit string, index remote, listing []remote) ([]remote, error) {
	if index.size > maxIndex {
		return nil, errorf("The index %s of the repository %v has %s; at most %s are read.", quote(index.path),
			&o.w.request, size(index.size), size(maxIndex))
	}
	if err := o.Cache.makeRoom(index.size, map[string]bool{index.hash.String(): true}); err != nil {
		return nil, err
	}
	o.total.Add(index.size)
	f, err := o.get(ctx, commit, index, turn{}.next())
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxIndex))
	if err != nil {
		return nil, onDisk(err)
	}
	return o.w.shards(index, text, listing)
}

// fetch fetches files.
func (o *fetching) fetch(ctx context.Context, commit string, files []remote, each func(File) error) error {
	except, missing := map[string]bool{}, int64(0)
	for _, f := range files {
		o.total.Add(f.size)
		if name := f.hash.String(); !except[name] {
			except[name] = true
			if info, err := os.Stat(o.Cache.path(f.hash)); err != nil || info.Size() != f.size {
				missing += f.size
			}
		}
	}
	// The size is bounded before the cache gives anything up for it.
	if err := o.Cache.fits(o.total.Load()); err != nil {
		return err
	}
	if err := o.Cache.makeRoom(missing, except); err != nil {
		return err
	}
	if len(files) > 0 { // the cache does not know who may read its files
		if err := o.w.mayRead(ctx, commit, files[0]); err != nil {
			return err
		}
	}
	return o.inOrder(ctx, commit, files, each)
}

// turn orders the files whose bytes are fetched: those of a file come when a request is under way for each byte of the
// file before.
type turn struct {
	begins <-chan struct{} // closed when the file's bytes may come; nil: they may
	ends   chan struct{}
	end    func() // closes ends, once
}

func (t turn) next() turn {
	ends := make(chan struct{})
	return turn{t.ends, ends, sync.OnceFunc(func() { close(ends) })}
}

// inOrder gets files, two at a time, and calls each in their order. While the last bytes of a file are hashed, those of
// the next one come; two files of the cache are hashed on two cores.
func (o *fetching) inOrder(ctx context.Context, commit string, files []remote, each func(File) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	pending := make(chan chan *os.File) // without a buffer: the producer waits until the second file is the first
	go func() {
		defer close(pending)
		var before turn
		for i := 0; i < len(files) && ctx.Err() == nil; i++ {
			out, mine := make(chan *os.File, 1), before.next()
			before = mine
			go func() {
				defer mine.end()
				file, err := o.get(ctx, commit, files[i], mine)
				if err != nil {
					cancel(err)
				}
				out <- file
			}()
			pending <- out
		}
	}()
	i := 0
	for out := range pending {
		file := <-out
		if ctx.Err() == nil {
			if err := o.give(files[i], file, each); err != nil {
				cancel(err)
			}
		} else if file != nil {
			_ = file.Close()
		}
		i++
	}
	return context.Cause(ctx)
}

func (o *fetching) give(f remote, file *os.File, each func(File) error) error {
	o.files.Add(1)
	return each(File{Folder: parent(f.path), Path: f.path, Size: f.size, F: file})
}

// read counts bytes that the cache has.
func (o *fetching) read(n int) { o.done.Add(int64(n)) }

// got counts bytes that have come over the network. A negative number takes back some that will come again.
func (o *fetching) got(n int) {
	o.done.Add(int64(n))
	if n > 0 {
		o.fetched.Add(int64(n))
	}
}

// get returns a file of the cache, which is fetched if it is not there.
func (o *fetching) get(ctx context.Context, commit string, f remote, at turn) (*os.File, error) {
	for again := range 2 {
		if file, err := o.Cache.open(ctx, f, o.read); file != nil || err != nil {
			return file, err
		}
		file, err := o.download(ctx, commit, f, at)
		if !errors.Is(err, errWrongHash) {
			return file, err
		}
		if again == 0 {
			o.done.Add(-f.size)
		}
	}
	return nil, errorf("The bytes of the file %s of the repository %v do not have the hash that the hub lists, twice. "+
		"They were not used. A proxy may change them; try again later, or set HF_ENDPOINT to another server.",
		quote(f.path), &o.w.request)
}

// download fetches a file into the cache.
func (o *fetching) download(ctx context.Context, commit string, f remote, at turn) (*os.File, error) {
	if at.begins != nil {
		select {
		case <-at.begins:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	part, err := o.Cache.lock(ctx, f.hash) // not before: the file before may have the same hash
	if err != nil {
		return nil, err
	}
	defer part.Close()
	if file, err := o.Cache.open(ctx, f, o.read); file != nil || err != nil { // another process has fetched it
		_ = os.Remove(part.Name())
		return file, err
	}
	chunk := o.Chunk
	if chunk == 0 {
		chunk = chunkBytes
	}
	resumed := true
	count := func(n int) {
		if resumed {
			o.done.Add(int64(n))
		} else {
			o.got(n)
		}
	}
	b := &blob{w: o.w, cache: o.Cache, file: f, from: o.w.fileURL(commit, f.path), part: part, chunk: chunk, count: count,
		taken: at.end}
	b.begin()
	resumed = false
	err = b.fetch(ctx)
	if errors.Is(err, errWrongHash) {
		o.Cache.forget(part, f.hash)
	}
	if err != nil {
		return nil, err
	}
	if err := o.Cache.keep(part, f.hash); err != nil {
		return nil, err
	}
	file, err := os.Open(o.Cache.path(f.hash))
	return file, onDisk(err)
}
