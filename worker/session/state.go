// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kept"
)

// Frames of kept state: tensors under names, and checkpoints (checkpoint.go). Those of pass.go have the same answer.

const (
	// Files that Find has opened, for a Load. The oldest is closed when there is another one.
	maxFound = 16
	// maxKeptTensors bounds the tensors of one name.
	maxKeptTensors = 1 << 20

	treeKey = "mycelya.tree" // in the metadata of a file
)

// found is a file that a Find has opened.
type found struct {
	seq  uint64
	file *kept.File
}

// state handles a frame of kept state.
func (s *session) state(h transport.Header, meta []byte) error {
	reply := &proto.StateReply{}
	var err error
	switch h.Type {
	case transport.Save:
		var m proto.Save
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		reply.Bytes, err = s.save(&m)
	case transport.Find:
		var m proto.Find
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		err = s.find(h.Seq, m.Name, reply)
	case transport.Load:
		var m proto.Load
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		reply.Bytes, err = s.load(&m)
	case transport.Drop:
		var m proto.Drop
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		if err = s.keeping(); err == nil {
			err = s.named(s.keeper.Forget(kept.Saved, m.Name), m.Name)
		}
	case transport.Names:
		if err = s.keeping(); err == nil {
			reply.Names, err = s.keeper.Names(kept.Saved)
		}
	case transport.Checkpoint:
		var m proto.Checkpoint
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		reply.Bytes, err = s.checkpoint(h.Seq, m.Session, m.Base)
	case transport.Restore:
		var m proto.Restore
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		err = s.restore(&m, reply)
	case transport.Pass:
		var m proto.Pass
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		reply.Bytes, err = s.pass(&m)
	case transport.Take:
		var m proto.Take
		if err := decode(h, meta, &m); err != nil {
			return err
		}
		reply.Bytes, err = s.take(&m)
	}
	var f *fault
	if errors.As(err, &f) {
		return f
	}
	reply.Status = executor.Status(err)
	return s.c.Send(transport.StateReply, h.Seq, reply, nil)
}

// keeping returns an error if this worker keeps nothing.
func (s *session) keeping() error {
	if s.keeper == nil {
		return executor.Errorf(proto.ErrRuntime,
			"This worker keeps no tensors: it was started without a folder for them (--state).")
	}
	return nil
}

// save keeps views of storages, and returns the number of bytes written.
func (s *session) save(m *proto.Save) (uint64, error) {
	if s.halt != nil { // the client's program has not come so far
		e := *s.halt
		return 0, &e
	}
	if len(m.Views) > maxKeptTensors {
		return 0, executor.Errorf(proto.ErrValue, "%d tensors are too many for one name; at most %d are allowed.",
			len(m.Views), maxKeptTensors)
	}
	tensors := make([]kept.Tensor, len(m.Views))
	for i, v := range m.Views {
		tensors[i] = kept.Tensor{DType: v.Dtype, Sizes: v.Sizes}
		if _, err := tensors[i].Bytes(); err != nil {
			return 0, executor.Errorf(proto.ErrValue, "Tensor %d cannot be kept: %v.", i, err)
		}
	}
	put := func(i int, to io.Writer) error { return s.put(m.Views[i], &tensors[i], to) }
	return s.write(kept.Saved, m.Name, map[string]string{treeKey: m.Tree}, tensors, put)
}

// put writes the elements of a view.
func (s *session) put(v *proto.Read, t *kept.Tensor, to io.Writer) error {
	want, err := t.Bytes()
	if err != nil {
		return err
	}
	return s.x.Read(v, func(b []byte) error {
		if uint64(len(b)) != want {
			return fmt.Errorf("BUG: a view of %d bytes was read as %d bytes", want, len(b))
		}
		_, err := to.Write(b)
		return err
	})
}

// write makes a file and gives it its name. It returns the number of bytes written.
func (s *session) write(kind kept.Kind, name string, meta map[string]string, tensors []kept.Tensor,
	put func(i int, to io.Writer) error) (uint64, error) {
	if err := s.keeping(); err != nil {
		return 0, err
	}
	draft, err := s.keeper.Create()
	if err != nil {
		return 0, onDisk(err)
	}
	n, err := kept.Write(draft.File(), meta, tensors, put)
	if err != nil {
		draft.Drop()
		return 0, onDisk(err)
	}
	return n, onDisk(draft.Keep(kind, name))
}

// onDisk turns an error of the file system into one for the user.
func onDisk(err error) error {
	var mine *executor.Error
	switch {
	case err == nil || errors.As(err, &mine):
		return err
	case errors.Is(err, kept.ErrName):
		return executor.Errorf(proto.ErrValue, "A name of kept tensors has 1 to 100 characters: %v.", err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return executor.Errorf(proto.ErrRuntime, "The worker's disk is full, so nothing was kept; what had the name before "+
			"is still there. Drop names that are not needed, or give the worker a larger disk.")
	}
	return executor.Errorf(proto.ErrRuntime, "The worker's disk: %v.", err)
}

// named is onDisk for an operation on a name. The text of a missing name lists those that exist.
func (s *session) named(err error, name string) error {
	if !errors.Is(err, kept.ErrMissing) {
		return onDisk(err)
	}
	names, _ := s.keeper.Names(kept.Saved)
	there := "there are no names"
	const most = 20
	if n := len(names); n > 0 {
		there = "there are " + strings.Join(quoted(names[:min(n, most)]), ", ")
		if n > most {
			there += fmt.Sprintf(", and %d more", n-most)
		}
	}
	return executor.Errorf(proto.ErrValue, "Nothing is kept under the name %q; %s.", name, there)
}

func quoted(names []string) []string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = fmt.Sprintf("%q", n)
	}
	return out
}

// find opens the file of a name and describes its tensors.
func (s *session) find(seq uint64, name string, reply *proto.StateReply) error {
	if err := s.keeping(); err != nil {
		return err
	}
	f, err := s.keeper.Open(kept.Saved, name)
	if err != nil {
		return s.named(err, name)
	}
	file, err := kept.Read(f)
	if err != nil {
		return executor.Errorf(proto.ErrRuntime, "What is kept under the name %q cannot be read: %v.", name, err)
	}
	for _, t := range file.Tensors {
		reply.Tensors = append(reply.Tensors, &proto.Kept{Dtype: t.DType, Sizes: t.Sizes})
	}
	reply.Tree = file.Meta[treeKey]
	if len(s.found) == maxFound {
		s.found[0].file.Close()
		s.found = s.found[1:]
	}
	s.found = append(s.found, found{seq, file})
	return nil
}

// load makes storages with the tensors of a file that is open.
func (s *session) load(m *proto.Load) (uint64, error) {
	if f := s.fetches[m.Found]; f != nil {
		return s.loadWeights(f, m)
	}
	i := slices.IndexFunc(s.found, func(f found) bool { return f.seq == m.Found })
	if i < 0 {
		return 0, faultf("A Load names the Find %d, which has found nothing.", m.Found)
	}
	file := s.found[i].file
	s.found = slices.Delete(s.found, i, i+1)
	defer file.Close()
	if len(m.Storages) != len(file.Tensors) {
		return 0, faultf("A Load has %d storages for %d tensors.", len(m.Storages), len(file.Tensors))
	}
	total := uint64(0)
	for i, id := range m.Storages {
		if id == 0 {
			continue
		}
		n, err := file.Tensors[i].Bytes()
		if err != nil {
			return 0, faultf("BUG: a file with a tensor without a size: %v.", err)
		}
		if err := s.make(id, n, func(dst []byte) error { return file.Fill(i, dst) }); err != nil {
			return 0, err
		}
		total += n
	}
	return total, nil
}

// make makes a storage that read fills. An error of read or a lack of memory poisons the storage; other errors are
// faults of the client.
func (s *session) make(id, bytes uint64, read func(dst []byte) error) error {
	dst, err := s.x.UploadBegin(id, bytes)
	if err == nil && bytes > 0 {
		if err = read(dst); err != nil {
			s.x.Free([]uint64{id}) // ends the upload
			err = onDisk(err)
		}
	}
	if err == nil {
		err = s.x.UploadEnd(id)
	}
	return s.uploaded(id, err)
}

// closeFound closes what Find has opened.
func (s *session) closeFound() {
	for _, f := range s.found {
		f.file.Close()
	}
	s.found = nil
}
