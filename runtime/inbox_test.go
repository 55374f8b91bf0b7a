// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	pb "github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// mailbox is an inbox whose letters a test writes.
type mailbox struct {
	Inbox
	mu      sync.Mutex
	letters []*Letter
	waits   uint64
	tickets uint64
}

func (b *mailbox) Take() *Letter {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.letters) == 0 {
		return nil
	}
	l := b.letters[0]
	b.letters = b.letters[1:]
	return l
}

func (b *mailbox) Stalls(each func(Place, uint64, time.Duration)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waits > 0 {
		each(Place{1, 12}, b.waits, time.Duration(b.waits)*time.Second)
	}
	b.waits = 0
}

// ask leaves a question; what it is answered comes by the channel.
func (b *mailbox) ask(l Letter) (uint64, chan error) {
	answer := make(chan error, 2)
	l.Answer = func(err error) { answer <- err }
	b.mu.Lock()
	b.tickets++
	l.Ticket = b.tickets
	b.letters = append(b.letters, &l)
	b.mu.Unlock()
	b.Ring()
	return l.Ticket, answer
}

func TestLettersAreAnswered(t *testing.T) {
	box := &mailbox{Inbox: NewInbox()}
	r, w := startWith(t, box)
	first, err := r.Sync(0, Place{})
	require.NoError(t, err)
	w.greet()
	h := w.next(transport.Sync, new(pb.Sync))
	w.send(transport.SyncReply, h.Seq, &pb.SyncReply{}, nil)
	require.NoError(t, wait(t, r, first))

	_, answer := box.ask(Letter{Ask: AskRoom})
	require.NoError(t, <-answer)

	_, answer = box.ask(Letter{Ask: AskSync})
	h = w.next(transport.Sync, new(pb.Sync))
	require.Empty(t, answer)
	w.send(transport.SyncReply, h.Seq, &pb.SyncReply{}, nil)
	require.NoError(t, <-answer)

	view := View{Storage: 5, DType: ir.I64, Sizes: []int64{1}, Strides: []int64{1}}
	dst := make([]byte, 8)
	_, answer = box.ask(Letter{Ask: AskRead, View: view, Dst: dst})
	var m pb.Read
	h = w.next(transport.Read, &m)
	require.EqualValues(t, 5, m.Storage)
	require.Empty(t, answer)
	w.send(transport.ReadReply, h.Seq, &pb.ReadReply{}, []byte("eight by"))
	require.NoError(t, <-answer)
	require.Equal(t, "eight by", string(dst))

	_, answer = box.ask(Letter{Ask: AskRead, View: View{Storage: 5, DType: ir.I64, Sizes: []int64{-1}, Strides: []int64{1}}})
	require.ErrorContains(t, <-answer, "BUG: a read of")

	canceled, answer := box.ask(Letter{Ask: AskRead, View: view, Dst: dst})
	h = w.next(transport.Read, &m)
	r.CancelLeft(0, canceled)
	require.EqualError(t, <-answer, "canceled")
	w.send(transport.ReadReply, h.Seq, &pb.ReadReply{}, []byte("too late"))
	_, lost := box.ask(Letter{Ask: AskSync})
	w.next(transport.Sync, new(pb.Sync))
	require.Equal(t, "eight by", string(dst))
	require.Empty(t, answer)
	r.CancelLeft(0, canceled) // it is over

	w.die()
	require.ErrorContains(t, <-lost, "mycelya:0 is lost")
	_, answer = box.ask(Letter{Ask: AskRoom})
	require.ErrorContains(t, <-answer, "mycelya:0 is lost")
	_, answer = box.ask(Letter{Ask: AskRead, View: view, Dst: dst})
	require.ErrorContains(t, <-answer, "mycelya:0 is lost")
	r.CancelLeft(7, 1) // there is no such device
}

// TestALetterIsCanceledBeforeItIsOpened: nobody writes the memory of a read after its end, whoever takes the letter.
func TestALetterIsCanceledBeforeItIsOpened(t *testing.T) {
	box := &mailbox{Inbox: NewInbox()}
	r, _ := startWith(t, box) // nothing has started the sender
	ticket, answer := box.ask(Letter{Ask: AskRead, View: View{Storage: 5, DType: ir.I64}, Dst: make([]byte, 8)})
	r.CancelLeft(0, ticket)
	require.EqualError(t, <-answer, "canceled")
}

func TestStallsOfLettersAreCounted(t *testing.T) {
	box := &mailbox{Inbox: NewInbox(), waits: 3}
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
