// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package provider_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/runtime/provider"
)

func TestOptionsOfAnotherDevice(t *testing.T) {
	var r provider.Request
	require.NoError(t, r.Options(map[string]string{".beside": "3", "state": "x"}))
	require.Equal(t, int32(4), r.Beside)
	require.Equal(t, map[string]string{"state": "x"}, r.Spec.Options)
	for _, bad := range []string{"", "-1", "x", "99999"} {
		require.ErrorContains(t, r.Options(map[string]string{".beside": bad}), "BUG", bad)
	}
}
