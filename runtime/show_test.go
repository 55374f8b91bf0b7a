// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/trace"
)

// TestADumpIsToldOfWaits: of each bill the last state.
func TestADumpIsToldOfWaits(t *testing.T) {
	dir := t.TempDir()
	r, w := start(t, "MYCELYA_DUMP="+dir+",times")
	greet := sync.OnceFunc(w.greet)
	bills := func() (out []string) {
		data, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
		require.NoError(t, err)
		for line := range strings.Lines(string(data)) {
			if strings.Contains(line, `"event":"bill"`) {
				out = append(out, regexp.MustCompile(`"stalls":.*?}`).ReplaceAllString(line, "…}"))
			}
		}
		return out
	}
	waitAt := func(at trace.Place) {
		ticket, err := r.Sync(0, at)
		require.NoError(t, err)
		greet()
		h := w.next(transport.Sync, new(proto.Sync))
		w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
		require.NoError(t, wait(t, r, ticket))
	}
	waitAt(trace.Place{101, 20})
	r.ResetMetrics()
	waitAt(trace.Place{1, 20})
	waitAt(trace.Place{1, 20})
	r.Close(0)
	require.Equal(t, []string{
		`{"event":"bill","bill":0,"lines":[{"place":"train.py:20","callers":["main.py:101"],"round_trips":1,…}]}` + "\n",
		`{"event":"bill","bill":1,"lines":[{"place":"train.py:20","callers":null,"round_trips":2,…}]}` + "\n",
	}, bills())
}

// TestADumpIsToldOfEachCutAndProgram, with the numbers that explain() gives.
func TestADumpIsToldOfEachCutAndProgram(t *testing.T) {
	dir := t.TempDir()
	r, w := start(t, "MYCELYA_DUMP="+dir+",wire", "MYCELYA_PASSES=-cse", "MYCELYA_CHECK=1")
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	require.NoError(t, r.Flush(0, relu(2, 3), func() {}))
	more := relu(3, 4)
	more.Key, more.Skeleton, more.ReasonOrigin, more.Reason = [2]uint64{3, 4}, []uint64{8}, trace.Place{1, 20}, 2
	require.NoError(t, r.Flush(0, more, func() {}))
	w.greet()
	w.next(transport.Program, new(proto.Program))
	for range 2 {
		h := w.next(transport.Call, new(proto.Call))
		w.send(transport.Done, h.Seq, &proto.Done{}, nil)
	}
	w.next(transport.Program, new(proto.Program))
	h := w.next(transport.Call, new(proto.Call))
	w.send(transport.Done, h.Seq, &proto.Done{}, nil)
	ticket, err := r.Sync(0, trace.Place{})
	require.NoError(t, err)
	h = w.next(transport.Sync, new(proto.Sync))
	w.send(transport.SyncReply, h.Seq, &proto.SyncReply{}, nil)
	require.NoError(t, wait(t, r, ticket))
	text, err := r.Explain(0)
	require.NoError(t, err)

	read := func(name string) string {
		found, err := filepath.Glob(filepath.Join(dir, name))
		require.NoError(t, err)
		require.Len(t, found, 1, name)
		data, err := os.ReadFile(found[0])
		require.NoError(t, err)
		return string(data)
	}
	require.Equal(t, `cut 1 at train.py:12 because a value was read: 1 op, program #1, a new one
  #1: It is the first one.
cut 2 at train.py:12 because a value was read: 1 op, program #1
cut 3 at train.py:20 because the device was waited for: 1 op, program #2, a new one
  #2: It is #1 again, which had been forgotten: there are more programs than are kept.
`, read("why.txt"))
	require.Contains(t, text, "\n#2 train.py:20: 1 op")
	require.Contains(t, read("002-train.py:20-*/repro.txtar"),
		"passes: views simplify fold dce overlap order fuse\nwords: -cse\ncheck: 1\n")
	require.Regexp(t, `(?s)^sent     Program +1  \d+ bytes\nsent     Call +1  .*\nreceived Done +1  \d+ bytes\n`,
		read("wire.txt"))
	require.Contains(t, read("events.jsonl"),
		`{"event":"run","format":1,"mycelya":"0.1.0","passes":"-cse","check":1,"only":"","max":0}`)
}
