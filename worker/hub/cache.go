// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package hub

import (
	"context"
	"crypto/sha1" // the hash of git's objects
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	hashes "hash"
)

// DefaultBytes is the usual limit of a cache: more than the largest models have.
const DefaultBytes = 512 << 30

// Cache is a folder of files by their hashes. Several processes may use it. The files that were used longest ago go
// when there is no room.
type Cache struct {
	Path  string
	Bytes int64 // limit of all files

	free func(folder string) (int64, error) // of the disk, in bytes; nil: the system says it
}

// The folder has, for each hash: the file; while it is fetched a part of it, which is locked by its process, and which
// parts those are.
const (
	partEnd = ".part"
	mapEnd  = ".map"
)

// kind is the kind of a hash.
type kind string

const (
	sha256Hash kind = "sha256" // of a file's bytes: large files
	git        kind = "git"    // of git's object of a file: small files
)

// hash names the content of a file.
type hash struct {
	kind kind
	hex  string
}

func (h hash) valid() bool {
	b, err := hex.DecodeString(h.hex)
	want := map[kind]int{sha256Hash: sha256.Size, git: sha1.Size}[h.kind]
	return err == nil && len(b) == want && h.hex == strings.ToLower(h.hex)
}

func (h hash) String() string { return string(h.kind) + "-" + h.hex }

// sum returns what computes the hash of a file of a size.
func (h hash) sum(size int64) hashes.Hash {
	if h.kind == sha256Hash {
		return sha256.New()
	}
	sum := sha1.New()
	fmt.Fprintf(sum, "blob %d\x00", size)
	return sum
}

// is says whether a computed sum is the hash.
func (h hash) is(sum hashes.Hash) bool { return hex.EncodeToString(sum.Sum(nil)) == h.hex }

func (c *Cache) path(h hash) string { return filepath.Join(c.Path, h.String()) }

// open returns the file with a hash, nil if the cache does not have it. The file is read and compared with the hash,
// and is removed if it is damaged. read is told how many bytes were read.
func (c *Cache) open(ctx context.Context, f remote, read func(n int)) (*os.File, error) {
	out, err := os.Open(c.path(f.hash))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, onDisk(err)
	}
	now := time.Now()
	_ = os.Chtimes(out.Name(), now, now) // it is the last one to go
	sum, total := f.hash.sum(f.size), 0
	err = readAll(ctx, out, func(b []byte) {
		sum.Write(b)
		total += len(b)
		read(len(b))
	})
	if err == nil && int64(total) == f.size && f.hash.is(sum) {
		return out, nil
	}
	_ = out.Close()
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	read(-total)
	if err := os.Remove(c.path(f.hash)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, onDisk(err)
	}
	return nil, nil
}

// readAll reads a file from its begin to its end.
func readAll(ctx context.Context, f *os.File, each func(b []byte)) error {
	b := make([]byte, 1<<20)
	for at := int64(0); ctx.Err() == nil; {
		n, err := f.ReadAt(b, at)
		each(b[:n])
		at += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// lock opens the part of a file that is to be fetched, and waits until no other process fetches it.
func (c *Cache) lock(ctx context.Context, h hash) (*os.File, error) {
	if err := os.MkdirAll(c.Path, 0o700); err != nil {
		return nil, onDisk(err)
	}
	for {
		f, err := os.OpenFile(c.path(h)+partEnd, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			return nil, onDisk(err)
		}
		if err = flock(ctx, f); err != nil {
			_ = f.Close()
			return nil, err
		}
		if sameFile(f) {
			return f, nil
		}
		_ = f.Close() // it was renamed or removed before it was locked
	}
}

// flock waits for the lock of a file.
func flock(ctx context.Context, f *os.File) error {
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil || !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// sameFile says whether the path of an open file still names it.
func sameFile(f *os.File) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(f.Name())
	return err == nil && os.SameFile(mine, there)
}

// keep gives a complete part its name. The lock ends with the file.
func (c *Cache) keep(part *os.File, h hash) error {
	if err := os.Rename(part.Name(), c.path(h)); err != nil {
		return onDisk(err)
	}
	_ = os.Remove(c.path(h) + mapEnd)
	return nil
}

// forget removes a part whose bytes are wrong.
func (c *Cache) forget(part *os.File, h hash) {
	_ = os.Remove(part.Name())
	_ = os.Remove(c.path(h) + mapEnd)
}

// stored is a file of the cache.
type stored struct {
	path  string
	bytes int64 // on the disk
	used  time.Time
}

// fits says whether the cache may hold files of so many bytes.
func (c *Cache) fits(bytes int64) error {
	if bytes <= c.Bytes {
		return nil
	}
	return errorf("The weights have %s, and the worker keeps at most %s of weights on its disk. Start the worker with a "+
		"larger --weights-bytes, or fetch a part of the repository with path=.", size(bytes), size(c.Bytes))
}

// makeRoom removes the files that were used longest ago, except those of these hashes, until the cache and the disk
// have room for so many bytes more. It removes nothing if that would not be enough.
func (c *Cache) makeRoom(bytes int64, except map[string]bool) error {
	if err := os.MkdirAll(c.Path, 0o700); err != nil {
		return onDisk(err)
	}
	files, total, err := c.stored(except)
	if err != nil {
		return err
	}
	removable := int64(0)
	for _, f := range files {
		removable += f.bytes
	}
	free, err := c.freeBytes()
	if err != nil { // the writes will tell
		free = 1 << 62
	}
	switch {
	case total-removable+bytes > c.Bytes: // other fetches use it
		return errorf("The worker keeps at most %s of weights on its disk, and others are being fetched. Try again later, "+
			"or start the worker with a larger --weights-bytes.", size(c.Bytes))
	case free+removable < bytes:
		return errorf("The worker's disk is full: the weights need %s more, and %s are free in %s. Free some space, or "+
			"start the worker with --weights on a larger disk.", size(bytes), size(max(free, 0)), c.Path)
	}
	for _, f := range files {
		if total+bytes <= c.Bytes && free >= bytes {
			break
		}
		if err := os.Remove(f.path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return onDisk(err)
		}
		total, free = total-f.bytes, free+f.bytes
	}
	return nil
}

// stored lists the files that may be removed, those that were used longest ago first, and the bytes of all files.
func (c *Cache) stored(except map[string]bool) (files []stored, total int64, err error) {
	entries, err := os.ReadDir(c.Path)
	if err != nil {
		return nil, 0, onDisk(err)
	}
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue // it has just been removed, or is no file of the cache
		}
		f := stored{filepath.Join(c.Path, e.Name()), onDiskBytes(info), info.ModTime()}
		total += f.bytes
		if name := strings.TrimSuffix(strings.TrimSuffix(e.Name(), partEnd), mapEnd); !except[name] && !f.inUse() {
			files = append(files, f)
		}
	}
	slices.SortFunc(files, func(a, b stored) int { return a.used.Compare(b.used) })
	return files, total, nil
}

// inUse says whether a process writes the file.
func (s stored) inUse() bool {
	if !strings.HasSuffix(s.path, partEnd) && !strings.HasSuffix(s.path, mapEnd) {
		return false
	}
	f, err := os.Open(strings.TrimSuffix(s.path, mapEnd))
	if err != nil {
		return false
	}
	defer f.Close()
	return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil
}

// onDiskBytes is what a file takes on the disk: a part has holes.
func onDiskBytes(info fs.FileInfo) int64 {
	if st, ok := info.Sys().(*syscall.Stat_t); ok && strings.HasSuffix(info.Name(), partEnd) {
		return int64(st.Blocks) * 512
	}
	return info.Size()
}

// freeBytes is how many bytes the disk of the cache has left.
func (c *Cache) freeBytes() (int64, error) {
	if c.free != nil {
		return c.free(c.Path)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(c.Path, &st); err != nil {
		return 0, err
	}
	return int64(st.Bavail) * int64(st.Bsize), nil
}

// size is a number of bytes for people.
func size(bytes int64) string {
	const unit = 1000
	if bytes < unit*unit {
		return fmt.Sprintf("%d bytes", bytes)
	}
	if bytes < unit*unit*unit {
		return fmt.Sprintf("%.1f MB", float64(bytes)/unit/unit)
	}
	return fmt.Sprintf("%.1f GB", float64(bytes)/unit/unit/unit)
}

// onDisk turns an error of the file system into one for the user.
func onDisk(err error) error {
	var mine *Error
	switch {
	case err == nil, errors.As(err, &mine):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return errorf("The worker's disk is full. Free some space, or start the worker with --weights on a larger disk.")
	}
	return errorf("The worker cannot keep weights on its disk: %v. Start it with --weights and a folder that it may "+
		"write.", err)
}

// mapName is the first line of the file that says which chunks a part has: it is for one size of chunks only.
func mapName(f remote, chunk int64) string {
	sum := fnv.New64a()
	fmt.Fprintf(sum, "%v %d %d", f.hash, f.size, chunk)
	return fmt.Sprintf("%016x", sum.Sum64())
}
