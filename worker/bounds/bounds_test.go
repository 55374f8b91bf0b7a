// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package bounds_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/bounds"
)

// fill makes a folder with the entries a, b, c and d of 100 bytes each, of which b is a folder. a was used longest ago.
func fill(t *testing.T) string {
	folder := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(folder, "b"), 0o700))
	for name, bytes := range map[string]int{"a": 100, "b/1": 60, "b/2": 40, "c": 100, "d": 100} {
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), make([]byte, bytes), 0o600))
	}
	for i, name := range []string{"a", "b", "c", "d"} {
		used(t, filepath.Join(folder, name), time.Duration(10-i)*time.Minute)
	}
	return folder
}

func used(t *testing.T, path string, ago time.Duration) {
	at := time.Now().Add(-ago)
	require.NoError(t, os.Chtimes(path, at, at))
}

func left(t *testing.T, folder string) (names []string) {
	entries, err := os.ReadDir(folder)
	require.NoError(t, err)
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func TestTrim(t *testing.T) {
	for _, test := range []struct {
		name   string
		bounds bounds.Bounds
		use    string
		want   []string
		bytes  int64
	}{
		{"all fit", bounds.Bounds{Bytes: 400}, "", []string{"a", "b", "c", "d"}, 400},
		{"bytes", bounds.Bounds{Bytes: 399}, "", []string{"b", "c", "d"}, 300},
		{"number", bounds.Bounds{Bytes: 400, Number: 2}, "", []string{"c", "d"}, 200},
		{"the last one stays", bounds.Bounds{Bytes: 1}, "", []string{"d"}, 100},
		{"the one that was used stays", bounds.Bounds{Bytes: 1}, "b", []string{"b"}, 100},
		{"others do not count", bounds.Bounds{Bytes: 1, Counts: func(name string) bool { return name > "b" }}, "",
			[]string{"a", "b", "d"}, 100},
	} {
		t.Run(test.name, func(t *testing.T) {
			folder := fill(t)
			if test.use != "" {
				bounds.Use(filepath.Join(folder, test.use))
			}
			n, err := test.bounds.Trim(folder)
			require.NoError(t, err)
			require.Equal(t, test.want, left(t, folder))
			require.Equal(t, test.bytes, n)
		})
	}
}

// TestDrafts: a draft stays while somebody may be writing it, and does not count.
func TestDrafts(t *testing.T) {
	folder := fill(t)
	for _, name := range []string{"new-1", "new-2"} {
		require.NoError(t, os.Mkdir(filepath.Join(folder, name), 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(folder, name, "x"), make([]byte, 1000), 0o600))
	}
	used(t, filepath.Join(folder, "new-1"), 2*time.Hour)
	n, err := (&bounds.Bounds{Bytes: 200, Draft: "new-"}).Trim(folder)
	require.NoError(t, err)
	require.Equal(t, []string{"c", "d", "new-2"}, left(t, folder))
	require.EqualValues(t, 200, n)
}

func TestAFolderThatIsNotThere(t *testing.T) {
	_, err := (&bounds.Bounds{}).Trim(filepath.Join(t.TempDir(), "none"))
	require.ErrorIs(t, err, os.ErrNotExist)
}
