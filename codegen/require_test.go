// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package codegen

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/ir"
)

func TestRequires(t *testing.T) {
	g, err := ir.Parse(`graph f.py:1 read {
  dims a=2@3,5 b=3@4 c=6@1
  require a*b = c
  require 1 = 1
  %0: f32[a,b] = input 0
  %1: f32[c] = input 1
  %2: f32[a,b] = relu %0
  output %2 -> s2
}
`)
	require.NoError(t, err)
	c, err := Compile(g, Options{})
	require.NoError(t, err)
	for _, test := range []struct {
		trace []uint64
		want  bool
	}{
		{[]uint64{0, 6, 0, 2, 3, 2}, true},
		{[]uint64{9, 20, 9, 4, 5, 4}, true},
		{[]uint64{0, 7, 0, 2, 3, 2}, false},
		{[]uint64{0, 6, 0, 2, 3, 3}, false},
		{[]uint64{0, 6, 0, 2, 3}, false},
		{[]uint64{0, 0, 0, 1 << 32, 1 << 32, 1 << 32}, false}, // a product of 65 bits is not 0
	} {
		assert.Equal(t, test.want, c.Holds(test.trace), "%v", test.trace)
		assert.Equal(t, test.want, c.Broken(test.trace) == "", "%v", test.trace)
	}
	assert.Equal(t, "s3 * s4 = s1, where s<n> is the size in slot n", c.Broken([]uint64{0, 7, 0, 2, 3, 2}))
	assert.Equal(t, "s3 = s5, where s<n> is the size in slot n", c.Broken([]uint64{0, 6, 0, 2, 3, 4}))
}
