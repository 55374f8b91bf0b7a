// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto"
)

// TestMappings finds the file that memory is mapped from, and the place in it.
func TestMappings(t *testing.T) {
	if goruntime.GOOS != "linux" {
		t.Skip("it reads /proc/self/maps")
	}
	path := filepath.Join(t.TempDir(), "a file with spaces")
	require.NoError(t, os.WriteFile(path, make([]byte, 64<<10), 0o600))
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	data, err := unix.Mmap(int(f.Fd()), 8<<10, 32<<10, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
	require.NoError(t, err)
	var m mappings
	for _, at := range []int{0, 1, 4096, 20_000} {
		got, offset := m.of(address(data[at : at+1000]))
		require.Equal(t, path, got)
		require.Equal(t, uint64(8<<10+at), offset)
	}
	got, _ := m.of(address(make([]byte, 100)))
	require.Empty(t, got, "memory of no file")
	require.NoError(t, unix.Munmap(data))
}

// TestSource: the paths of the hub's cache name the repository, the commit and the file.
func TestSource(t *testing.T) {
	root := filepath.Join(t.TempDir(), "hub")
	name := strings.Repeat("0a", 32)
	blob := func(repo string) string { return filepath.Join(root, "models--"+repo, "blobs", name) }
	for _, repo := range []string{"me--model", "gpt2"} {
		folder := filepath.Join(root, "models--"+repo, "snapshots", "c0ffee", "sub")
		require.NoError(t, os.MkdirAll(folder, 0o700))
		require.NoError(t, os.Symlink("../../../blobs/other", filepath.Join(folder, "a.safetensors")))
		require.NoError(t, os.Symlink("../../../blobs/"+name, filepath.Join(folder, "b.safetensors")))
	}
	require.True(t, hubBlob.MatchString(blob("me--model")))
	for repo, want := range map[string]string{"me--model": "me/model", "gpt2": "gpt2"} {
		got := (&origin{blob(repo), 7}).source("https://hub")
		require.Equal(t, &proto.Source{Endpoint: "https://hub", Repo: want, Revision: "c0ffee",
			Path: "sub/b.safetensors", Sha256: name, Offset: 7}, got)
	}
	require.Nil(t, (&origin{blob("me--none"), 0}).source(""))
	for _, path := range []string{"", "/tmp/x", "/models--a--b/blobs/" + name[1:], "/models--a/snapshots/x/y"} {
		require.False(t, hubBlob.MatchString(path), path)
	}
}

// address is where bytes are in memory, and their number.
func address(data []byte) (begin, bytes uintptr) {
	return uintptr(unsafe.Pointer(unsafe.SliceData(data))), uintptr(len(data))
}
