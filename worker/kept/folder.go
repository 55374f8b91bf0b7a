// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kept

import (
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/mycelya/mycelya/worker/bounds"
)

// Kind is what a file is for. Names of different kinds have nothing to do with each other.
type Kind string

const (
	Saved      Kind = "saved"      // tensors that a user has named
	Checkpoint Kind = "checkpoint" // all of a session
	// Upload is for the bytes of large uploads, which a client may upload again. The name is their SHA-256. A reader must
	// compare it, since any session may have written the file.
	Upload Kind = "upload"
)

// kinds has the endings of the kinds' files.
var kinds = map[Kind]string{Saved: ".safetensors", Checkpoint: ".safetensors", Upload: ".bytes"}

// Keeper keeps files under names.
type Keeper interface {
	// Create makes a file without a name, which nothing but the draft finds.
	Create() (Draft, error)
	// Open opens the file of a name; ErrMissing: there is none.
	Open(kind Kind, name string) (*os.File, error)
	// Names returns the names of a kind in order.
	Names(kind Kind) ([]string, error)
	// Forget ends a name; ErrMissing: there is none.
	Forget(kind Kind, name string) error
}

// Draft is a file that is being written. One of Keep and Drop ends it.
type Draft interface {
	File() *os.File
	// Keep gives the file a name once its bytes are on the disk. A file that has the name already is replaced: who opens
	// the name gets all of the one or all of the other.
	Keep(kind Kind, name string) error
	Drop()
}

var (
	// ErrMissing means that no file has the name.
	ErrMissing = errors.New("kept: there is no such name")
	// ErrName means that a name cannot be used.
	ErrName = errors.New("kept: a name has 1 to 100 characters")
)

// DefaultUploads is the usual limit of a folder's uploads.
const DefaultUploads = 4 << 30

// Folder is a Keeper in a folder, which it makes when it is needed.
type Folder struct {
	Path    string
	Uploads int64 // limit of the uploads in bytes: the ones that were used longest ago go
}

const (
	drafts = "draft-"
	// The longest name of a file is 255 bytes on common file systems; an escaped character has three.
	maxName = 100
	maxFile = 240
)

// path is the path of a name's file.
func (d *Folder) path(kind Kind, name string) (string, error) {
	ending, ok := kinds[kind]
	if !ok {
		return "", fmt.Errorf("BUG: kept state has no kind %q", kind)
	}
	file := url.PathEscape(name)
	if strings.HasPrefix(file, ".") {
		file = "%2E" + file[1:]
	}
	if name == "" || len([]rune(name)) > maxName || len(file) > maxFile {
		return "", fmt.Errorf("%w: %q has not", ErrName, name)
	}
	return filepath.Join(d.Path, string(kind), file+ending), nil
}

// nameOf is the name of a kind's file; false: the file is none of ours.
func nameOf(kind Kind, file string) (string, bool) {
	text, ok := strings.CutSuffix(file, kinds[kind])
	if !ok {
		return "", false
	}
	name, err := url.PathUnescape(text)
	return name, err == nil
}

type draft struct {
	folder *Folder
	f      *os.File
}

// Create implements Keeper.
func (d *Folder) Create() (Draft, error) {
	for kind := range kinds {
		if err := os.MkdirAll(filepath.Join(d.Path, string(kind)), 0o700); err != nil {
			return nil, err
		}
	}
	f, err := os.CreateTemp(d.Path, drafts+"*") // only this user can read it
	if err != nil {
		return nil, err
	}
	return &draft{d, f}, nil
}

func (w *draft) File() *os.File { return w.f }

// Keep implements Draft. The new name is on the disk too when it returns, except that of an upload, which can be sent
// again.
func (w *draft) Keep(kind Kind, name string) error {
	path, err := w.folder.path(kind, name)
	if err == nil && kind != Upload {
		err = w.f.Sync()
	}
	if err == nil {
		err = os.Rename(w.f.Name(), path)
	}
	if err != nil {
		w.Drop()
		return err
	}
	_ = w.f.Close()
	if kind == Upload {
		_, err = (&bounds.Bounds{Bytes: w.folder.Uploads}).Trim(filepath.Dir(path))
		return err
	}
	folder, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	defer folder.Close()
	return folder.Sync()
}

func (w *draft) Drop() {
	_ = w.f.Close()
	_ = os.Remove(w.f.Name())
}

// Open implements Keeper.
func (d *Folder) Open(kind Kind, name string) (*os.File, error) {
	path, err := d.path(kind, name)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err == nil && kind == Upload {
		bounds.Use(path)
	}
	return f, missing(err)
}

// Names implements Keeper.
func (d *Folder) Names(kind Kind) ([]string, error) {
	files, err := os.ReadDir(filepath.Join(d.Path, string(kind)))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	out := []string{}
	for _, f := range files {
		if name, ok := nameOf(kind, f.Name()); ok {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out, nil
}

// Forget implements Keeper.
func (d *Folder) Forget(kind Kind, name string) error {
	path, err := d.path(kind, name)
	if err != nil {
		return err
	}
	return missing(os.Remove(path))
}

// Clear removes the drafts that another process has left.
func (d *Folder) Clear() {
	left, _ := filepath.Glob(filepath.Join(d.Path, drafts+"*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

func missing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return ErrMissing
	}
	return err
}
