// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCurrent fails if a committed generated file differs from the file that the catalogue gives.
func TestCurrent(t *testing.T) {
	require.NoError(t, run(filepath.Join("..", ".."), true))
}
