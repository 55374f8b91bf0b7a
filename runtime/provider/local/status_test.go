// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package local

import (
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/runtime/provider/process"

	"github.com/mycelya/mycelya/runtime/provider"
)

// TestDetachedWorkersTell reads the log and the metrics of detached workers, as another process does. A worker with a
// client is in tests/e2e/test_cli.py.
func TestDetachedWorkersTell(t *testing.T) {
	for _, transport := range []string{"unix", "tcp"} {
		t.Run(transport, func(t *testing.T) {
			t.Setenv("XDG_STATE_HOME", t.TempDir())
			p := Provider{Paths: refSpec()}
			started, err := p.Start(t.Context(), provider.Spec{Session: "m", Device: "cpu", Detached: true,
				Lease: 2 * time.Hour, Idle: time.Hour, Options: map[string]string{"transport": transport}})
			require.NoError(t, err)
			t.Cleanup(func() { _ = started.Stop(t.Context(), 0) })
			in, err := p.Attach(t.Context(), provider.Spec{Session: "m", Detached: true})
			require.NoError(t, err)
			_, err = in.(provider.Logger).Logs(t.Context())
			require.NoError(t, err)
			text, err := provider.Metrics(t.Context(), in)
			require.NoError(t, err)
			require.Contains(t, text, "\nmycelya_sessions 0\n")
			require.Regexp(t, `\nmycelya_lease_seconds_left (7200|7[01]\d\d[.\d]*)\n`, text)
			found, err := p.Sweep(t.Context(), func(provider.Found) bool { return false })
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.False(t, found[0].Used)
			require.True(t, found[0].Detached)

			a := started.(*attached)
			log := a.folder + "/log"
			require.NoError(t, os.WriteFile(log, []byte(strings.Repeat("0123456789\n", 20_000)+"the end\n"), 0o600))
			tail, err := in.(provider.Logger).Logs(t.Context())
			require.NoError(t, err)
			require.True(t, strings.HasPrefix(tail, "0123456789\n") && strings.HasSuffix(tail, "\nthe end\n"))
			require.LessOrEqual(t, len(tail), process.LogBytes)

			require.NoError(t, syscall.Kill(a.PID, syscall.SIGKILL))
			_, err = in.Wait(t.Context())
			require.NoError(t, err)
			_, err = provider.Metrics(t.Context(), in)
			require.ErrorIs(t, err, provider.ErrUnavailable)
			require.ErrorContains(t, err, `does not report: The worker of the machine "m" has ended.`)
			_, err = in.(provider.Logger).Logs(t.Context())
			require.NoError(t, err)
		})
	}
}

// TestALocalWorkerTells reads the log of a worker that ends with its client, also after its end.
func TestALocalWorkerTells(t *testing.T) {
	s := refSpec()
	s.LogLevel = "debug"
	in := started(t, s)
	require.NoError(t, in.Stop(t.Context(), 0))
	_, err := in.Logs(t.Context())
	require.NoError(t, err)
	p := Provider{}
	require.NoError(t, p.Keeps(provider.Spec{}))
	price, known := p.Price("", 1)
	require.True(t, known)
	require.Zero(t, price.PerHour)
}
