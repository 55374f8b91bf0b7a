// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport_test

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

// compressible returns bytes like those of small integers.
func compressible(n int) []byte {
	r := rand.New(rand.NewPCG(1, 2))
	out := make([]byte, n)
	for i := range out {
		if i%8 == 0 {
			out[i] = byte(r.IntN(64))
		}
	}
	return out
}

func TestCompress(t *testing.T) {
	var c transport.Compressor
	var x transport.Expander
	defer x.Close()
	for _, n := range []int{1, 7, 4096, 1 << 20, transport.MaxExpanded} {
		want := compressible(n)
		small, err := c.Compress(want)
		require.NoError(t, err)
		got := make([]byte, n+8)
		require.NoError(t, x.Expand(got[:n], small))
		require.True(t, bytes.Equal(want, got[:n]))
		require.Equal(t, make([]byte, 8), got[n:])
	}
}

func TestExpandRefuses(t *testing.T) {
	var c transport.Compressor
	var x transport.Expander
	defer x.Close()
	small, err := c.Compress(compressible(1000))
	require.NoError(t, err)
	for _, n := range []int{0, 999, 1001, transport.MaxExpanded + 1} {
		require.ErrorIs(t, x.Expand(make([]byte, n), small), transport.ErrCompressed, "%d bytes", n)
	}
	require.ErrorIs(t, x.Expand(make([]byte, 1000), small[:len(small)-1]), transport.ErrCompressed)
	require.ErrorIs(t, x.Expand(make([]byte, 1000), nil), transport.ErrCompressed)
	bomb, err := c.Compress(make([]byte, 1<<28))
	require.NoError(t, err)
	require.ErrorIs(t, x.Expand(make([]byte, transport.MaxExpanded), bomb), transport.ErrCompressed)
}

func FuzzExpand(f *testing.F) {
	var c transport.Compressor
	for _, n := range []int{1, 100, 5000} {
		small, err := c.Compress(compressible(n))
		require.NoError(f, err)
		f.Add(bytes.Clone(small), n)
	}
	f.Fuzz(func(t *testing.T, p []byte, n int) {
		var x transport.Expander
		defer x.Close()
		n = min(max(n, 0), 1<<16)
		dst := make([]byte, n+64)
		_ = x.Expand(dst[:n], p)
		require.Equal(t, make([]byte, 64), dst[n:], "bytes behind the end")
	})
}
