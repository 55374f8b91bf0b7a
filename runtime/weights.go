// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"encoding/json"
	"fmt"
	"slices"
	"sync"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/core"
)

// fetch is a fetch of weights by the worker. A caller asks for it, and then for news of it, again and again. Its number
// is one of the session.
//
//	fetch    Endpoint, Repo, …   begins it; the answer has its number, and comes at once
//	news     Fetch, Seen, Have   waits until there is more news than the caller has seen; the answer has the tensors
//	                             that were found, without the first ones that the caller has
//	load     Found, Storages     Found is that of the news; a storage for each of the first tensors that were found
//	unfetch  Fetch               ends it, also before its end
type fetch struct {
	number uint64
	ticket *Ticket // of the Fetch frame

	mu      sync.Mutex
	news    uint64 // how often it has changed
	seq     uint64 // of the Fetch; 0: it was not sent
	last    *proto.Fetching
	weights []weightJSON // that were found
	over    bool
	err     error
	waiting []waitingForNews
}

type waitingForNews struct {
	ticket *Ticket
	seen   uint64
}

// fetchReply is the answer to a question about a fetch, in JSON.
type fetchReply struct {
	Fetch   uint64       `json:"fetch"`
	News    uint64       `json:"news"`
	Total   uint64       `json:"total"`
	Done    uint64       `json:"done"`
	Fetched uint64       `json:"fetched"`
	End     bool         `json:"end"`
	Found   uint64       `json:"found"`
	Weights []weightJSON `json:"weights"`
}

type weightJSON struct {
	Folder string  `json:"folder"`
	Name   string  `json:"name"`
	DType  string  `json:"dtype"` // its name in IR text
	Bytes  uint64  `json:"bytes"`
	Sizes  []int64 `json:"sizes"`
}

// askFetch begins a question about a fetch.
func (s *session) askFetch(t *Ticket, q *question) error {
	if q.What == "fetch" {
		s.beginFetch(t, q)
		return nil
	}
	s.mu.Lock()
	f := s.fetches[q.Fetch]
	if q.What == "unfetch" {
		delete(s.fetches, q.Fetch)
	}
	s.mu.Unlock()
	switch {
	case f == nil:
		return &Error{Kind: KindRuntime, Text: fmt.Sprintf("BUG: there is no fetch %d.", q.Fetch)}
	case q.What == "news":
		t.fetch, t.news, t.have = f, true, q.Have
		f.wait(t, q.Seen)
		return nil
	}
	t.fetch = f
	s.submit(core.Ask{Ticket: t, Type: transport.Unfetch})
	return nil
}

// beginFetch sends a Fetch. The question's own ticket ends at once.
func (s *session) beginFetch(t *Ticket, q *question) {
	f := &fetch{ticket: s.ticket(t.by)}
	f.ticket.fetch = f
	f.ticket.told = f.ended
	f.ticket.message = &proto.Fetch{Endpoint: q.Endpoint, Repo: q.Repo, Revision: q.Revision, Path: q.Path,
		Token: q.Token}
	s.mu.Lock()
	s.fetchNumber++
	f.number = s.fetchNumber
	if s.fetches == nil {
		s.fetches = map[uint64]*fetch{}
	}
	s.fetches[f.number] = f
	s.mu.Unlock()
	s.submit(core.Ask{Ticket: f.ticket, Type: transport.Fetch})
	t.fetch = f
	t.end(nil)
}

// message is the message of the Fetch, which is being sent, or of the Unfetch that follows it.
func (f *fetch) message(a core.Send) protobuf.Message {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a.Type == transport.Unfetch {
		return &proto.Unfetch{Fetch: f.seq}
	}
	if f.seq = a.Seq; len(f.weights) > 0 && !f.over { // another worker gets it, whose files may be others
		f.over = true
		f.err = &Error{Kind: KindRuntime, Text: "The worker was lost while it fetched the weights. Load them again."}
		f.tell()
	}
	return f.ticket.message
}

// report takes a report of the worker, on the receiver.
func (f *fetch) report(s *session, m *proto.Fetching) {
	f.mu.Lock()
	defer f.mu.Unlock()
	old := f.last
	f.last = m
	if !f.over {
		f.err = f.find(m.Weights)
		f.over = f.err != nil
	}
	if m.Fetched > old.GetFetched() {
		s.metrics.WeightsFetched.Add(m.Fetched - old.GetFetched())
	}
	if m.End && m.Done > m.Fetched {
		s.metrics.WeightsCached.Add(m.Done - m.Fetched)
	}
	if !m.End { // otherwise the ticket's end follows, with its error
		f.tell()
	}
}

// find notes tensors that the worker has found. The caller holds the lock.
func (f *fetch) find(weights []*proto.Weight) error {
	for _, w := range weights {
		dtype := catalogue.DTypeOf(uint64(w.Dtype))
		n, err := (&View{DType: ir.DType(w.Dtype), Sizes: w.Sizes}).Bytes()
		if dtype == nil || err != nil {
			return &Error{Kind: KindRuntime, Text: fmt.Sprintf("The worker says that the tensor %q has dtype %d and sizes %v.",
				w.Name, w.Dtype, w.Sizes)}
		}
		f.weights = append(f.weights, weightJSON{Folder: w.Folder, Name: w.Name, DType: dtype.Name, Bytes: n,
			Sizes: append([]int64{}, w.Sizes...)})
	}
	return nil
}

// ended notes the end of the fetch's ticket.
func (f *fetch) ended(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.over {
		f.over, f.err = true, err
	}
	f.tell()
}

// tell ends the tickets that wait for news. The caller holds the lock.
func (f *fetch) tell() {
	f.news++
	f.waiting = slices.DeleteFunc(f.waiting, func(w waitingForNews) bool {
		told := f.over || w.seen < f.news
		if told {
			w.ticket.end(f.err)
		}
		return told
	})
}

// wait has a ticket end when there is more news than were seen.
func (f *fetch) wait(t *Ticket, seen uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || seen < f.news {
		t.end(f.err)
		return
	}
	f.waiting = append(f.waiting, waitingForNews{t, seen})
}

// leave ends a ticket that waits for news, if it has not ended.
func (f *fetch) leave(t *Ticket) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.waiting = slices.DeleteFunc(f.waiting, func(w waitingForNews) bool {
		if w.ticket == t {
			t.end(core.ErrCanceled)
		}
		return w.ticket == t
	})
}

// answer is the answer to a question about the fetch, of a caller that has the first tensors.
func (f *fetch) answer(have int) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.err != nil {
		return nil, f.err
	}
	m := f.last
	out := fetchReply{Fetch: f.number, News: f.news, Total: m.GetTotal(), Done: m.GetDone(), Fetched: m.GetFetched(),
		End: f.over, Found: f.seq, Weights: append([]weightJSON{}, f.weights[min(have, len(f.weights)):]...)}
	return json.Marshal(out)
}
