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
)

// Kind is what a file is for. Names of different kinds have nothing to do with each other.
type Kind string

const (
	Saved      Kind = "saved"      // tensors that a user has named
	Checkpoint Kind = "checkpoint" // all of a session
)

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

// Folder is a Keeper in a folder, which it makes when it is needed.
type Folder struct{ Path string }

const (
	ending = ".safetensors"
	drafts = "draft-"
	// The longest name of a file is 255 bytes on common file systems; an escaped character has three.
	maxName = 100
	maxFile = 240
)

// path is the path of a name's file.
func (d *Folder) path(kind Kind, name string) (string, error) {
	if kind != Saved && kind != Checkpoint {
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

// nameOf is the name of a file; false: the file is none of ours.
func nameOf(file string) (string, bool) {
	text, ok := strings.CutSuffix(file, ending)
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
	for _, kind := range []Kind{Saved, Checkpoint} {
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

// Keep implements Draft. The new name is on the disk too when it returns.
func (w *draft) Keep(kind Kind, name string) error {
	path, err := w.folder.path(kind, name)
	if err == nil {
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
		if name, ok := nameOf(f.Name()); ok {
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
