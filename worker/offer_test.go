// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/kept"
	"github.com/mycelya/mycelya/worker/session"
)

// offers is a server that keeps uploads in a folder, up to a limit.
func offers(t *testing.T, folder string, limit int64) *serving {
	return start(t, &session.Server{Load: refBackend, Keeper: &kept.Folder{Path: folder, Uploads: limit}, Uploads: limit})
}

func sha(text string) []byte {
	sum := sha256.Sum256([]byte(text))
	return sum[:]
}

func (c *client) sendOffer(n uint64, text string) {
	c.t.Helper()
	require.NoError(c.t, c.c.Send(transport.Offer, n, &proto.Offer{Hash: sha(text)}, nil))
}

// offer offers the bytes of an upload, and returns the answer.
func (c *client) offer(n uint64, text string) proto.Offered_Found {
	c.t.Helper()
	c.sendOffer(n, text)
	return c.offered(n)
}

func (c *client) offered(n uint64) proto.Offered_Found {
	c.t.Helper()
	var m proto.Offered
	c.expect(transport.Offered, n, &m)
	return m.Found
}

func (c *client) settle(n uint64, again bool) {
	c.t.Helper()
	require.NoError(c.t, c.c.Send(transport.Settle, n, &proto.Settle{Again: again}, nil))
}

func (c *client) holds(id uint64, want string) {
	c.t.Helper()
	got, st := c.read(id, len(want))
	require.Nil(c.t, st)
	require.Equal(c.t, want, string(got))
}

// awaitKept waits until a folder has these uploads.
func awaitKept(t *testing.T, folder string, texts ...string) {
	t.Helper()
	var want, have []string
	for _, text := range texts {
		want = append(want, hex.EncodeToString(sha(text))+".bytes")
	}
	require.Eventually(t, func() bool {
		files, _ := os.ReadDir(filepath.Join(folder, "upload"))
		have = nil
		for _, f := range files {
			have = append(have, f.Name())
		}
		drafts, _ := filepath.Glob(filepath.Join(folder, "draft-*"))
		return len(drafts) == 0 && len(have) == len(want)
	}, time.Minute, time.Millisecond)
	require.ElementsMatch(t, want, have)
}

func TestOffers(t *testing.T) {
	folder := t.TempDir()
	s := offers(t, folder, 1<<20)
	c := s.connect(t)
	n := c.begin(1, 5)
	c.piece(n, "12")
	require.Equal(t, proto.Offered_ABSENT, c.offer(n, "12345"))
	c.piece(n, "3")
	c.piece(n, "45")
	c.holds(1, "12345")
	awaitKept(t, folder, "12345")

	c = s.connect(t) // another session, which has its own storages
	n = c.begin(7, 5)
	c.piece(n, "1")
	require.Equal(t, proto.Offered_FOUND, c.offer(n, "12345"))
	c.piece(n, "23") // sent before the client knew
	require.Equal(t, proto.Offered_TAKEN, c.offered(n))
	c.piece(n, "45")
	c.settle(n, false)
	c.holds(7, "12345")
}

// TestOffersThatAreWrong: what a worker has kept is compared with the hash, and the pieces come again.
func TestOffersThatAreWrong(t *testing.T) {
	folder := t.TempDir()
	s := offers(t, folder, 1<<20)
	c := s.connect(t)
	n := c.begin(1, 5)
	require.Equal(t, proto.Offered_ABSENT, c.offer(n, "other"), "a client that lies")
	c.piece(n, "12345")
	c.holds(1, "12345")
	awaitKept(t, folder)

	path := filepath.Join(folder, "upload", hex.EncodeToString(sha("12345"))+".bytes")
	for _, content := range []string{"12344", "92345"} {
		require.NoError(t, os.WriteFile(path, []byte(content), 0o600))
		n = c.begin(2, 5)
		c.piece(n, "1")
		require.Equal(t, proto.Offered_FOUND, c.offer(n, "12345"))
		c.piece(n, "2")
		found := c.offered(n)
		if content == "92345" { // the first byte has come from the client
			require.Equal(t, proto.Offered_TAKEN, found)
			c.settle(n, false)
		} else {
			require.Equal(t, proto.Offered_DAMAGED, found)
			require.NoFileExists(t, path)
			c.piece(n, "3")
			c.settle(n, true)
			c.piece(n, "23")
			c.piece(n, "45")
		}
		c.holds(2, "12345")
		c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{2}}, nil)
	}
	require.NoError(t, os.WriteFile(path, []byte("123456"), 0o600))
	n = c.begin(3, 5)
	require.Equal(t, proto.Offered_ABSENT, c.offer(n, "12345"), "another size")
}

// TestOffersHaveALimit: the uploads that were used longest ago go.
func TestOffersHaveALimit(t *testing.T) {
	folder := t.TempDir()
	c := offers(t, folder, 10).connect(t)
	id := uint64(0)
	upload := func(text string, want proto.Offered_Found) {
		t.Helper()
		time.Sleep(5 * time.Millisecond) // of another time of the file system
		id++
		n := c.begin(id, uint64(len(text)))
		require.Equal(t, want, c.offer(n, text))
		if want == proto.Offered_FOUND {
			require.Equal(t, proto.Offered_TAKEN, c.offered(n))
			c.settle(n, false)
		} else {
			c.piece(n, text)
		}
		c.holds(id, text)
	}
	upload("aaaa", proto.Offered_ABSENT)
	awaitKept(t, folder, "aaaa")
	upload("bbbb", proto.Offered_ABSENT)
	awaitKept(t, folder, "aaaa", "bbbb")
	upload("aaaa", proto.Offered_FOUND)
	upload("cccc", proto.Offered_ABSENT)
	awaitKept(t, folder, "aaaa", "cccc")
	upload("eleven byte", proto.Offered_ABSENT)
	awaitKept(t, folder, "aaaa", "cccc")
}

func TestBreachesWithOffers(t *testing.T) {
	folder := t.TempDir()
	s := offers(t, folder, 1<<20)
	c := s.connect(t)
	n := c.begin(1, 5)
	c.offer(n, "12345")
	c.piece(n, "12345")
	c.sync()
	awaitKept(t, folder, "12345")
	found := func(c *client) uint64 {
		n := c.begin(1, 5)
		require.Equal(t, proto.Offered_FOUND, c.offer(n, "12345"))
		require.Equal(t, proto.Offered_TAKEN, c.offered(n))
		return n
	}
	compressed := func(c *client, bytes uint64, body string) {
		n := c.begin(1, 5000)
		require.NoError(t, c.c.Send(transport.Piece, n, &proto.Piece{Bytes: bytes}, []byte(body)))
	}
	var compressor transport.Compressor
	small, err := compressor.Compress(make([]byte, 6000))
	require.NoError(t, err)
	for name, breach := range map[string]func(c *client){
		"no upload":           func(c *client) { _ = c.c.Send(transport.Offer, 9, &proto.Offer{Hash: sha("x")}, nil) },
		"no hash":             func(c *client) { _ = c.c.Send(transport.Offer, c.begin(1, 5), &proto.Offer{}, nil) },
		"two offers":          func(c *client) { n := c.begin(1, 5); c.offer(n, "x"); c.sendOffer(n, "x") },
		"nothing found":       func(c *client) { n := c.begin(1, 5); c.offer(n, "x"); c.settle(n, false) },
		"not offered":         func(c *client) { c.settle(c.begin(1, 5), false) },
		"again, but is right": func(c *client) { c.settle(found(c), true) },
		"settled twice":       func(c *client) { n := found(c); c.settle(n, false); c.settle(n, false) },
		"not compressed":      func(c *client) { compressed(c, 5000, "nonsense") },
		"too large":           func(c *client) { compressed(c, transport.MaxExpanded+1, string(small)) },
		"another size":        func(c *client) { compressed(c, 4999, string(small)) },
		"beyond the upload":   func(c *client) { compressed(c, 6000, string(small)) },
		"a use": func(c *client) {
			found(c)
			c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{1}}, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := s.connect(t)
			breach(c)
			require.NotEmpty(t, strings.TrimSpace(c.fault()))
		})
	}
	awaitKept(t, folder, "12345")
}

// TestASessionEndsWhileItsUploadsArrive: nothing of them is left.
func TestASessionEndsWhileItsUploadsArrive(t *testing.T) {
	folder := t.TempDir()
	s := offers(t, folder, 1<<30)
	big := strings.Repeat("0123456789abcdef", 1<<20)
	c := s.connect(t)
	n := c.begin(1, uint64(len(big)))
	c.offer(n, big)
	c.piece(n, big)
	c.sync()
	awaitKept(t, folder, big)
	for range 20 {
		c := s.connect(t)
		n := c.begin(1, uint64(len(big)))
		require.Equal(t, proto.Offered_FOUND, c.offer(n, big))
		m := c.begin(2, 5)
		c.piece(m, "1")
		c.sendOffer(m, "absent")
		c.awaitOffered(m, n)
		require.NoError(t, c.c.Close())
	}
	awaitKept(t, folder, big)
}

// awaitOffered waits for an answer, before or after one to another offer.
func (c *client) awaitOffered(m, other uint64) {
	c.t.Helper()
	for {
		h, err := c.c.Next()
		require.NoError(c.t, err)
		if h.Seq == m {
			return
		}
		require.Equal(c.t, other, h.Seq)
	}
}
