// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/trace"
)

func TestRequestsAreAnswered(t *testing.T) {
	r, w := start(t)
	first, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.greet()
	h := w.next(transport.Sync, new(proto.Sync))
	require.Equal(t, ErrPending, r.Wait(first, 0))
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, first))
	require.ErrorContains(t, r.Wait(first, 0), "does not exist", "it has ended")

	room, err := r.Room(0, trace.Place{})
	require.NoError(t, err)
	require.NoError(t, wait(t, r, room))

	wrong, err := r.Read(0, View{Storage: 5, DType: ir.I64, Sizes: []int64{-1}, Strides: []int64{1}}, nil, trace.Place{})
	require.NoError(t, err)
	require.ErrorContains(t, wait(t, r, wrong), "BUG: a read of")

	view, dst := View{Storage: 5, DType: ir.I64, Sizes: []int64{1}, Strides: []int64{1}}, []byte("eight by")
	canceled, err := r.Read(0, view, dst, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Read, new(proto.Read))
	r.Cancel(canceled)
	w.send(transport.ReadReply, h.Seq, &proto.ReadReply{}, []byte("too late"))
	lost, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	w.next(transport.Sync, new(proto.Sync))
	require.Equal(t, "eight by", string(dst))
	r.Cancel(canceled) // it is over

	w.die()
	require.ErrorContains(t, wait(t, r, lost), "mycelya:0 is lost")
	_, err = r.Room(0, trace.Place{})
	require.ErrorContains(t, err, "mycelya:0 is lost")
	_, err = r.Read(0, view, dst, trace.Place{})
	require.ErrorContains(t, err, "mycelya:0 is lost")
	_, err = r.Sync(7, trace.Place{})
	require.ErrorContains(t, err, "mycelya:7 is not open")
	r.Runtime.Cancel(7, 1) // there is no such device
}

// TestARequestIsCanceledBeforeItIsTaken: nothing writes the memory of a read after its end, even if the request is
// taken later.
func TestARequestIsCanceledBeforeItIsTaken(t *testing.T) {
	r, _ := start(t)
	s, err := r.session(0)
	require.NoError(t, err)
	s.taking.Lock() // the sender takes nothing
	ticket, err := r.Read(0, View{Storage: 5, DType: ir.I64}, make([]byte, 8), trace.Place{})
	require.NoError(t, err)
	done := make(chan struct{})
	go func() { r.Runtime.Cancel(0, ticket); close(done) }()
	s.taking.Unlock()
	<-done
	require.EqualError(t, wait(t, r, ticket), "canceled")
}

func TestStallsAreCounted(t *testing.T) {
	r, w := start(t)
	ticket, err := r.Sync(0, trace.Place{1, 12})
	require.NoError(t, err)
	for range 3 {
		require.Equal(t, ErrPending, r.Wait(ticket, time.Microsecond))
	}
	m := metricsOf(t, r)
	require.EqualValues(t, 1, m["stalls"])
	require.Positive(t, m["stall_seconds"])
	require.Contains(t, string(r.Bill(nil)), `"line":12,`)
	require.Equal(t, ErrPending, r.Wait(ticket, time.Microsecond))
	r.ResetMetrics()
	require.EqualValues(t, 0, metricsOf(t, r)["stalls"])
	w.greet()
}
