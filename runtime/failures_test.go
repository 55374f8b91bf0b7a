// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/runtime/compile"
)

// TestLost: storages that the failed record or a later one should have made are lost, and all that came after them.
func TestLost(t *testing.T) {
	c := &call{
		variant: &compile.Variant{Compiled: &codegen.Compiled{Program: &program.Program{Versions: []program.Version{
			{Output: 0, Record: 3}, {Output: 1, Record: 5}, {Output: 2, Record: 2}, {Output: 2, Record: 6},
			{Output: 3, Record: 6},
		}}}},
		meta: &proto.Call{Inputs: []uint64{4, 7}, Outputs: []uint64{8, 9, 10, 7}},
	}
	for failed, want := range map[int]uint64{-1: 8, 2: 8, 3: 9, 4: 9, 5: 11} {
		require.Equal(t, want, c.lost(failed), "record %d fails", failed)
	}
}
