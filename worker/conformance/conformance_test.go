// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package conformance_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/ir"
	"github.com/mycelya/mycelya/worker/conformance"
	"github.com/mycelya/mycelya/worker/ref"
)

func TestRef(t *testing.T) { conformance.RunAll(t, ref.Backend{}) }

func TestTorch(t *testing.T) {
	b, err := conformance.Torch(t).Load()
	require.NoError(t, err)
	conformance.RunAll(t, b)
}

// TestDTypes checks that the dtypes of proto, which does not import ir, are those of ir.
func TestDTypes(t *testing.T) {
	for d := range ir.NumDTypes + 10 {
		want := 0
		if d.Valid() {
			want = d.Size()
		}
		require.Equal(t, want, catalogue.DTypeSize(uint64(d)))
	}
}
