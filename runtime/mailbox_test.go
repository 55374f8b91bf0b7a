// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/trace"
)

// testMailbox is a mailbox whose items a test puts there.
type testMailbox struct {
	Mailbox
	mu      sync.Mutex
	items   []*Item
	waits   uint64
	tickets uint64
}

func (b *testMailbox) Take() *Item {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.items) == 0 {
		return nil
	}
	l := b.items[0]
	b.items = b.items[1:]
	return l
}

func (b *testMailbox) Stalls(each func(trace.Place, uint64, time.Duration)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits > 0 {
		each(trace.Place{1, 12}, b.waits, time.Duration(b.waits)*time.Second)
	}
	b.waits = 0
}

// ask leaves a request. The answer comes by the channel.
func (b *testMailbox) ask(l Item) (uint64, chan error) {
	answer := make(chan error, 2)
	l.Answer = func(err error) { answer <- err }
	b.mu.Lock()
	b.tickets++
	l.Ticket = b.tickets
	b.items = append(b.items, &l)
	b.mu.Unlock()
	b.Wake()
	return l.Ticket, answer
}

func TestRequestsAreAnswered(t *testing.T) {
	box := &testMailbox{Mailbox: NewMailbox()}
	r, w := startWith(t, box)
	first, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.greet()
	h := w.next(transport.Sync, new(proto.Sync))
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, first))

	_, answer := box.ask(Item{Request: RequestRoom})
	require.NoError(t, <-answer)

	_, answer = box.ask(Item{Request: RequestSync})
	h = w.next(transport.Sync, new(proto.Sync))
	require.Empty(t, answer)
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, <-answer)

	view := View{Storage: 5, DType: ir.I64, Sizes: []int64{1}, Strides: []int64{1}}
	dst := make([]byte, 8)
	_, answer = box.ask(Item{Request: RequestRead, View: view, Dst: dst})
	var m proto.Read
	h = w.next(transport.Read, &m)
	require.EqualValues(t, 5, m.Storage)
	require.Empty(t, answer)
	w.send(transport.ReadReply, h.Seq, &proto.ReadReply{}, []byte("eight by"))
	require.NoError(t, <-answer)
	require.Equal(t, "eight by", string(dst))

	_, answer = box.ask(Item{Request: RequestRead,
		View: View{Storage: 5, DType: ir.I64, Sizes: []int64{-1}, Strides: []int64{1}}})
	require.ErrorContains(t, <-answer, "BUG: a read of")

	canceled, answer := box.ask(Item{Request: RequestRead, View: view, Dst: dst})
	h = w.next(transport.Read, &m)
	r.CancelLeft(0, canceled)
	require.EqualError(t, <-answer, "canceled")
	w.send(transport.ReadReply, h.Seq, &proto.ReadReply{}, []byte("too late"))
	_, lost := box.ask(Item{Request: RequestSync})
	w.next(transport.Sync, new(proto.Sync))
	require.Equal(t, "eight by", string(dst))
	require.Empty(t, answer)
	r.CancelLeft(0, canceled) // it is over

	w.die()
	require.ErrorContains(t, <-lost, "mycelya:0 is lost")
	_, answer = box.ask(Item{Request: RequestRoom})
	require.ErrorContains(t, <-answer, "mycelya:0 is lost")
	_, answer = box.ask(Item{Request: RequestRead, View: view, Dst: dst})
	require.ErrorContains(t, <-answer, "mycelya:0 is lost")
	r.CancelLeft(7, 1) // there is no such device
}

// TestARequestIsCanceledBeforeItIsTaken: nothing writes the memory of a read after its end, even if the request is
// taken later.
func TestARequestIsCanceledBeforeItIsTaken(t *testing.T) {
	box := &testMailbox{Mailbox: NewMailbox()}
	r, _ := startWith(t, box) // nothing has started the sender
	ticket, answer := box.ask(Item{Request: RequestRead, View: View{Storage: 5, DType: ir.I64}, Dst: make([]byte, 8)})
	r.CancelLeft(0, ticket)
	require.EqualError(t, <-answer, "canceled")
}

func TestStallsOfRequestsAreCounted(t *testing.T) {
	box := &testMailbox{Mailbox: NewMailbox(), waits: 3}
	r, _ := startWith(t, box)
	m := metricsOf(t, r)
	require.EqualValues(t, 3, m["stalls"])
	require.EqualValues(t, 3, m["stall_seconds"])
	require.Contains(t, string(r.Bill()), `"line":12,`)
	box.mu.Lock()
	box.waits = 2
	box.mu.Unlock()
	r.ResetMetrics()
	require.EqualValues(t, 0, metricsOf(t, r)["stalls"])
}
