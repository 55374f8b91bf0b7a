// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package process

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLog(t *testing.T) {
	var r Log
	for i := range 30_000 {
		fmt.Fprintf(&r, "line %d\n", i)
	}
	s := r.String()
	require.LessOrEqual(t, len(s), LogBytes)
	require.Greater(t, len(s), LogBytes-20)
	require.True(t, strings.HasPrefix(s, "line "), "begins with a whole line")
	require.True(t, strings.HasSuffix(s, "line 29999\n"))
	var one Log
	_, _ = one.Write([]byte("short"))
	require.Equal(t, "short", one.String())
	require.Equal(t, "The end of its log:\nshort", one.Tail())
	var none Log
	require.Equal(t, "It wrote nothing to its log.", none.Tail())
}
