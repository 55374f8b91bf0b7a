// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kernels

import (
	"bytes"
	"crypto/sha256"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/mycelya/mycelya/worker/bounds"
)

// A file is the magic, a hash of the cubin, and the cubin. The file's name is the key, which identifies the cubin's
// source; the hash detects damage. A new form of the file must have a new magic: files of an older form are then
// written again.
const magic = "mycelya cubin 1\n"

const (
	cubinEnding = ".cubin"
	logEnding   = ".log"
	drafts      = "new-"
)

// disk is a folder of cubins, which other processes may use at the same time. An error of the disk costs time only.
type disk struct {
	folder string
	most   int64

	lock  sync.Mutex
	bytes int64 // in the folder; an estimate, because other processes write too
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

// read returns a cubin, nil if there is none or its file is damaged.
func (d *disk) read(k key) []byte {
	path := d.path(k, cubinEnding)
	data, err := os.ReadFile(path)
	if err != nil {
		return nil
	}
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	if !ok || len(rest) <= sha256.Size || sha256.Sum256(rest[sha256.Size:]) != [sha256.Size]byte(rest[:sha256.Size]) {
		_ = os.Remove(path)
		return nil
	}
	bounds.Use(path)
	return rest[sha256.Size:]
}

// write stores a cubin atomically.
func (d *disk) write(k key, cubin []byte) {
	sum := sha256.Sum256(cubin)
	data := slices.Concat([]byte(magic), sum[:], cubin)
	if int64(len(data)) > d.most || d.replace(d.path(k, cubinEnding), data) != nil {
		return
	}
	d.trim(int64(len(data)))
}

// log stores the compiler's error and the source, and returns the path.
func (d *disk) log(k key, source string, err error) (string, error) {
	path := d.path(k, logEnding)
	return path, d.replace(path, []byte(err.Error()+"\n"+source))
}

func (d *disk) replace(path string, data []byte) error {
	f, err := os.CreateTemp(d.folder, drafts+"*")
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

// trim counts added bytes, or those of the whole folder if none were added. Over the limit it leaves 7/8 of the limit,
// so that it does not run at each write.
func (d *disk) trim(added int64) {
	d.lock.Lock()
	defer d.lock.Unlock()
	d.bytes += added
	limit := bounds.Bounds{Bytes: d.most, Draft: drafts, Counts: func(name string) bool {
		return strings.HasSuffix(name, cubinEnding) || strings.HasSuffix(name, logEnding)
	}}
	if added > 0 {
		if d.bytes <= d.most {
			return
		}
		limit.Bytes = d.most / 8 * 7
	}
	d.bytes, _ = limit.Trim(d.folder)
}
