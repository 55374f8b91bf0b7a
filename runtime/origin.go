// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"

	"github.com/mycelya/mycelya/catalogue"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/link"
)

// Weights that a library has mapped into memory from a file of the hub's cache need not be sent: the worker can fetch
// the same file. The path of the file has the repository and the hash of the file. The client offers the upload with
// that, and sends the bytes themselves if the worker cannot fetch them, or if what it has fetched has another hash than
// the bytes in this process.

// mapping is a part of a file in this process's memory.
type mapping struct {
	begin, end uintptr
	offset     uint64 // in the file, of begin
	path       string
}

// mappings finds the files that memory is mapped from. It remembers the last one: what a later mapping at the same
// address really has does not matter, because the worker compares hashes.
type mappings struct {
	mu   sync.Mutex
	last mapping
}

// of returns the file of some bytes of memory, and where they begin in the file; "": there is none.
func (m *mappings) of(begin, bytes uintptr) (path string, offset uint64) {
	end := begin + bytes
	m.mu.Lock()
	defer m.mu.Unlock()
	if begin < m.last.begin || end > m.last.end {
		found, ok := findMapping(begin, end)
		if !ok {
			return "", 0
		}
		m.last = found
	}
	return m.last.path, m.last.offset + uint64(begin-m.last.begin)
}

// origin is where the bytes of an upload come from.
type origin struct {
	path   string // of a file of the hub's cache
	offset uint64
}

// originOf finds out whether the bytes of an upload are, or were when they were copied, a part of a file of the hub's
// cache; nil: they are not, or the worker is on this host.
func (s *session) originOf(at uintptr, bytes int) *origin {
	if bytes <= catalogue.UploadWhole || s.settings.KeepWeights {
		return nil
	}
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn != nil {
		if _, far := conn.Net().(*link.Stream); !far {
			return nil
		}
	}
	path, offset := s.mappings.of(at, uintptr(bytes))
	if !hubBlob.MatchString(path) {
		return nil
	}
	return &origin{path, offset}
}

// hubBlob matches the path of a large file in the cache of huggingface_hub: models--owner--name/blobs/<SHA-256>.
var hubBlob = regexp.MustCompile(`/models--([A-Za-z0-9._-]+)/blobs/([0-9a-f]{64})$`)

// source describes the origin for the worker; nil: no snapshot of the cache has the file.
func (o *origin) source(endpoint string) *proto.Source {
	found := hubBlob.FindStringSubmatch(o.path)
	root := filepath.Dir(filepath.Dir(o.path))
	snapshots := filepath.Join(root, "snapshots")
	out := &proto.Source{Endpoint: endpoint, Repo: strings.Replace(found[1], "--", "/", 1), Sha256: found[2],
		Offset: o.offset}
	_ = filepath.WalkDir(snapshots, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.Type()&fs.ModeSymlink == 0 {
			return nil
		}
		if to, err := os.Readlink(path); err != nil || filepath.Base(to) != found[2] {
			return nil
		}
		inside, err := filepath.Rel(snapshots, path)
		if err == nil {
			out.Revision, out.Path, _ = strings.Cut(filepath.ToSlash(inside), "/")
		}
		return fs.SkipAll
	})
	if out.Path == "" {
		return nil
	}
	return out
}
