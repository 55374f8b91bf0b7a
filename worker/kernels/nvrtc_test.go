// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernels_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/kernels"
)

// TestFind checks that the newest NVRTC of torch's packages is taken, by its number.
func TestFind(t *testing.T) {
	packages := t.TempDir()
	for _, path := range []string{"nvidia/cuda_nvrtc/lib/libnvrtc.so.9", "nvidia/cuda_nvrtc/lib/libnvrtc-builtins.so.14.0",
		"nvidia/cu13/lib/libnvrtc.so.13", "nvidia/cu13/lib/libnvrtc.so.12", "torch/lib/libnvrtc-1234.so.15"} {
		path = filepath.Join(packages, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o700))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	lib := filepath.Join(packages, "torch", "lib")
	require.Equal(t, filepath.Join(packages, "nvidia/cu13/lib/libnvrtc.so.13"), kernels.Find(lib))
	require.NoError(t, os.RemoveAll(filepath.Join(packages, "nvidia")))
	require.Equal(t, filepath.Join(packages, "torch/lib/libnvrtc-1234.so.15"), kernels.Find(lib))
}
