// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

func TestParse(t *testing.T) {
	u, err := parse(strings.NewReader("# HELP go_goroutines x\ngo_goroutines 12\nprocess_open_fds 9\n" +
		"process_resident_memory_bytes 1.5e+07\nmycelya_session_ends_total{how=\"signal\"} 3\n"))
	require.NoError(t, err)
	require.Equal(t, Usage{Resident: 1.5e7, Descriptors: 9, Goroutines: 12, Signal: 3}, u)
	_, err = parse(strings.NewReader("mycelya_sessions 1\n"))
	require.Error(t, err)
}

// TestLeaked: the checks of the test programs notice growth, and secrets in a log.
func TestLeaked(t *testing.T) {
	start := Usage{Resident: 30 << 20, Descriptors: 10, Goroutines: 12}
	require.NoError(t, start.Leaked(start))
	for _, more := range []Usage{
		{Resident: 300 << 20, Descriptors: 10, Goroutines: 12}, {Resident: 30 << 20, Descriptors: 20, Goroutines: 12},
		{Resident: 30 << 20, Descriptors: 10, Goroutines: 30}, {Resident: 1, Descriptors: 1, Goroutines: 1, Pending: 1},
	} {
		require.Error(t, more.Leaked(start))
	}
}

func TestCheckLog(t *testing.T) {
	client, _, err := transport.Mint(lease)
	require.NoError(t, err)
	w := &Worker{log: filepath.Join(t.TempDir(), "log")}
	require.NoError(t, w.noteSecrets(client))
	require.NotEmpty(t, w.secrets)
	write := func(text string) { require.NoError(t, os.WriteFile(w.log, []byte(text), 0o600)) }
	write("level=WARN msg=\"a connection is refused\"\n")
	require.NoError(t, w.CheckLog())
	for _, secret := range w.secrets {
		write("a line\nanother with " + string(secret))
		require.ErrorContains(t, w.CheckLog(), "a part of a key")
	}
	write("time=1 level=ERROR msg=panic value=1\n")
	require.ErrorContains(t, w.CheckLog(), "panicked")
}
