// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/hub"
)

// Weights from a hub. A session's process has no sockets: a helper process fetches the files, and passes descriptors.
// The session reads the headers and the tensors. A goroutine waits for the helper and tells the client; the session's
// thread goes on with other frames.

// FetchHelper starts a helper, which expects a hub.Request, and returns the session's end of its socket.
type FetchHelper func() (*net.UnixConn, error)

const (
	// maxFetches bounds the fetches of a session that were not ended by an Unfetch.
	maxFetches = 4
	// maxWeights bounds the tensors of a fetch: their description is one frame.
	maxWeights = 200_000
)

// fetch is a fetch of a session, by the sequence number of its Fetch.
type fetch struct {
	helper  *net.UnixConn
	ended   chan struct{} // closed when the goroutine has ended, and what follows is set
	weights []weight      // nil: it has failed, or found nothing
	files   []hub.File
}

// weight is a tensor of a file.
type weight struct {
	hub.Tensor
	file hub.File
}

// fetch begins a fetch.
func (s *session) fetch(h transport.Header, meta []byte) error {
	var m proto.Fetch
	if err := decode(h, meta, &m); err != nil {
		return err
	}
	refuse := func(err error) error {
		return s.c.Send(transport.Fetching, h.Seq, &proto.Fetching{End: true, Status: status(err)}, nil)
	}
	switch {
	case s.fetches[h.Seq] != nil:
		return faultf("Two fetches have the number %d.", h.Seq)
	case s.helper == nil:
		return refuse(Errorf(proto.ErrRuntime, "This worker fetches no weights: it was started without a folder for them "+
			"(--weights). A machine of Kubernetes needs the name of a claim: weights=\"…\"."))
	case len(s.fetches) == maxFetches:
		return refuse(Errorf(proto.ErrRuntime, "A session fetches from at most %d repositories at once. Wait for one of "+
			"them.", maxFetches))
	}
	helper, err := s.helper()
	if err != nil {
		return refuse(Errorf(proto.ErrRuntime, "The process that fetches weights cannot be started: %v.", err))
	}
	f := &fetch{helper: helper, ended: make(chan struct{})}
	if s.fetches == nil {
		s.fetches = map[uint64]*fetch{}
	}
	s.fetches[h.Seq] = f
	r := hub.Request{Endpoint: m.Endpoint, Repo: m.Repo, Revision: m.Revision, Path: m.Path, Token: m.Token}
	go f.run(s.c, h.Seq, r)
	return nil
}

// run waits for the helper, and tells the client what becomes of the fetch.
func (f *fetch) run(c *transport.Conn, seq uint64, r hub.Request) {
	var last hub.Progress
	tell := func(m *proto.Fetching) {
		m.Total, m.Done, m.Fetched = natural(last.Total), natural(last.Done), natural(last.Fetched)
		_ = c.Send(transport.Fetching, seq, m, nil) // the session's thread meets the error too
	}
	err := f.take(r, func(p hub.Progress) {
		last = p
		tell(&proto.Fetching{})
	})
	end := &proto.Fetching{End: true, Status: status(err)}
	for _, w := range f.weights {
		end.Weights = append(end.Weights, &proto.Weight{Folder: w.file.Folder, Name: w.Name, Dtype: w.DType, Sizes: w.Sizes})
	}
	close(f.ended)
	tell(end)
}

func natural(n int64) uint64 { return uint64(max(n, 0)) }

// take gets the files from the helper, and reads their headers.
func (f *fetch) take(r hub.Request, progress func(hub.Progress)) error {
	files, err := hub.Ask(f.helper, r, progress)
	_ = f.helper.Close()
	var mine *hub.Error
	switch {
	case errors.As(err, &mine):
		if mine.Value {
			return &Error{Kind: proto.ErrValue, Text: mine.Text}
		}
		return &Error{Kind: proto.ErrRuntime, Text: mine.Text}
	case err != nil:
		return Errorf(proto.ErrRuntime, "The process that fetches weights has ended early: %v. The worker's log has more.",
			err)
	}
	f.files = files
	weights, err := read(files)
	if err != nil {
		return err
	}
	f.weights = weights
	return nil
}

// read reads the headers of files.
func read(files []hub.File) (out []weight, err error) {
	type place struct{ folder, name string }
	seen := map[place]string{}
	text := 0
	for _, file := range files {
		tensors, err := hub.ReadHeader(file.F, file.Size)
		if err != nil {
			return nil, Errorf(proto.ErrRuntime, "The file %q of the repository cannot be read: %v.", file.Path, err)
		}
		for _, t := range tensors {
			at := place{file.Folder, t.Name}
			if other, twice := seen[at]; twice {
				return nil, Errorf(proto.ErrValue, "The files %q and %q both have a tensor %q. They are two forms of one model; "+
					"choose one with path=%q.", other, file.Path, t.Name, file.Path)
			}
			seen[at] = file.Path
			out = append(out, weight{t, file})
			text += len(file.Folder) + len(t.Name) + 10*len(t.Sizes) + 32
		}
		if len(out) > maxWeights || text > transport.MaxMeta {
			return nil, Errorf(proto.ErrValue, "The repository has more than %d tensors. Give path= with a folder or a file "+
				"of it.", maxWeights)
		}
	}
	return out, nil
}

// loadWeights makes storages with tensors of a fetch.
func (s *session) loadWeights(f *fetch, m *proto.Load) (uint64, error) {
	select {
	case <-f.ended:
	default:
		return 0, faultf("A Load names the Fetch %d, which has not ended.", m.Found)
	}
	if len(m.Storages) != len(f.weights) {
		return 0, faultf("A Load has %d storages for %d tensors.", len(m.Storages), len(f.weights))
	}
	total := uint64(0)
	for i, id := range m.Storages {
		if id == 0 {
			continue
		}
		w := &f.weights[i]
		fill := func(dst []byte) error {
			_, err := w.file.F.ReadAt(dst, int64(w.Begin))
			if err != nil {
				err = Errorf(proto.ErrRuntime, "The file %q of the worker's cache cannot be read: %v. Load it again.", w.file.Path,
					err)
			}
			return err
		}
		if err := s.make(id, w.End-w.Begin, fill); err != nil {
			return 0, err
		}
		total += w.End - w.Begin
	}
	return total, nil
}

// unfetch ends a fetch.
func (s *session) unfetch(h transport.Header, meta []byte) error {
	var m proto.Unfetch
	if err := decode(h, meta, &m); err != nil {
		return err
	}
	if f := s.fetches[m.Fetch]; f != nil { // a worker that has replaced another one may not have it
		delete(s.fetches, m.Fetch)
		f.end()
	}
	return s.c.Send(transport.StateReply, h.Seq, &proto.StateReply{}, nil)
}

// end ends a fetch, also before the helper's answer, and closes its files.
func (f *fetch) end() {
	_ = f.helper.Close()
	<-f.ended
	for _, file := range f.files {
		_ = file.F.Close()
	}
}

// closeFetches ends all fetches.
func (s *session) closeFetches() {
	var all sync.WaitGroup
	if len(s.fetches) > 0 { // they may be sending to a client that does not read
		_ = s.c.Net().SetWriteDeadline(time.Now().Add(lastWait))
	}
	for _, f := range s.fetches {
		all.Go(f.end)
	}
	all.Wait()
	s.fetches = nil
}
