// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernels

import (
	"bytes"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// A file is the magic, the hash of what follows, and a cubin. The name is the key, which says what the cubin was made of; the hash says
// whether it is whole. Another form takes another magic: files of an older one are then no cubins, and are written anew.
const magic = "mycelya cubin 1\n"

// disk is a folder of cubins, which other processes may use at the same time. What goes wrong with it costs time and nothing else.
type disk struct {
	folder string
	most   int64

	lock  sync.Mutex
	bytes int64 // in the folder, about: others write too
}

func openDisk(folder string, most int64) (*disk, error) {
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, err
	}
	d := &disk{folder: folder, most: most}
	d.trim(0)
	return d, nil
}

func (d *disk) path(k key, ending string) string { return filepath.Join(d.folder, k.String()+ending) }

// read gives a cubin that is there and whole, else nil.
func (d *disk) read(k key) []byte {
	path := d.path(k, ".cubin")
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok || len(rest) <= sha256.Size || sha256.Sum256(rest[sha256.Size:]) != [sha256.Size]byte(rest[:sha256.Size]) {
		_ = os.Remove(path) // it is made again
		return nil
	}
	now := time.Now()
	_ = os.Chtimes(path, now, now) // the oldest go first
	return rest[sha256.Size:]
}

// write keeps a cubin, whole or not at all.
func (d *disk) write(k key, cubin []byte) {
	sum := sha256.Sum256(cubin)
	data := slices.Concat([]byte(magic), sum[:], cubin)
	if int64(len(data)) > d.most || d.replace(d.path(k, ".cubin"), data) != nil {
		return
	}
	d.trim(int64(len(data)))
}

// log keeps what a compiler said of a source, and returns where.
func (d *disk) log(k key, source string, err error) (string, error) {
	path := d.path(k, ".log")
	return path, d.replace(path, []byte(err.Error()+"\n"+source))
}

func (d *disk) replace(path string, data []byte) error {
	f, err := os.CreateTemp(d.folder, "new-*")
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}

// abandoned is how old a file must be that nobody has renamed for its writer to be gone.
const abandoned = time.Hour

// trim counts added bytes, and removes what was used longest ago if there are too many: down to 7/8, so that it doesn't happen each time.
func (d *disk) trim(added int64) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if d.bytes += added; added > 0 && d.bytes <= d.most {
		return
	}
	entries, err := os.ReadDir(d.folder)
	if err != nil {
		return
	}
	var files []fs.FileInfo
	d.bytes = 0
	for _, e := range entries {
		info, err := e.Info()
		if err != nil || !info.Mode().IsRegular() {
			continue
		}
		switch name := info.Name(); {
		case strings.HasPrefix(name, "new-"):
			if time.Since(info.ModTime()) > abandoned {
				_ = os.Remove(filepath.Join(d.folder, name))
			}
		case strings.HasSuffix(name, ".cubin"), strings.HasSuffix(name, ".log"):
			files = append(files, info)
			d.bytes += info.Size()
		}
	}
	if d.bytes <= d.most {
		return
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, f := range files {
		if d.bytes <= d.most/8*7 {
			break
		}
		if os.Remove(filepath.Join(d.folder, f.Name())) == nil {
			d.bytes -= f.Size()
		}
	}
}
