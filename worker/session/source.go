// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"cmp"
	"io"
	"net"
	"sync"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/hub"
)

// Uploads whose bytes are a part of a file on a hub. The worker fetches the file once, and reads the parts from it. The
// hash of an upload's bytes, which the client has computed, decides whether they are right; so nothing depends on what
// the client says about the file.

const (
	// maxSourced bounds the uploads of a session that wait for files, and maxSources its files. Further uploads arrive in
	// pieces.
	maxSourced = 256
	maxSources = 1024
	// SourceHelpers is how many files of a session are fetched at once.
	SourceHelpers = 2
)

// source is a file on a hub.
type source struct {
	ready chan struct{} // closed when the rest is set
	file  hub.File
	err   error
}

// sources are the files of a session, by their hash.
type sources struct {
	all map[string]*source

	mu      sync.Mutex
	helpers map[*net.UnixConn]struct{}
	running chan struct{} // has an element for each fetch
	closed  bool
	tasks   sync.WaitGroup
}

// source returns the file that an offer names, which is fetched in the background; nil: the upload's bytes must come
// from the client.
func (s *session) source(a *arriving, m *proto.Source) *source {
	of := &s.sources
	if m == nil || s.helper == nil || a.err != nil || s.sourced() >= maxSourced || m.Offset > 1<<60 {
		return nil
	}
	if f := of.all[m.Sha256]; f != nil {
		select {
		case <-f.ready:
			if f.err != nil || f.file.Size < int64(m.Offset+a.bytes) {
				return nil
			}
		default:
		}
		return f
	}
	if len(of.all) == maxSources {
		return nil
	}
	if of.all == nil {
		of.all, of.helpers = map[string]*source{}, map[*net.UnixConn]struct{}{}
		of.running = make(chan struct{}, SourceHelpers)
	}
	f := &source{ready: make(chan struct{})}
	of.all[m.Sha256] = f
	r := hub.Request{Endpoint: m.Endpoint, Repo: m.Repo, Revision: m.Revision, Path: m.Path, SHA256: m.Sha256, Hasty: true}
	of.tasks.Go(func() {
		defer close(f.ready)
		of.running <- struct{}{}
		defer func() { <-of.running }()
		if f.file, f.err = of.fetch(s.helper, r); f.err != nil {
			s.log.Info("a file of an upload is not fetched; the client sends its bytes", "repository", m.Repo, "error", f.err)
		}
	})
	return f
}

// sourced is how many uploads that arrive wait for a file, or are read from one.
func (s *session) sourced() (n int) {
	for _, a := range s.arriving {
		if a.sourced {
			n++
		}
	}
	return n
}

// fetch fetches a file.
func (o *sources) fetch(start FetchHelper, r hub.Request) (hub.File, error) {
	helper, err := start()
	if err != nil {
		return hub.File{}, err
	}
	o.mu.Lock()
	closed := o.closed
	o.helpers[helper] = struct{}{}
	o.mu.Unlock()
	defer func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.helpers, helper)
		_ = helper.Close()
	}()
	if closed {
		return hub.File{}, io.ErrClosedPipe
	}
	var file hub.File
	files, err := hub.Ask(helper, r, func(hub.Progress) {}, func(f hub.File) error {
		_ = file.F.Close() // of none: it does nothing
		file = f
		return nil
	})
	if err == nil && files == 1 {
		return file, nil
	}
	_ = file.F.Close()
	return hub.File{}, cmp.Or(err, io.ErrUnexpectedEOF)
}

// close ends the fetches and closes the files. No upload uses them any more.
func (o *sources) close() {
	o.mu.Lock()
	o.closed = true
	for helper := range o.helpers {
		_ = helper.Close()
	}
	o.mu.Unlock()
	o.tasks.Wait()
	for _, f := range o.all {
		if f.file.F != nil {
			_ = f.file.F.Close()
		}
	}
	o.all = nil
}

// part waits for the file and returns a part of it; nil: there is none, or the wait was ended.
func (f *source) part(offset, bytes uint64, stop <-chan struct{}) io.ReadSeeker {
	select {
	case <-f.ready:
	case <-stop:
		return nil
	}
	if f.err != nil || f.file.Size < int64(offset+bytes) {
		return nil
	}
	return io.NewSectionReader(f.file.F, int64(offset), int64(bytes))
}
