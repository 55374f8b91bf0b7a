// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func cloneCall(c *Call) *Call {
	clone := func(list []uint64) []uint64 { return append([]uint64(nil), list...) }
	return &Call{Params: clone(c.Params), Inputs: clone(c.Inputs), Outputs: clone(c.Outputs), Frees: clone(c.Frees)}
}

func TestDeltaMakesTheNextCall(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		word := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 5), rapid.Just(uint64(math.MaxUint64)))
		list := func(name string, n int) []uint64 { return rapid.SliceOfN(word, n, n).Draw(t, name) }
		size := rapid.IntRange(0, 6)
		params, inputs, outputs := size.Draw(t, "params"), size.Draw(t, "inputs"), size.Draw(t, "outputs")
		draw := func() *Call {
			return &Call{Params: list("p", params), Inputs: list("i", inputs), Outputs: list("o", outputs),
				Frees: list("f", size.Draw(t, "frees"))}
		}
		prev, next := draw(), draw()
		if rapid.Bool().Draw(t, "alike") {
			frees := next.Frees
			next = cloneCall(prev)
			next.Frees = frees
		}
		delta, ok := AppendDelta([]byte("x"), prev, next)
		require.True(t, ok)
		got := cloneCall(prev)
		require.NoError(t, ApplyDelta(delta[1:], got))
		require.Equal(t, cloneCall(next), cloneCall(got))
	})
}

func TestDeltaOfALoopIsSmall(t *testing.T) {
	prev, next := &Call{}, &Call{}
	for i := range uint64(500) {
		prev.Params, next.Params = append(prev.Params, i), append(next.Params, i)
		prev.Inputs, next.Inputs = append(prev.Inputs, i+1), append(next.Inputs, i+1)
	}
	for i := range uint64(24) { // the optimizer's step size, for each parameter
		next.Params[250+i] = 12345
	}
	next.Inputs[0] += 90
	for i := range uint64(4) {
		prev.Outputs, next.Outputs = append(prev.Outputs, 10000+i), append(next.Outputs, 10090+i)
	}
	prev.Frees, next.Frees = []uint64{9000, 9001}, []uint64{9090, 9091}
	delta, ok := AppendDelta(nil, prev, next)
	require.True(t, ok)
	// 24 parameters, one input, four outputs, two frees; four counts
	require.LessOrEqual(t, len(delta), 4+(2+8)+23+3+4*3+2*2)
}

func TestDeltaNeedsTheSameLengths(t *testing.T) {
	for _, other := range []*Call{{Params: []uint64{1}}, {Inputs: []uint64{1}}, {Outputs: []uint64{1}}} {
		b, ok := AppendDelta([]byte("x"), &Call{}, other)
		require.False(t, ok)
		require.Equal(t, "x", string(b))
	}
}

func TestDeltaRefusesWhatIsNone(t *testing.T) {
	for name, delta := range map[string][]byte{
		"nothing":          {},
		"too many changes": {3},
		"a gap too far":    {1, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"half a parameter": {1, 0, 1, 2, 3},
		"an input too far": {0, 1, 1, 2, 0, 0},
		"no difference":    {0, 1, 0},
		"a huge gap":       {1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"an endless count": {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
		"too many frees":   {0, 0, 0, 9, 1},
		"something after":  {0, 0, 0, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c := &Call{Params: []uint64{1, 2}, Inputs: []uint64{3}, Outputs: []uint64{4}}
			require.ErrorContains(t, ApplyDelta(delta, c), "delta of a call")
		})
	}
}

// FuzzApplyDelta: no bytes cause a panic. No list changes its length but the list of frees, and that is no longer than
// the delta: each of its entries takes at least a byte.
func FuzzApplyDelta(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0})
	f.Add([]byte{2, 0, 9, 9, 9, 9, 9, 9, 9, 9, 1, 0, 0, 0})
	f.Add([]byte{1, 2, 9, 9, 9, 9, 9, 9, 9, 9, 1, 0, 2, 1, 0, 1, 2, 2, 4})
	f.Fuzz(func(t *testing.T, delta []byte) {
		c := &Call{Params: []uint64{1, 2}, Inputs: []uint64{3}, Outputs: []uint64{4, 5}, Frees: []uint64{6}}
		if ApplyDelta(delta, c) != nil {
			return
		}
		require.Len(t, c.Params, 2)
		require.Len(t, c.Inputs, 1)
		require.Len(t, c.Outputs, 2)
		require.LessOrEqual(t, len(c.Frees), len(delta))
	})
}
