// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/hub/hubtest"
)

// offerFrom offers the bytes of an upload with a source, and returns the answer.
func (c *client) offerFrom(n uint64, text string, from *proto.Source) proto.Offered_Found {
	c.t.Helper()
	require.NoError(c.t, c.c.Send(transport.Offer, n, &proto.Offer{Hash: sha(text), Source: from}, nil))
	return c.offered(n)
}

// TestOffersWithASource: the worker fetches the file once, and takes what has the right hash.
func TestOffersWithASource(t *testing.T) {
	file := []byte("0123456789")
	sum := sha256.Sum256(file)
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{"x/m.safetensors": file}}})
	at := func(offset uint64) *proto.Source {
		return &proto.Source{Endpoint: h.API.URL, Repo: "me/model", Revision: hubtest.Commit, Path: "x/m.safetensors",
			Sha256: hex.EncodeToString(sum[:]), Offset: offset}
	}
	s := inProcess(t, t.TempDir())
	c := s.connect(t)
	for i, want := range []string{"34567", "0123456789", "9"} {
		id := uint64(i + 1)
		n := c.begin(id, uint64(len(want)))
		if i == 0 {
			c.piece(n, "3")
		}
		require.Equal(t, proto.Offered_FOUND, c.offerFrom(n, want, at(uint64(want[0]-'0'))))
		require.Equal(t, proto.Offered_TAKEN, c.offered(n))
		c.settle(n, false)
		c.holds(id, want)
	}
	require.Equal(t, int64(len(file)), h.Served())

	// What the client has is not what the file has there: its bytes come again.
	n := c.begin(9, 5)
	c.piece(n, "a")
	require.Equal(t, proto.Offered_FOUND, c.offerFrom(n, "abcde", at(0)))
	require.Equal(t, proto.Offered_DAMAGED, c.offered(n))
	c.settle(n, true)
	c.piece(n, "bcde")
	c.holds(9, "abcde")

	for _, beyond := range []uint64{6, 11, 1 << 59, 1<<64 - 1} {
		n = c.begin(10, 5)
		require.Equal(t, proto.Offered_ABSENT, c.offerFrom(n, "abcde", at(beyond)), "beyond the file")
		c.piece(n, "abcde")
		c.holds(10, "abcde")
		c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{10}}, nil)
	}
}

// TestSourcesThatAreNotThere: the first upload waits for the failure, and later ones do not.
func TestSourcesThatAreNotThere(t *testing.T) {
	h := hubtest.New(t, map[string]*hubtest.Repo{})
	c := inProcess(t, t.TempDir()).connect(t)
	from := &proto.Source{Endpoint: h.API.URL, Repo: "me/none", Revision: "main", Path: "x",
		Sha256: hex.EncodeToString(sha("file"))}
	n := c.begin(1, 5)
	require.Equal(t, proto.Offered_FOUND, c.offerFrom(n, "12345", from))
	require.Equal(t, proto.Offered_DAMAGED, c.offered(n))
	c.settle(n, true)
	c.piece(n, "12345")
	c.holds(1, "12345")
	n = c.begin(2, 5)
	require.Equal(t, proto.Offered_ABSENT, c.offerFrom(n, "12345", from))
	c.piece(n, "12345")
	c.holds(2, "12345")
}

// TestASessionThatGoesWhileAFileIsFetched: nothing waits for the file.
func TestASessionThatGoesWhileAFileIsFetched(t *testing.T) {
	file := []byte("0123456789")
	sum := sha256.Sum256(file)
	h := hubtest.New(t, map[string]*hubtest.Repo{"me/model": {Files: map[string][]byte{"m.safetensors": file}}})
	h.Inject(slices.Repeat([]hubtest.Fault{hubtest.Stall}, 100)...)
	s := inProcess(t, t.TempDir())
	for range 3 {
		c := s.connect(t)
		for id := uint64(1); id <= 3; id++ {
			n := c.begin(id, 5)
			require.Equal(t, proto.Offered_FOUND, c.offerFrom(n, "01234", &proto.Source{Endpoint: h.API.URL,
				Repo: "me/model", Revision: hubtest.Commit, Path: "m.safetensors", Sha256: hex.EncodeToString(sum[:])}))
		}
		c.upload(9, []byte("x"))
		c.holds(9, "x")
		require.NoError(t, c.c.Close())
	}
}
