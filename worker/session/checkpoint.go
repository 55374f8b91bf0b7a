// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/kept"
)

const sessionKey = "mycelya.session" // in the metadata of a checkpoint

// image is what a checkpoint has beside the bytes of the storages.
type image struct {
	At       uint64                     // the sequence number of the Checkpoint
	State    string                     // of the executor, base64
	Storages []uint64                   // in the order of the tensors
	Poisoned map[uint64]*executor.Error // by storage
	Halt     *executor.Error
}

// nameAt is the name of a checkpoint.
func nameAt(session string, seq uint64) string { return fmt.Sprintf("%s-%d", session, seq) }

// checkpoint keeps all of the session, and ends its older checkpoints but base. It returns the number of bytes written.
func (s *session) checkpoint(seq uint64, session string, base uint64) (uint64, error) {
	if err := s.x.Sync(); err != nil {
		return 0, err
	}
	state, err := s.x.State()
	if err != nil {
		return 0, err
	}
	m := image{At: seq, State: base64.StdEncoding.EncodeToString(state), Halt: s.halt,
		Poisoned: map[uint64]*executor.Error{}}
	var tensors []kept.Tensor
	for _, c := range s.x.Contents() {
		if c.Poisoned { // a read says why
			m.Poisoned[c.ID] = asError(s.x.Read(allOf(c.ID, 0), func([]byte) error { return nil }))
			continue
		}
		m.Storages = append(m.Storages, c.ID)
		tensors = append(tensors, kept.Tensor{DType: kept.Bytes, Sizes: []int64{int64(c.Bytes)}})
	}
	text, err := json.Marshal(m)
	if err != nil {
		return 0, err
	}
	put := func(i int, to io.Writer) error {
		return s.put(allOf(m.Storages[i], uint64(tensors[i].Sizes[0])), &tensors[i], to)
	}
	n, err := s.write(kept.Checkpoint, nameAt(session, seq), map[string]string{sessionKey: string(text)}, tensors, put)
	if err != nil {
		return 0, err
	}
	s.checkpoints = append(s.checkpoints, made{session, seq})
	s.checkpoints = slices.DeleteFunc(s.checkpoints, func(c made) bool {
		old := c.seq != seq && c.seq != base
		if old {
			s.forget(c)
		}
		return old
	})
	return n, nil
}

// made is a checkpoint of this session.
type made struct {
	session string
	seq     uint64
}

func (s *session) forget(c made) {
	if err := s.keeper.Forget(kept.Checkpoint, nameAt(c.session, c.seq)); err != nil {
		s.log.Warn("an old checkpoint stays on the disk", "error", err)
	}
}

// allOf is a view of all bytes of a storage.
func allOf(id, bytes uint64) *proto.Read {
	return &proto.Read{Storage: id, Dtype: kept.Bytes, Sizes: []int64{int64(bytes)}, Strides: []int64{1}}
}

// restore brings a new session to the state of a checkpoint.
func (s *session) restore(m *proto.Restore, reply *proto.StateReply) error {
	if n, _ := s.x.Usage(); n > 0 || s.halt != nil {
		return faultf("A Restore comes before all that changes the session.")
	}
	if err := s.keeping(); err != nil {
		return err
	}
	f, err := s.keeper.Open(kept.Checkpoint, nameAt(m.Session, m.At))
	if err != nil {
		return executor.Errorf(proto.ErrRuntime, "The checkpoint of the session is not on the worker's disk: %v.", err)
	}
	file, err := kept.Read(f)
	if err != nil {
		return executor.Errorf(proto.ErrRuntime, "The checkpoint of the session cannot be read: %v.", err)
	}
	defer file.Close()
	var of image
	if err = json.Unmarshal([]byte(file.Meta[sessionKey]), &of); err == nil && len(of.Storages) != len(file.Tensors) {
		err = kept.ErrFormat
	}
	var state []byte
	if err == nil {
		state, err = base64.StdEncoding.DecodeString(of.State)
	}
	if err == nil {
		err = s.x.SetState(state)
	}
	if err != nil {
		return executor.Errorf(proto.ErrRuntime, "The checkpoint of the session cannot be read: %v.", err)
	}
	for i, id := range of.Storages {
		n, err := file.Tensors[i].Bytes()
		if err == nil {
			err = s.make(id, n, func(dst []byte) error { return file.Fill(i, dst) })
		}
		if err != nil {
			return err
		}
		reply.Bytes += n
	}
	for id, e := range of.Poisoned {
		s.x.Poison([]uint64{id}, e)
	}
	s.halt, reply.At = of.Halt, of.At
	s.checkpoints = []made{{m.Session, m.At}}
	return nil
}
