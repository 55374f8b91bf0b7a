// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVisibleGPUs(t *testing.T) {
	at := func(numbers ...int) (out []visible) {
		for _, n := range numbers {
			out = append(out, visible{number: n})
		}
		return out
	}
	require.Equal(t, at(0, 1, 2), visibleGPUs(false, "", 3))
	for value, want := range map[string][]visible{
		"":           nil,
		"2,0":        at(2, 0),
		" 1 , 2":     at(1, 2),
		"1,-1,2":     at(1),
		"0,3,1":      at(0),
		"0,x,1":      at(0),
		"MIG-a/1/0":  nil,
		"GPU-abc, 1": {{uuid: "GPU-abc"}, {number: 1}},
	} {
		require.Equal(t, want, visibleGPUs(true, value, 3), value)
	}
}

func TestDriverGPUsWithoutADriver(t *testing.T) {
	ask := DriverGPUs()
	if ask == nil {
		t.Skip("this build asks no driver")
	}
	for range 2 {
		for _, g := range ask() { // on a host with GPUs
			require.Regexp(t, `^cuda:\d+$`, g.Device)
			require.LessOrEqual(t, g.Utilization, 100.0)
		}
	}
}
