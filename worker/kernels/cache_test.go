// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernels_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/worker/kernels"
)

// compiler makes cubins of a given size of sources that aren't "wrong".
type compiler struct {
	version string
	size    int
	calls   atomic.Int64
	gate    chan struct{} // each call takes one; nil: none has to
}

func (c *compiler) Version() string { return c.version }

func (c *compiler) Compile(source, arch string, options []string) ([]byte, string, error) {
	if c.gate != nil {
		<-c.gate
	}
	c.calls.Add(1)
	if source == "wrong" {
		return nil, "", errors.New("kernel.cu(1): error: wrong")
	}
	text := fmt.Sprintf("%s for %s by %s with %v", source, arch, c.version, options)
	return append([]byte(text), make([]byte, c.size)...), "", nil
}

func cache(t *testing.T, config kernels.Config) *kernels.Cache {
	if config.Arch == "" {
		config.Arch = "sm_90"
	}
	config.Disk, config.Memory = max(config.Disk, 1<<12), max(config.Memory, 1<<12)
	c, err := kernels.New(config)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func ready(t *testing.T, c *kernels.Cache, source string) string {
	cubin, state := c.Wait(source)
	require.Equal(t, kernels.Ready, state)
	return strings.TrimRight(string(cubin), "\x00")
}

func cubins(t *testing.T, folder string) []string {
	list, err := filepath.Glob(filepath.Join(folder, "*.cubin"))
	require.NoError(t, err)
	return list
}

// TestLookupNeverWaits: a kernel is pending until it is made, and made once however many ask for it.
func TestLookupNeverWaits(t *testing.T) {
	made := &compiler{gate: make(chan struct{})}
	c := cache(t, kernels.Config{Compiler: made, Threads: 2})
	for range 3 {
		cubin, state := c.Lookup("a")
		require.Nil(t, cubin)
		require.Equal(t, kernels.Pending, state)
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { c.Wait("a") })
	}
	made.gate <- struct{}{}
	group.Wait()
	cubin, state := c.Lookup("a")
	require.Equal(t, kernels.Ready, state)
	require.Equal(t, "a for sm_90 by  with []", string(cubin))
	require.EqualValues(t, 1, made.calls.Load())
}

// TestDiskOutlives: another cache finds what one has made, but not what another compiler, architecture or option would make.
func TestDiskOutlives(t *testing.T) {
	folder := t.TempDir()
	made := &compiler{version: "1"}
	want := ready(t, cache(t, kernels.Config{Compiler: made, Folder: folder}), "a")
	require.Equal(t, want, ready(t, cache(t, kernels.Config{Compiler: made, Folder: folder}), "a"))
	require.EqualValues(t, 1, made.calls.Load())
	other := &compiler{version: "2"}
	for _, config := range []kernels.Config{
		{Compiler: other, Folder: folder}, {Compiler: made, Folder: folder, Arch: "sm_80"}, {Compiler: made, Folder: folder, Options: []string{"-a"}},
		{Compiler: made, Folder: folder, Options: []string{"-", "a"}},
	} {
		require.NotEqual(t, want, ready(t, cache(t, config), "a"))
	}
	require.Len(t, cubins(t, folder), 5)
}

// TestCorruptFiles: whatever has become of a file, the kernel is made again and the file is whole again.
func TestCorruptFiles(t *testing.T) {
	folder := t.TempDir()
	made := &compiler{}
	want := ready(t, cache(t, kernels.Config{Compiler: made, Folder: folder}), "a")
	path := cubins(t, folder)[0]
	whole, err := os.ReadFile(path)
	require.NoError(t, err)
	for i, change := range []func(data []byte) []byte{
		func([]byte) []byte { return nil },
		func(d []byte) []byte { return d[:10] },
		func(d []byte) []byte { return d[:len(d)-1] },
		func(d []byte) []byte { return append(d, 0) },
		func(d []byte) []byte { d[len(d)-1] ^= 1; return d },
		func(d []byte) []byte { d[20] ^= 1; return d },
		func(d []byte) []byte { return append([]byte("mycelya cubin 0\n"), d[16:]...) },
		func(d []byte) []byte { return d[:16+32] },
	} {
		require.NoError(t, os.WriteFile(path, change(append([]byte{}, whole...)), 0o600))
		require.Equal(t, want, ready(t, cache(t, kernels.Config{Compiler: made, Folder: folder}), "a"))
		require.EqualValues(t, i+2, made.calls.Load(), "change %d was not seen", i)
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, whole, now)
	}
}

// TestDiskIsBounded: what was used longest ago goes, and what writers have left behind.
func TestDiskIsBounded(t *testing.T) {
	folder := t.TempDir()
	left := filepath.Join(folder, "new-1")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	long := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(left, long, long))
	made := &compiler{size: 1000}
	c := cache(t, kernels.Config{Compiler: made, Folder: folder, Disk: 10000})
	require.NoFileExists(t, left)
	ready(t, c, "first")
	first := cubins(t, folder)[0]
	require.NoError(t, os.Chtimes(first, long, long))
	for i := range 30 {
		ready(t, c, fmt.Sprint(i))
		bytes := int64(0)
		for _, f := range cubins(t, folder) {
			info, err := os.Stat(f)
			require.NoError(t, err)
			bytes += info.Size()
		}
		require.LessOrEqual(t, bytes, int64(10000))
	}
	require.NoFileExists(t, first)
	require.GreaterOrEqual(t, len(cubins(t, folder)), 7)
}

// TestMemoryIsBounded: what has gone from memory is read from disk.
func TestMemoryIsBounded(t *testing.T) {
	made := &compiler{size: 1000}
	c := cache(t, kernels.Config{Compiler: made, Folder: t.TempDir(), Memory: 1 << 12, Disk: 1 << 20})
	for i := range 10 {
		ready(t, c, fmt.Sprint(i))
	}
	_, state := c.Lookup("9")
	require.Equal(t, kernels.Ready, state)
	_, state = c.Lookup("0")
	require.Equal(t, kernels.Pending, state)
	require.Equal(t, "0 for sm_90 by  with []", ready(t, c, "0"))
	require.EqualValues(t, 10, made.calls.Load())
}

// TestFailure: a kernel that can't be compiled is tried once; one warning names the file that has its source and the compiler's words.
func TestFailure(t *testing.T) {
	made := &compiler{}
	var warnings []string
	c := cache(t, kernels.Config{Compiler: made, Folder: t.TempDir(), Warn: func(text string) { warnings = append(warnings, text) }})
	for range 3 {
		cubin, state := c.Wait("wrong")
		require.Nil(t, cubin)
		require.Equal(t, kernels.Failed, state)
	}
	require.EqualValues(t, 1, made.calls.Load())
	require.Len(t, warnings, 1)
	for _, word := range strings.Fields(warnings[0]) {
		if strings.HasSuffix(word, ".log") {
			text, err := os.ReadFile(word)
			require.NoError(t, err)
			require.Equal(t, "kernel.cu(1): error: wrong\nwrong", string(text))
			return
		}
	}
	t.Fatal(warnings[0])
}

// TestWithoutCompiler: without NVRTC nothing is made, and that is said once.
func TestWithoutCompiler(t *testing.T) {
	var warnings []string
	c := cache(t, kernels.Config{Warn: func(text string) { warnings = append(warnings, text) }})
	for _, source := range []string{"a", "b"} {
		_, state := c.Wait(source)
		require.Equal(t, kernels.Failed, state)
	}
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "NVRTC")
}

// TestTwoProcesses: caches that share a folder don't disturb each other.
func TestTwoProcesses(t *testing.T) {
	folder := t.TempDir()
	var group sync.WaitGroup
	for n := range 4 {
		c := cache(t, kernels.Config{Compiler: &compiler{size: 500}, Folder: folder, Disk: 6000, Threads: 2})
		group.Go(func() {
			for i := range 60 {
				source := fmt.Sprint((i*7 + n) % 20)
				cubin, state := c.Wait(source)
				if state != kernels.Ready || !strings.HasPrefix(string(cubin), source+" for") {
					t.Errorf("%s is %d: %.40q", source, state, cubin)
				}
			}
		})
	}
	group.Wait()
}
