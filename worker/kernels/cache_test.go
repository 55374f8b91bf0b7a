// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernels_test

import (
	"crypto/sha256"
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

	"github.com/mycelya/mycelya/codegen/cuda"
	"github.com/mycelya/mycelya/worker/kernels"
)

// compiler makes cubins of a given size from any source except "wrong".
type compiler struct {
	version string
	size    int
	calls   atomic.Int64
	gate    chan struct{} // each call receives from it; nil: no call does

	running, most atomic.Int64 // at once
}

func (c *compiler) Version() string { return c.version }

func (c *compiler) Compile(source, arch string, options []string) ([]byte, string, error) {
	n := c.running.Add(1)
	defer c.running.Add(-1)
	for most := c.most.Load(); n > most && !c.most.CompareAndSwap(most, n); most = c.most.Load() {
	}
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

func (c *compiler) open() (kernels.Compiler, error) { return c, nil }

func want(c *kernels.Cache, source string) *kernels.Kernel {
	k, _ := c.Want(
		sha256.Sum256([]byte(source)),
		func() cuda.Source { return cuda.Source{Text: source, Entries: []string{"run"}} },
	)
	return k
}

func ready(t *testing.T, c *kernels.Cache, source string) string {
	k := want(c, source)
	require.Equal(t, kernels.Ready, k.Wait())
	return strings.TrimRight(string(k.Code().([]byte)), "\x00")
}

func cubins(t *testing.T, folder string) []string {
	list, err := filepath.Glob(filepath.Join(folder, "*.cubin"))
	require.NoError(t, err)
	return list
}

// TestWantNeverWaits checks that a kernel is pending until it is compiled, and compiled once for many callers.
func TestWantNeverWaits(t *testing.T) {
	made := &compiler{gate: make(chan struct{})}
	c := cache(t, kernels.Config{Compiler: made.open, Threads: 2})
	id := kernels.ID{1}
	print := func() cuda.Source { return cuda.Source{Text: "a"} }
	k, fresh := c.Want(id, print)
	require.True(t, fresh)
	for range 3 {
		again, fresh := c.Want(id, print)
		require.False(t, fresh)
		require.Same(t, k, again)
		require.Equal(t, kernels.Pending, k.State())
	}
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() { k.Wait() })
	}
	made.gate <- struct{}{}
	group.Wait()
	require.Equal(t, kernels.Ready, k.State())
	require.Equal(t, "a for sm_90 by  with []", string(k.Code().([]byte)))
	require.Positive(t, k.Compiled())
	require.EqualValues(t, 1, made.calls.Load())
}

// TestThreadsAreBounded checks that at most Threads kernels are compiled at once.
func TestThreadsAreBounded(t *testing.T) {
	made := &compiler{gate: make(chan struct{})}
	c := cache(t, kernels.Config{Compiler: made.open, Threads: 3})
	var all []*kernels.Kernel
	for i := range 40 {
		all = append(all, want(c, fmt.Sprint(i)))
	}
	require.Eventually(t, func() bool { return made.running.Load() == 3 }, time.Minute, time.Millisecond)
	for range all {
		made.gate <- struct{}{}
	}
	for _, k := range all {
		require.Equal(t, kernels.Ready, k.Wait())
	}
	require.EqualValues(t, 3, made.most.Load())
}

// TestDiskOutlives checks that another cache loads the cubins from disk, but not those of another compiler,
// architecture or option.
func TestDiskOutlives(t *testing.T) {
	folder := t.TempDir()
	made := &compiler{version: "1"}
	want := ready(t, cache(t, kernels.Config{Compiler: made.open, Folder: folder}), "a")
	require.Equal(t, want, ready(t, cache(t, kernels.Config{Compiler: made.open, Folder: folder}), "a"))
	require.EqualValues(t, 1, made.calls.Load())
	other := &compiler{version: "2"}
	for _, config := range []kernels.Config{
		{Compiler: other.open, Folder: folder},
		{Compiler: made.open, Folder: folder, Arch: "sm_80"},
		{Compiler: made.open, Folder: folder, Options: []string{"-a"}},
		{Compiler: made.open, Folder: folder, Options: []string{"-", "a"}},
	} {
		require.NotEqual(t, want, ready(t, cache(t, config), "a"))
	}
	require.Len(t, cubins(t, folder), 5)
}

// TestADiskThatTakesNothing checks that kernels are compiled and used although none can be written any more.
func TestADiskThatTakesNothing(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "kernels")
	made := &compiler{}
	c := cache(t, kernels.Config{Compiler: made.open, Folder: folder})
	ready(t, c, "a")
	require.Len(t, cubins(t, folder), 1)
	require.NoError(t, os.RemoveAll(folder))
	require.NoError(t, os.WriteFile(folder, nil, 0o600))
	require.Equal(t, "b for sm_90 by  with []", ready(t, c, "b"))
	require.EqualValues(t, 2, made.calls.Load())
	require.Empty(t, cubins(t, folder))
}

// TestCorruptFiles checks that a kernel with a corrupt file is compiled and written again.
func TestCorruptFiles(t *testing.T) {
	folder := t.TempDir()
	made := &compiler{}
	want := ready(t, cache(t, kernels.Config{Compiler: made.open, Folder: folder}), "a")
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
		require.Equal(t, want, ready(t, cache(t, kernels.Config{Compiler: made.open, Folder: folder}), "a"))
		require.EqualValues(t, i+2, made.calls.Load(), "change %d was not detected", i)
		now, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, whole, now)
	}
}

// TestDiskIsBounded checks that the least recently used files are removed, and temporary files that writers left.
func TestDiskIsBounded(t *testing.T) {
	folder := t.TempDir()
	left := filepath.Join(folder, "new-1")
	require.NoError(t, os.WriteFile(left, nil, 0o600))
	long := time.Now().Add(-2 * time.Hour)
	require.NoError(t, os.Chtimes(left, long, long))
	made := &compiler{size: 1000}
	c := cache(t, kernels.Config{Compiler: made.open, Folder: folder, Disk: 10000})
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

// TestMemoryIsBounded checks that three kernels of ten stay in memory, whichever they are, and that the others are read
// from disk.
func TestMemoryIsBounded(t *testing.T) {
	made := &compiler{size: 1000}
	c := cache(t, kernels.Config{Compiler: made.open, Folder: t.TempDir(), Memory: 1 << 12, Disk: 1 << 20})
	for i := range 10 {
		ready(t, c, fmt.Sprint(i))
	}
	read := 0
	for i := range 10 {
		k := want(c, fmt.Sprint(i))
		require.Equal(t, kernels.Ready, k.Wait())
		if k.Compiled() == 0 {
			read++
		}
		require.Equal(t, fmt.Sprintf("%d for sm_90 by  with []", i), strings.TrimRight(string(k.Code().([]byte)), "\x00"))
	}
	require.GreaterOrEqual(t, read, 7)
	require.EqualValues(t, 10, made.calls.Load())
}

// TestFailure checks that a kernel that does not compile is compiled once. One warning names the file with its source
// and the compiler's output.
func TestFailure(t *testing.T) {
	made := &compiler{}
	var warnings []string
	c := cache(
		t,
		kernels.Config{
			Compiler: made.open,
			Folder:   t.TempDir(),
			Warn:     func(text string) { warnings = append(warnings, text) },
		},
	)
	for range 3 {
		k := want(c, "wrong")
		require.Equal(t, kernels.Failed, k.Wait())
		require.Nil(t, k.Code())
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

// TestWithoutCompiler checks that there are no kernels and one warning without NVRTC.
func TestWithoutCompiler(t *testing.T) {
	var warnings []string
	none := func() (kernels.Compiler, error) { return nil, errors.New("torch has come without NVRTC") }
	c := cache(t, kernels.Config{Compiler: none, Warn: func(text string) { warnings = append(warnings, text) }})
	for _, source := range []string{"a", "b"} {
		require.Equal(t, kernels.Failed, want(c, source).Wait())
	}
	require.Len(t, warnings, 1)
	require.Contains(t, warnings[0], "this worker has no compiler for them: torch has come without NVRTC.")
}

// TestMistakes checks that a kernel fails if printing it panics, and that the threads continue.
func TestMistakes(t *testing.T) {
	var warnings []string
	c := cache(
		t,
		kernels.Config{Compiler: (&compiler{}).open, Warn: func(text string) { warnings = append(warnings, text) }},
	)
	k, _ := c.Want(kernels.ID{1}, func() cuda.Source { panic("BUG: no such op") })
	require.Equal(t, kernels.Failed, k.Wait())
	require.Contains(t, warnings[0], "BUG: no such op")
	ready(t, c, "a")
}

// TestLoading checks that the cache keeps the loaded code. If a cubin from disk cannot be loaded, the kernel is
// compiled again. If a new cubin cannot be loaded, it is not.
func TestLoading(t *testing.T) {
	folder := t.TempDir()
	made := &compiler{}
	ready(t, cache(t, kernels.Config{Compiler: made.open, Folder: folder}), "a")
	loads := 0
	config := kernels.Config{Compiler: made.open, Folder: folder, Load: func(cubin []byte, entries []string) (any, error) {
		require.Equal(t, []string{"run"}, entries)
		if loads++; loads == 1 {
			return nil, errors.New("not for this driver")
		}
		return len(cubin), nil
	}}
	k := want(cache(t, config), "a")
	require.Equal(t, kernels.Ready, k.Wait())
	require.Equal(t, len("a for sm_90 by  with []"), k.Code())
	require.EqualValues(t, 2, made.calls.Load())
	require.Positive(t, k.Compiled())

	var warning string
	config.Load = func([]byte, []string) (any, error) { return nil, errors.New("no driver at all") }
	config.Warn = func(text string) { warning = text }
	require.Equal(t, kernels.Failed, want(cache(t, config), "a").Wait())
	require.Contains(t, warning, ".log has its source and the error")
}

// TestTwoProcesses checks that several caches can share a folder.
func TestTwoProcesses(t *testing.T) {
	folder := t.TempDir()
	var group sync.WaitGroup
	for n := range 4 {
		c := cache(t, kernels.Config{Compiler: (&compiler{size: 500}).open, Folder: folder, Disk: 6000, Threads: 2})
		group.Go(func() {
			for i := range 60 {
				source := fmt.Sprint((i*7 + n) % 20)
				k := want(c, source)
				if k.Wait() != kernels.Ready || !strings.HasPrefix(string(k.Code().([]byte)), source+" for") {
					t.Errorf("%s is %d: %.40q", source, k.State(), k.Code())
				}
			}
		})
	}
	group.Wait()
}
