// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/hostile/mutate"
	"github.com/mycelya/mycelya/tests/hostile/peer"
)

// frame is a frame before it is encoded.
type frame struct {
	typ     transport.Type
	seq     uint64
	meta    protobuf.Message
	body    []byte
	changed bool
}

// stream makes the frames of one session.
type stream struct {
	r       *rand.Rand
	corpus  []example
	seq     uint64
	storage uint64                 // the last id that was used
	pid     uint64                 // of the session
	sent    map[string]bool        // the programs that the worker should have, by key
	last    map[string]*proto.Call // the last call of each program
	lastSeq map[string]uint64
	encode  encoder

	compressor transport.Compressor
}

func newStream(r *rand.Rand, corpus []example) *stream {
	return &stream{r: r, corpus: corpus, sent: map[string]bool{}, last: map[string]*proto.Call{},
		lastSeq: map[string]uint64{}, encode: newEncoder()}
}

func (s *stream) one(n int) bool { return s.r.IntN(n) == 0 }

func (s *stream) frame(typ transport.Type, m protobuf.Message, body []byte) frame {
	s.seq++
	return frame{typ: typ, seq: s.seq, meta: m, body: body}
}

// scenario is what a client sends to run a program: uploads, the program, calls, reads, frees. Its mild changes usually
// keep the session alive.
func (s *stream) scenario() (out []frame) {
	e := pick(s.corpus, s.r)
	p, changedProgram := e.program, false
	if s.one(3) {
		p, changedProgram = s.anotherProgram(p)
	}
	call := &proto.Call{Key: e.key, Params: fit(e.params, int(p.Params))}
	for i := range p.Inputs {
		var data []byte
		if i < len(e.inputs) {
			data = e.inputs[i]
		}
		if f := s.upload(data); len(f.body) > 0 && s.one(4) {
			out = append(out, s.inPieces(f)...)
		} else {
			out = append(out, f)
		}
		call.Inputs = append(call.Inputs, s.storage)
	}
	for range p.Outputs {
		s.storage++
		call.Outputs = append(call.Outputs, s.storage)
	}
	if key := string(e.key); !s.sent[key] || changedProgram || s.one(8) {
		f := s.frame(transport.Program, peer.Message(e.key, p), nil)
		f.changed = changedProgram
		out = append(out, f)
		s.sent[key] = true
		delete(s.last, key)
	}
	made := slices.Concat(call.Inputs, call.Outputs)
	for range 1 + s.r.IntN(4) {
		out = append(out, s.call(p, call))
	}
	for range 2 + s.r.IntN(6) {
		out = append(out, s.question(made))
	}
	out = append(out, s.frame(transport.Resume, &proto.Resume{}, nil))
	return append(out, s.frame(transport.Free, &proto.FreeStorages{Storages: made}, nil))
}

// anotherProgram is a changed program that obeys the rules, if one is found.
func (s *stream) anotherProgram(p *program.Program) (*program.Program, bool) {
	words := p.Words()
	if len(words) > largeProgram {
		return p, false
	}
	for range 32 {
		changed := slices.Clone(words)
		for range 1 + s.r.IntN(3) {
			at := s.r.IntN(len(changed))
			changed[at] = mutate.Number(s.r, changed[at])
		}
		if another, err := program.Parse(changed); err == nil {
			return another, true
		}
	}
	return p, false
}

// fits reports whether a worker runs a call of a program.
func fits(p *program.Program, c *proto.Call) bool {
	once := func(list []uint64, zeros bool) bool {
		seen := map[uint64]bool{}
		for _, id := range list {
			if seen[id] || id == 0 && !zeros {
				return false
			}
			seen[id] = id != 0
		}
		return true
	}
	return len(c.Params) == int(p.Params) && len(c.Inputs) == len(p.Inputs) && len(c.Outputs) == len(p.Outputs) &&
		once(c.Inputs, false) && once(c.Outputs, true)
}

// fit cuts a list of parameters or fills it up.
func fit(params []uint64, n int) []uint64 {
	out := slices.Clone(params)
	for len(out) < n && len(out) < 1<<16 {
		out = append(out, 2)
	}
	return out[:min(n, len(out))]
}

// upload makes a new storage. Some have another size than they should.
func (s *stream) upload(data []byte) frame {
	s.storage++
	changed := s.one(3)
	if changed {
		data = slices.Clone(data)
		switch n := s.r.IntN(3); {
		case n == 0:
			data = data[:s.r.IntN(len(data)+1)]
		case n == 1:
			data = append(data, make([]byte, s.r.IntN(1<<s.r.IntN(14)))...)
		case len(data) > 0:
			for range 1 + s.r.IntN(8) {
				data[s.r.IntN(len(data))] ^= 1 << s.r.IntN(8)
			}
		}
	}
	f := s.frame(transport.Upload, &proto.Upload{Storage: s.storage, Bytes: uint64(len(data))}, data)
	f.changed = changed
	return f
}

// inPieces sends an upload in pieces. Some are compressed, and some of the uploads are offered and settled.
func (s *stream) inPieces(f frame) []frame {
	begin := f
	begin.typ, begin.body = transport.Begin, nil
	out := []frame{begin}
	add := func(typ transport.Type, m protobuf.Message, body []byte) {
		out = append(out, frame{typ, f.seq, m, body, true})
	}
	for rest := f.body; len(rest) > 0; {
		n := 1 + s.r.IntN(len(rest))
		var m protobuf.Message = &proto.Piece{}
		body := rest[:n]
		if small, err := s.compressor.Compress(body); err == nil && len(small) < n {
			m, body = &proto.Piece{Bytes: uint64(n)}, bytes.Clone(small)
		}
		if s.one(4) {
			mutate.Message(s.r, m)
		}
		add(transport.Piece, m, body)
		rest = rest[n:]
		if len(rest) > 0 && s.one(2) {
			hash := sha256.Sum256(f.body)
			add(transport.Offer, &proto.Offer{Hash: hash[:]}, nil)
		}
		if s.one(8) {
			add(transport.Settle, &proto.Settle{Again: s.one(2)}, nil)
		}
	}
	return out
}

// call calls a program, often with other parameters and storages. It may be sent as a difference.
func (s *stream) call(p *program.Program, like *proto.Call) frame {
	c := protobuf.Clone(like).(*proto.Call)
	changed := !s.one(4)
	if changed {
		for range 1 + s.r.IntN(3) {
			s.changeCall(c)
		}
		if !fits(p, c) {
			c, changed = protobuf.Clone(like).(*proto.Call), false
		}
	}
	f := s.frame(transport.Call, c, nil)
	f.changed = changed
	key := string(c.Key)
	if prev := s.last[key]; prev != nil && s.one(2) {
		if delta, ok := proto.AppendDelta(nil, prev, c); ok {
			f.meta = &proto.Call{Key: c.Key, Base: s.lastSeq[key], Delta: delta, Busy: c.Busy}
		}
	}
	s.last[key], s.lastSeq[key] = c, f.seq
	return f
}

func (s *stream) changeCall(c *proto.Call) {
	change := func(list []uint64, to uint64) {
		if len(list) > 0 {
			list[s.r.IntN(len(list))] = to
		}
	}
	switch s.r.IntN(5) {
	case 0, 1:
		if n := len(c.Params); n > 0 {
			i := s.r.IntN(n)
			c.Params[i] = mutate.Number(s.r, c.Params[i])
		}
	case 2:
		change(c.Inputs, s.anyStorage())
	case 3:
		change(c.Outputs, s.anyStorage())
	default:
		for range s.r.IntN(4) {
			c.Frees = append(c.Frees, s.anyStorage())
		}
		c.Busy = uint32(mutate.Number(s.r, 1))
	}
}

// anyStorage is the id of a storage that exists, existed, or never will.
func (s *stream) anyStorage() uint64 {
	if s.one(4) {
		return mutate.Number(s.r, s.storage)
	}
	return s.storage - uint64(s.r.IntN(20))
}

// question is a read, a sync, a fail, a resume, a free, a fetch from a server that does not exist, a pass or a take.
func (s *stream) question(made []uint64) frame {
	var f frame
	name := []string{"", "short", "a name of 16 or more", mutate.Text(s.r, "a name of 16 or more")}[s.r.IntN(4)]
	switch s.r.IntN(14) {
	case 6:
		if f = s.frame(transport.Unfetch, &proto.Unfetch{Fetch: s.seq - uint64(s.r.IntN(20))}, nil); s.one(8) {
			f = s.frame(transport.Fetch, &proto.Fetch{Endpoint: "http://127.0.0.1:1", Repo: "owner/name", Path: "x",
				Revision: "main", Token: "token"}, nil)
		}
	case 0:
		f = s.frame(transport.Sync, &proto.Sync{}, nil)
	case 1:
		f = s.frame(transport.Resume, &proto.Resume{}, nil)
	case 2:
		why := &proto.Status{Kind: int32(mutate.Number(s.r, 1)), Text: mutate.Text(s.r, "why")}
		f = s.frame(transport.Fail, &proto.Fail{Status: why, Storages: []uint64{s.anyStorage(), s.anyStorage()}}, nil)
		f.changed = true
	case 3:
		f = s.frame(transport.Free, &proto.FreeStorages{Storages: []uint64{s.anyStorage(), s.anyStorage()}}, nil)
		f.changed = true
	case 4:
		view := &proto.Read{Storage: s.anyStorage(), Dtype: uint32(1 + s.r.IntN(8)), Sizes: []int64{2, 3},
			Strides: []int64{3, 1}}
		f = s.frame(transport.Pass, &proto.Pass{Name: name, To: mutate.Number(s.r, s.pid), View: view}, nil)
		f.changed = true
	case 5:
		m := &proto.Take{Name: name, Storage: mutate.Number(s.r, s.storage+1), Bytes: mutate.Number(s.r, 24)}
		f = s.frame(transport.Take, m, nil)
		f.changed = true
	default:
		m := &proto.Read{Storage: s.anyStorage(), Dtype: uint32(1 + s.r.IntN(8)), Sizes: []int64{2, 3},
			Strides: []int64{3, 1}}
		if len(made) > 0 && !s.one(4) {
			m.Storage = made[s.r.IntN(len(made))]
		}
		f = s.frame(transport.Read, m, nil)
	}
	if !s.one(4) {
		f.changed = true
		for range 1 + s.r.IntN(3) {
			mutate.Message(s.r, f.meta)
		}
	}
	return f
}

// wild changes a scenario in a way that usually ends the session: the order of frames, any field of any message, or
// another type or number of a frame.
func (s *stream) wild(all []frame) []frame {
	i := s.r.IntN(len(all))
	f := &all[i]
	switch s.r.IntN(7) {
	case 0:
		f.changed = true
		all = slices.Insert(all, s.r.IntN(len(all)), *f) // twice
	case 1:
		all = slices.Delete(all, i, i+1)
	case 2:
		j := s.r.IntN(len(all))
		all[i], all[j] = all[j], all[i]
		all[i].changed, all[j].changed = true, true
	case 3:
		f.typ, f.changed = transport.Type(1+s.r.IntN(int(transport.Take))), true
	case 4:
		f.seq, f.changed = mutate.Number(s.r, f.seq), true
	case 5:
		all = slices.Insert(all, i, s.forbidden())
	default:
		f.meta, f.changed = protobuf.Clone(f.meta), true
		for range 1 + s.r.IntN(4) {
			mutate.Message(s.r, f.meta)
		}
	}
	return all
}

// forbidden is a frame that this client must not send here.
func (s *stream) forbidden() frame {
	var m protobuf.Message
	n := mutate.Number(s.r, 1)
	typ := transport.Type(1 + s.r.IntN(int(transport.Take)))
	switch typ {
	case transport.Hello:
		m = &proto.Hello{Protocol: uint32(n), Build: "x"}
	case transport.Share:
		m = &proto.Share{Block: 1, Bytes: n}
	case transport.Unshare:
		m = &proto.Unshare{Block: n}
	case transport.UploadFrom:
		m = &proto.UploadFrom{Storage: 1, Block: 1, Bytes: n}
	case transport.Ended:
		m = &proto.Ended{Pid: n}
	case transport.Done:
		m = &proto.Done{UnknownProgram: true}
	default:
		m = &proto.ReadReply{Bytes: n}
	}
	f := s.frame(typ, m, make([]byte, s.r.IntN(2)*8))
	f.changed = true
	return f
}

// encoder encodes frames with the package that a client uses.
type encoder struct {
	to   *kept
	conn *transport.Conn
}

// kept is a connection that keeps what is written.
type kept struct {
	net.Conn
	bytes.Buffer
}

func (k *kept) Write(p []byte) (int, error) { return k.Buffer.Write(p) }
func (k *kept) Read(p []byte) (int, error)  { return k.Buffer.Read(p) }

func newEncoder() encoder {
	k := &kept{}
	return encoder{k, transport.New(k)}
}

// bytes are the bytes of a frame. A message that cannot be encoded, as one with a text that is no UTF-8, is an error.
func (e encoder) bytes(f frame) ([]byte, error) {
	e.to.Reset()
	if err := e.conn.Send(f.typ, f.seq, f.meta, f.body); err != nil {
		return nil, err
	}
	return bytes.Clone(e.to.Bytes()), nil
}

// hugeUpload begins an upload of n bytes, with every length as it should be, and ends in it.
func (s *stream) hugeUpload() ([]byte, error) {
	const like = 8 * 12347 // bytes of the upload whose lengths are replaced; no other number in its header is this one
	n := []uint64{1 << 30, 1 << 32, 1 << 39, 1<<40 - 4096}[s.r.IntN(4)]
	s.storage++
	b, err := s.encode.bytes(s.frame(transport.Upload, &proto.Upload{Storage: s.storage, Bytes: n}, make([]byte, like)))
	if err != nil {
		return nil, err
	}
	b = b[:len(b)-like/2]
	found := 0
	for i := mutate.HeaderBytes; i+8 <= len(b); i++ {
		if binary.LittleEndian.Uint64(b[i:]) == like {
			binary.LittleEndian.PutUint64(b[i:], n)
			found++
		}
	}
	if found < 4 { // rows of the batch and of the column, length of the buffer and of the body
		return nil, fmt.Errorf("BUG: %d lengths were found in an upload", found)
	}
	binary.LittleEndian.PutUint64(b[mutate.BodyAt:], binary.LittleEndian.Uint64(b[mutate.BodyAt:])-like+n)
	return b, nil
}
