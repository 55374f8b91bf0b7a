// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Package peer is an honest client's end of a session, as far as test programs need one. Its values depend on a number,
// so that a value of another session or of another time is wrong.
package peer

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/remote"
)

// Session is a session whose Hellos were exchanged.
type Session struct {
	C   *transport.Conn
	PID uint64 // of the session's process

	seq     uint64
	storage uint64 // the last id that was used
	kept    uint64 // a storage that stays
}

// Hello is what a client of this build says first.
func Hello() *proto.Hello {
	return &proto.Hello{
		Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion, Pid: uint64(os.Getpid()),
	}
}

// Greet exchanges Hellos.
func Greet(c *transport.Conn) (*Session, error) {
	if err := c.Send(transport.Hello, 0, Hello(), nil); err != nil {
		return nil, err
	}
	var answer proto.Hello
	if _, err := remote.Expect(c, transport.Hello, &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return &Session{C: c, PID: answer.Pid}, nil
}

// Next is the next sequence number.
func (s *Session) Next() uint64 {
	s.seq++
	return s.seq
}

// Storage is a new id of a storage.
func (s *Session) Storage() uint64 {
	s.storage++
	return s.storage
}

// Upload makes a storage.
func (s *Session) Upload(data []byte) (id uint64, err error) {
	id = s.Storage()
	m := &proto.Upload{Storage: id, Bytes: uint64(len(data))}
	return id, s.C.Send(transport.Upload, s.Next(), m, data)
}

// int32s is the dtype MYC_I32 of csrc/abi/words.h.
const int32s = 4

// elements is the number of elements of a vector.
const elements = 256

// Neg returns the program y = neg(x) of an int32 vector with 256 elements.
func Neg(key []byte) *proto.Program {
	window := func(b uint32) program.Tensor {
		return program.Tensor{Buffer: b, DType: int32s, Sizes: []program.Dim{elements}}
	}
	return Message(key, &program.Program{
		Buffers: 2, Tensors: []program.Tensor{window(0), window(1)}, Inputs: []uint32{0}, Outputs: []uint32{1},
		Steps:   []program.Step{&program.Call{Op: "aten::neg", Args: []program.Arg{program.Window(0)}, Results: []uint32{2}}},
		Records: []uint32{0},
	})
}

// Message returns the message of a program.
func Message(key []byte, p *program.Program) *proto.Program {
	return &proto.Program{Key: key, Words: program.Pack(p.Words())}
}

var negKey = bytes.Repeat([]byte{7}, proto.KeyBytes)

// vector has values that depend on n, times sign.
func vector(n uint32, sign int32) (out []byte) {
	for i := range uint32(elements) {
		out = binary.LittleEndian.AppendUint32(out, uint32(sign*int32(n*elements+i)))
	}
	return out
}

// keptNumber is the number of the vector that stays.
const keptNumber = 0x5eed

// Prepare sends the program, and a vector that stays.
func (s *Session) Prepare() (err error) {
	if s.kept, err = s.Upload(vector(keptNumber, 1)); err != nil {
		return err
	}
	return s.C.Send(transport.Program, s.Next(), Neg(negKey), nil)
}

// Check computes with values that depend on n, and reads the vector that stays.
func (s *Session) Check(n uint32) error {
	id, err := s.Upload(vector(n, 1))
	if err != nil {
		return err
	}
	out := s.Storage()
	call := &proto.Call{Key: negKey, Inputs: []uint64{id}, Outputs: []uint64{out}}
	if err := s.C.Send(transport.Call, s.Next(), call, nil); err != nil {
		return err
	}
	var done proto.Done
	if _, err := remote.Expect(s.C, transport.Done, &done); err != nil {
		return err
	}
	if done.Failed != 0 {
		return fmt.Errorf("its call has failed: %s", done.Errors[0].Text)
	}
	if err := s.compare(out, vector(n, -1)); err != nil {
		return err
	}
	if err := s.compare(s.kept, vector(keptNumber, 1)); err != nil {
		return fmt.Errorf("the storage that stays: %w", err)
	}
	return s.C.Send(transport.Free, s.Next(), &proto.FreeStorages{Storages: []uint64{id, out}}, nil)
}

// compare reads a vector.
func (s *Session) compare(storage uint64, want []byte) error {
	seq := s.Next()
	read := &proto.Read{Storage: storage, Dtype: int32s, Sizes: []int64{elements}, Strides: []int64{1}}
	if err := s.C.Send(transport.Read, seq, read, nil); err != nil {
		return err
	}
	var reply proto.ReadReply
	h, err := remote.Expect(s.C, transport.ReadReply, &reply)
	if err != nil {
		return err
	}
	if h.Seq != seq || reply.Status.GetKind() != 0 || h.Payload != uint64(len(want)) {
		return fmt.Errorf("an answer to read %d of %d bytes, to read %d: %v", h.Seq, h.Payload, seq, reply.Status)
	}
	got := make([]byte, h.Payload)
	if err := s.C.ReadBody(got); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("a wrong value")
	}
	return nil
}
