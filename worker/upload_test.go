// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

// begin begins an upload in pieces, and returns its number.
func (c *client) begin(id, bytes uint64) uint64 {
	c.t.Helper()
	return c.send(transport.Begin, &proto.Upload{Storage: id, Bytes: bytes}, nil)
}

func (c *client) piece(of uint64, body string) {
	c.t.Helper()
	require.NoError(c.t, c.c.Send(transport.Piece, of, nil, []byte(body)))
}

// TestUploadsInPieces: two at a time, with other frames between the pieces.
func TestUploadsInPieces(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	c.upload(3, []byte("other"))
	one, two := c.begin(1, 5), c.begin(2, 3)
	c.piece(one, "12")
	c.piece(two, "a")
	got, st := c.read(3, 5)
	require.Nil(t, st)
	require.Equal(t, "other", string(got))
	require.Equal(t, uint64(1), c.sync().Storages, "an upload that arrives is no storage yet")
	c.piece(two, "bc")
	c.piece(one, "345")
	for id, want := range map[uint64]string{1: "12345", 2: "abc"} {
		got, st := c.read(id, len(want))
		require.Nil(t, st)
		require.Equal(t, want, string(got))
	}
}

// TestAnUploadInPiecesWithoutMemory: its pieces are discarded, and the session goes on.
func TestAnUploadInPiecesWithoutMemory(t *testing.T) {
	c := serve(t, refBackend, 0).connect(t)
	n := c.begin(1, 1<<39) // the reference worker has no such memory
	c.piece(n, "x")
	c.upload(2, []byte("y"))
	got, st := c.read(2, 1)
	require.Nil(t, st)
	require.Equal(t, "y", string(got))
}

func TestBreachesWithPieces(t *testing.T) {
	s := serve(t, refBackend, 0)
	for name, breach := range map[string]func(c *client){
		"no begin":          func(c *client) { c.piece(7, "x") },
		"too many bytes":    func(c *client) { c.piece(c.begin(1, 2), "123") },
		"after the last":    func(c *client) { n := c.begin(1, 1); c.piece(n, "1"); c.piece(n, "2") },
		"an empty piece":    func(c *client) { c.piece(c.begin(1, 1), "") },
		"no bytes":          func(c *client) { c.begin(1, 0) },
		"more than a frame": func(c *client) { c.begin(1, 1<<63) },
		"storage 0":         func(c *client) { c.begin(0, 1) },
		"twice":             func(c *client) { c.begin(1, 1); c.begin(1, 1) },
		"one that exists":   func(c *client) { c.upload(1, []byte("1")); c.begin(1, 1) },
		"an upload too":     func(c *client) { c.begin(1, 1); c.upload(1, []byte("1")) },
		"a free": func(c *client) {
			c.begin(1, 1)
			c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{5, 1}}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.connect(t)
			breach(c)
			require.NotEmpty(t, c.fault())
		})
	}
}
