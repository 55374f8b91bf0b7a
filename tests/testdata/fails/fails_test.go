// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package fails has a test that fails as often as it is told. tests/e2e/test_chance.py runs it as a part of a run.
package fails

import (
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFails takes the first word from the file that MYCELYA_FAILS names: fail, panic or exit. It passes if there is
// none.
func TestFails(t *testing.T) {
	name := os.Getenv("MYCELYA_FAILS")
	text, err := os.ReadFile(name)
	require.NoError(t, err)
	word, rest, _ := strings.Cut(strings.TrimSpace(string(text)), " ")
	require.NoError(t, os.WriteFile(name, []byte(rest), 0o600))
	switch word {
	case "fail":
		require.Fail(t, "as told")
	case "panic":
		panic("as told")
	case "exit":
		os.Exit(1)
	}
}
