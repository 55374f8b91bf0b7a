// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package bounds keeps a folder within bounds. Several processes may use the folder at the same time.
package bounds

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// abandoned is the age from which a draft has no writer any more.
const abandoned = time.Hour

// Bounds are those of a folder's entries, which are files or folders.
type Bounds struct {
	Bytes  int64
	Number int                    // 0: any
	Counts func(name string) bool // entries for which it is false stay and do not count; nil: all count
	Draft  string                 // the beginning of the names of entries that are being written; "": there are none
}

// Trim removes the entries that were used longest ago, until the rest is within the bounds, and old drafts. The entry
// that was used last stays. It returns the bytes of the rest.
func (b *Bounds) Trim(folder string) (bytes int64, err error) {
	entries, err := os.ReadDir(folder)
	if err != nil {
		return 0, err
	}
	type found struct {
		path  string
		used  time.Time
		bytes int64
	}
	var all []found
	for _, e := range entries {
		info, err := e.Info()
		if err != nil { // it has just been removed
			continue
		}
		path := filepath.Join(folder, e.Name())
		switch {
		case b.Draft != "" && strings.HasPrefix(e.Name(), b.Draft):
			if time.Since(info.ModTime()) > abandoned {
				_ = os.RemoveAll(path)
			}
		case b.Counts == nil || b.Counts(e.Name()):
			n := Size(path)
			all = append(all, found{path, info.ModTime(), n})
			bytes += n
		}
	}
	slices.SortStableFunc(all, func(a, b found) int { return a.used.Compare(b.used) })
	for i, f := range all {
		if left := len(all) - i; left <= 1 || bytes <= b.Bytes && (b.Number == 0 || left <= b.Number) {
			break
		}
		if failed := os.RemoveAll(f.path); failed != nil {
			err = errors.Join(err, failed)
			continue
		}
		bytes -= f.bytes
	}
	return bytes, err
}

// Use notes that an entry is used now.
func Use(path string) {
	now := time.Now()
	_ = os.Chtimes(path, now, now)
}

// Size is the number of bytes of the files at a path and below it.
func Size(path string) (n int64) {
	_ = filepath.WalkDir(path, func(_ string, d fs.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil && info.Mode().IsRegular() {
			n += info.Size()
		}
		return nil
	})
	return n
}
