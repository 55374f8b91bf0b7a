// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/hub"
)

// Weights from a hub. A session's process has no sockets: a helper process fetches the files, and passes descriptors.
// The session reads the headers and the tensors. A goroutine waits for the helper and tells the client; the session's
// thread goes on with other frames.

// FetchHelper starts a helper, which expects a hub.Request, and returns the session's end of its socket.
type FetchHelper func() (*net.UnixConn, error)

const (
	// MaxFetches bounds the fetches of a session that were not ended by an Unfetch.
	MaxFetches = 4
	// maxWeights bounds the tensors of a fetch: their description is one frame.
	maxWeights = 200_000
)

// fetch is a fetch of a session, by the sequence number of its Fetch.
type fetch struct {
	helper *net.UnixConn
	ended  chan struct{} // closed when the goroutine has ended

	// Of the goroutine.
	files []hub.File
	seen  map[tensorKey]string // the file of each tensor
	text  int                  // bytes of the descriptions of all tensors

	mu      sync.Mutex
	weights []weight // that the client was told of, or is being told of
}

// tensorKey names a tensor to a client.
type tensorKey struct{ folder, name string }

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
		return s.c.Send(transport.Fetching, h.Seq, &proto.Fetching{End: true, Status: executor.Status(err)}, nil)
	}
	switch {
	case s.fetches[h.Seq] != nil:
		return faultf("Two fetches have the number %d.", h.Seq)
	case s.helper == nil:
		return refuse(executor.Errorf(proto.ErrRuntime, "This worker fetches no weights: it was started without a folder "+
			"for them (--weights). A machine of Kubernetes needs the name of a claim: weights=\"…\"."))
	case len(s.fetches) == MaxFetches:
		return refuse(executor.Errorf(proto.ErrRuntime, "A session fetches from at most %d repositories at once. Wait "+
			"for one of them.", MaxFetches))
	}
	helper, err := s.helper()
	if err != nil {
		return refuse(executor.Errorf(proto.ErrRuntime, "The process that fetches weights cannot be started: %v.", err))
	}
	f := &fetch{helper: helper, ended: make(chan struct{}), seen: map[tensorKey]string{}}
	if s.fetches == nil {
		s.fetches = map[uint64]*fetch{}
	}
	s.fetches[h.Seq] = f
	r := hub.Request{Endpoint: m.Endpoint, Repo: m.Repo, Revision: m.Revision, Path: m.Path, Token: m.Token}
	go f.run(s.c, h.Seq, r)
	return nil
}

// run waits for the helper, and tells the client what becomes of the fetch. The client may load the tensors of a file
// while the next one comes.
func (f *fetch) run(c *transport.Conn, seq uint64, r hub.Request) {
	defer close(f.ended)
	var last hub.Progress
	tell := func(m *proto.Fetching) {
		m.Total, m.Done, m.Fetched = natural(last.Total), natural(last.Done), natural(last.Fetched)
		_ = c.Send(transport.Fetching, seq, m, nil) // the session's thread meets the error too
	}
	err := f.take(r, func(p hub.Progress) {
		last = p
		tell(&proto.Fetching{})
	}, func(weights []*proto.Weight) { tell(&proto.Fetching{Weights: weights}) })
	tell(&proto.Fetching{End: true, Status: executor.Status(err)})
}

func natural(n int64) uint64 { return uint64(max(n, 0)) }

// take gets the files from the helper, and reads their headers.
func (f *fetch) take(r hub.Request, progress func(hub.Progress), found func([]*proto.Weight)) error {
	_, err := hub.Ask(f.helper, r, progress, func(file hub.File) error {
		f.files = append(f.files, file)
		weights, err := f.read(file)
		if err == nil {
			found(weights)
		}
		return err
	})
	_ = f.helper.Close()
	var theirs *hub.Error
	var mine *executor.Error
	switch {
	case err == nil, errors.As(err, &mine):
		return err
	case errors.As(err, &theirs):
		if theirs.Value {
			return &executor.Error{Kind: proto.ErrValue, Text: theirs.Text}
		}
		return &executor.Error{Kind: proto.ErrRuntime, Text: theirs.Text}
	}
	return executor.Errorf(proto.ErrRuntime,
		"The process that fetches weights has ended early: %v. The worker's log has more.", err)
}

// read reads the header of a file.
func (f *fetch) read(file hub.File) (out []*proto.Weight, err error) {
	tensors, err := hub.ReadHeader(file.F, file.Size)
	if err != nil {
		return nil, executor.Errorf(proto.ErrRuntime, "The file %q of the repository cannot be read: %v.", file.Path, err)
	}
	for _, t := range tensors {
		at := tensorKey{file.Folder, t.Name}
		if other, twice := f.seen[at]; twice {
			return nil, executor.Errorf(proto.ErrValue, "The files %q and %q both have a tensor %q. They are two forms of "+
				"one model; choose one with path=%q.", other, file.Path, t.Name, file.Path)
		}
		f.seen[at] = file.Path
		f.text += len(file.Folder) + len(t.Name) + 10*len(t.Sizes) + 32
		out = append(out, &proto.Weight{Folder: file.Folder, Name: t.Name, Dtype: t.DType, Sizes: t.Sizes})
	}
	if len(f.seen) > maxWeights || f.text > transport.MaxMeta {
		return nil, executor.Errorf(proto.ErrValue, "The repository has more than %d tensors. Give path= with a folder or "+
			"a file of it.", maxWeights)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range tensors {
		f.weights = append(f.weights, weight{t, file})
	}
	return out, nil
}

// loadWeights makes storages with tensors of a fetch: with the first ones of those that the client was told of.
func (s *session) loadWeights(f *fetch, m *proto.Load) (uint64, error) {
	f.mu.Lock()
	weights := f.weights
	f.mu.Unlock()
	if len(m.Storages) > len(weights) { // the client means those of a fetch of a worker that this one has replaced
		err := executor.Errorf(proto.ErrRuntime, "The worker was lost while it fetched the weights. Load them again.")
		for _, id := range m.Storages {
			if id != 0 {
				s.x.Poison([]uint64{id}, err)
			}
		}
		return 0, err
	}
	total := uint64(0)
	for i, id := range m.Storages {
		if id == 0 {
			continue
		}
		w := &weights[i]
		fill := func(dst []byte) error {
			_, err := w.file.F.ReadAt(dst, int64(w.Begin))
			if err != nil {
				err = executor.Errorf(proto.ErrRuntime, "The file %q of the worker's cache cannot be read: %v. Load it again.",
					w.file.Path, err)
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
		_ = s.c.Net().SetWriteDeadline(time.Now().Add(LastWait))
	}
	for _, f := range s.fetches {
		all.Go(f.end)
	}
	all.Wait()
	s.fetches = nil
}
