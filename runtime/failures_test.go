// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/codegen"
	"github.com/mycelya/mycelya/proto"
)

// TestErrorsAreInTheOrderOfTheRecords, for any order of the steps. Errors without a record come last.
func TestErrorsAreInTheOrderOfTheRecords(t *testing.T) {
	c := &call{variant: &variant{compiled: &codegen.Compiled{StepRecord: []int32{5, -1, 2}}}}
	errors := []*proto.Status{{Step: 0}, {Step: 1}, {Step: 2}, {Step: 99}}
	c.inOrder(errors)
	var got []uint32
	for _, e := range errors {
		got = append(got, e.Step)
	}
	require.Equal(t, []uint32{2, 0, 1, 99}, got)
}
