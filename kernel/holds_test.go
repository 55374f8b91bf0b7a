// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernel_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/mycelya/mycelya/kernel"
)

func TestHolds(t *testing.T) {
	for dtype, ends := range map[uint8][2]int64{
		1: {0, 255}, 2: {-128, 127}, 3: {-1 << 15, 1<<15 - 1}, 4: {math.MinInt32, math.MaxInt32}, 12: {0, 1},
		18: {0, 1<<16 - 1}, 19: {0, math.MaxUint32}, 6: {-65504, 65504}} {
		assert.True(t, kernel.Holds(dtype, true, 0, ends[0]) && kernel.Holds(dtype, true, 0, ends[1]), dtype)
		assert.False(t, kernel.Holds(dtype, true, 0, ends[0]-1) || kernel.Holds(dtype, true, 0, ends[1]+1), dtype)
		assert.Equal(t, dtype == 6, kernel.Holds(dtype, false, 1, 0), "a float, of %d", dtype)
	}
	assert.True(t, kernel.Holds(5, true, 0, math.MinInt64))
	assert.False(t, kernel.Holds(5, false, 1, 0))
	for dtype, most := range map[uint8]float64{6: 65504, 13: 0x1.fep127, 7: math.MaxFloat32, 8: math.MaxFloat64} {
		for _, v := range []float64{most, -most, math.Inf(1), math.NaN()} {
			assert.True(t, kernel.Holds(dtype, false, v, 0), "%g, of %d", v, dtype)
		}
		assert.Equal(t, dtype == 8, kernel.Holds(dtype, false, math.Nextafter(-most, -most*2), 0), dtype)
	}
}
