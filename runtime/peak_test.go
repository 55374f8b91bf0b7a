// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/compile"
	"github.com/mycelya/mycelya/trace"
)

func TestSize(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 bytes", 1: "1 byte", 999: "999 bytes", 1024: "1.0 KiB",
		1536 << 10: "1.5 MiB",
		1 << 40:    "1.0 TiB", 1<<64 - 1: "16.0 EiB"} {
		require.Equal(t, want, compile.Size(n))
	}
}

// TestPlannedPeak: explain reports a program's peak for the sizes of its last call, and so does the error of a call
// that runs out of memory.
func TestPlannedPeak(t *testing.T) {
	r, w := start(t)
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	w.greet()
	w.next(transport.Program, new(proto.Program))
	h := w.next(transport.Call, new(proto.Call))
	w.send(transport.Done, h.Seq, &proto.Done{}, nil)
	explained := func() string {
		text, err := r.Explain(0)
		require.NoError(t, err)
		return text
	}
	require.Contains(t, explained(), "It takes at most 16 bytes of its own at once, in step 0 of 1, "+
		"aten::relu at train.py:12, beside storages of 16 bytes.\n")

	larger := relu(1, 3)
	larger.Params = []uint64{1 << 30}
	require.NoError(t, r.Flush(0, larger, func() {}))
	h = w.next(transport.Call, new(proto.Call))
	require.Contains(t, explained(), "It takes at most 4.0 GiB of its own at once")
	failed := &proto.Done{Failed: 1, Errors: []*proto.Status{{Kind: proto.ErrMemory, Text: "No memory.", Call: h.Seq}}}
	w.send(transport.Done, h.Seq, failed, nil)
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	q := w.next(transport.Sync, new(proto.Sync))
	w.send(transport.SyncReply, q.Seq, &proto.SyncReply{}, nil)
	require.EqualError(t, wait(t, r, ticket), "No memory.\n  in aten::relu(f32[1073741824]), recorded at train.py:12\n"+
		"  of program #1. "+
		"It takes at most 4.0 GiB of its own at once, in step 0 of 1, aten::relu at train.py:12, beside storages of 4.0 GiB.")
}
