// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package link

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzDecode: what decodes encodes to the same bytes.
func FuzzDecode(f *testing.F) {
	f.Add(Hello{Fresh: true, Epoch: 1}.encode())
	f.Add(encodeAnswer(Unknown, 77))
	one := make([]byte, recordBytes)
	record{data, 5, 6}.encode(one)
	f.Add(append(one, one...))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < helloBytes {
			return
		}
		b = b[:helloBytes]
		if h, err := decodeHello(b); err == nil {
			require.Equal(t, b, h.encode())
		}
		if v, n, err := decodeAnswer(b); err == nil {
			require.Equal(t, b, encodeAnswer(v, n))
		}
		if r, err := decodeRecord(b); err == nil {
			again := make([]byte, recordBytes)
			r.encode(again)
			require.Equal(t, b[:recordBytes], again)
		}
	})
}

// FuzzState: no sequence of events breaks what the caller relies on.
func FuzzState(f *testing.F) {
	f.Add([]byte{4, 0, 0, 200, 3, 1, 1, 50, 2, 9})
	f.Add([]byte{4, 0, 0, 255, 5, 0, 4, 1, 7, 255, 7, 255})
	f.Fuzz(func(t *testing.T, b []byte) {
		l := Default
		l.Window = 1 << 10
		s := NewState(l, 0)
		var now time.Duration
		var freed, arrived, taken, epoch uint64
		for i := 0; i+1 < len(b); i += 2 {
			n := uint64(b[i+1])
			now += time.Duration(n) * time.Second / 16
			ev := Event{Kind: Kind(b[i] % uint8(Finished)), At: now, N: n}
			switch ev.Kind {
			case Wrote:
				ev.N = min(n, s.Room())
			case Arrived:
				arrived += n
			case Took:
				ev.N = min(n, arrived-taken)
				taken += ev.N
			case Opened:
				epoch++
				ev.Epoch, ev.N = epoch, s.acked+n
			case Got:
				ev.Record = record{kind: 1 + recordType(n%4), taken: s.acked + n/8}
				if !s.up { // the caller takes no records without a connection
					continue
				}
			}
			do := s.Step(ev)
			if do.Freed > 0 {
				require.GreaterOrEqual(t, do.Freed, freed)
				require.LessOrEqual(t, do.Freed, s.written)
				freed = do.Freed
			}
			if s.Err() != nil {
				return
			}
			require.LessOrEqual(t, s.written-s.acked, l.Window)
			for range n % 8 { // a slow connection
				before := s.next
				r, from, ok := s.Next(now, func(uint64) int { return 100 })
				if !ok {
					break
				}
				if r.kind == data && r.length > 0 {
					require.Equal(t, before, from)
					require.GreaterOrEqual(t, from, freed)
					require.LessOrEqual(t, from+uint64(r.length), s.written)
				}
			}
		}
	})
}

// FuzzHostile: whatever the other end sends, reads and writes end, and nothing panics.
func FuzzHostile(f *testing.F) {
	good := make([]byte, recordBytes)
	record{data, 3, 0}.encode(good)
	f.Add(append(good, 1, 2, 3))
	record{bye, 0, 0}.encode(good)
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		l := Limits{Window: 1 << 12, Beat: time.Hour, Silence: time.Hour, Grace: time.Hour}
		s := NewWorker(l)
		near, far := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, far) }()
		require.NoError(t, s.Attach(near, Hello{Epoch: 1, Fresh: true}))
		go func() {
			_, _ = far.Write(b)
			_ = s.Close()
		}()
		_, _ = s.Write([]byte("something"))
		got, _ := io.ReadAll(s)
		require.LessOrEqual(t, len(got), len(b))
		_ = far.Close()
	})
}
