// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

// Command hostile is a client with valid credentials and bad intentions. It sends the programs of mycelya_operator_fuzz
// (csrc/exec/test) to a worker process, each with hostile arguments for one operator. Beside it, another session of the
// same worker computes with values of its own. The command fails if the worker ends, if a value of the other session is
// wrong, or if the end of a session is not reported with the signal, the call and the step.
//
//	hostile -fuzz PATH -worker PATH -exec PATH -torch-lib FOLDER [-count 400000] [-seed 1]
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
)

func main() {
	var (
		fuzz     = flag.String("fuzz", "", "path of mycelya_operator_fuzz")
		worker   = flag.String("worker", "", "path of mycelya-worker")
		library  = flag.String("exec", "", "path of libmycelya_exec")
		torchLib = flag.String("torch-lib", "", "folder of libtorch_cpu")
		count    = flag.Int("count", 400_000, "number of programs")
		seed     = flag.Int("seed", 1, "of the programs")
	)
	flag.Parse()
	if err := run(*fuzz, *worker, *library, *torchLib, *count, *seed); err != nil {
		fmt.Fprintln(os.Stderr, "hostile:", err)
		os.Exit(1)
	}
}

func run(fuzz, worker, library, torchLib string, count, seed int) error {
	folder, err := os.MkdirTemp("", "hostile")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(folder) }()
	socket := filepath.Join(folder, "s")
	// The limit is for programs that ask for any amount of memory.
	server := exec.Command(worker, "--socket", socket, "--exec", library, "--torch-lib", torchLib, "--device", "cpu",
		"--threads", "1", "--memory", fmt.Sprint(3<<30), "--stdin-eof")
	if server.Stderr, err = os.Create(filepath.Join(folder, "log")); err != nil {
		return err
	}
	stdin, err := server.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := server.StdoutPipe()
	if err != nil {
		return err
	}
	if err := server.Start(); err != nil {
		return err
	}
	if _, err := bufio.NewReader(stdout).ReadString('\n'); err != nil { // the handshake: the worker listens
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Wait() }()
	defer func() { _ = stdin.Close(); <-ended; ended <- nil }()

	source := exec.Command(fuzz, "--words", "--count", fmt.Sprint(count), "--seed", fmt.Sprint(seed))
	out, err := source.StdoutPipe()
	if err != nil {
		return err
	}
	if err := source.Start(); err != nil {
		return err
	}
	defer func() { _ = source.Process.Kill(); _ = source.Wait() }()
	h := &hostile{socket: socket, in: bufio.NewReaderSize(out, 1<<20)}
	defer h.close()
	if err := h.attack(count, ended); err != nil {
		return fmt.Errorf("program %d of seed %d: %s: %w", h.programs, seed, h.text, err)
	}
	fmt.Printf("%d programs, seed %d: %d refused, %d failed, %d ran; %d sessions ended, all of them reported; "+
		"the other session computed %d times\n", h.programs, seed, h.refused, h.failed, h.ran, h.ends, h.checks)
	return nil
}

// hostile is the two sessions, and what was counted.
type hostile struct {
	socket   string
	in       *bufio.Reader
	contents [][]byte
	bad      *session
	good     *session
	text     string // the call of the current program

	programs, refused, failed, ran, ends, checks int
}

func (h *hostile) close() {
	for _, s := range []*session{h.bad, h.good} {
		if s != nil {
			_ = s.c.Close()
		}
	}
}

// every is how many programs there are between two looks at the other session.
const every = 500

func (h *hostile) attack(count int, ended chan error) (err error) {
	if h.good, err = dial(h.socket); err != nil {
		return err
	}
	if err := h.good.prepare(); err != nil {
		return err
	}
	if h.contents, err = readContents(h.in); err != nil {
		return err
	}
	for h.programs = 0; h.programs < count; h.programs++ {
		if err := h.next(); err != nil {
			return err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("the worker has ended: %v", err)
		default:
		}
		if h.programs%every == every-1 || h.programs == count-1 {
			if err := h.good.check(uint32(h.programs)); err != nil {
				return fmt.Errorf("the other session: %w", err)
			}
			h.checks++
		}
	}
	return nil
}

// next sends one program and handles its outcome.
func (h *hostile) next() (err error) {
	p, text, err := readProgram(h.in)
	if err != nil {
		return err
	}
	h.text = text
	for b := range p.Buffers {
		if int(b) < len(h.contents) {
			p.Inputs = append(p.Inputs, b)
		} else {
			p.Outputs = append(p.Outputs, b)
		}
	}
	p.Key = binary.BigEndian.AppendUint32(make([]byte, proto.KeyBytes-4), uint32(h.programs))
	if proto.Validate(p) != nil {
		h.refused++
		return nil
	}
	if h.bad == nil {
		if h.bad, err = dial(h.socket); err != nil {
			return fmt.Errorf("no new session: %w", err)
		}
	}
	done, seq, err := h.bad.run(p, h.contents)
	switch {
	case err != nil:
		return h.reported(seq, err)
	case done.Failed == 0:
		h.ran++
	default:
		h.failed++
		return h.bad.c.Send(transport.Resume, h.bad.next(), &proto.Resume{}, nil)
	}
	return nil
}

// reported asks how the session's process has ended: the answer must name this call.
func (h *hostile) reported(seq uint64, why error) error {
	pid := h.bad.pid
	_ = h.bad.c.Close()
	h.bad = nil
	c, err := connect(h.socket)
	if err != nil {
		return err
	}
	defer func() { _ = c.Close() }()
	if err := c.Send(transport.Ended, 1, &proto.Ended{Pid: pid}, nil); err != nil {
		return err
	}
	var r proto.EndedReply
	if _, err := expect(c, transport.EndedReply, &r); err != nil {
		return err
	}
	if !r.Ended || r.Signal == "" && r.Code == 0 || r.Call != seq || r.Step != 1 {
		return fmt.Errorf("the session has ended (%w), and the report does not tell how in call %d: %v", why, seq, &r)
	}
	h.ends++
	fmt.Printf("program %d: %s: %s in call %d, step %d\n", h.programs, h.text, r.Signal, r.Call, r.Step-1)
	return nil
}

// session is the client's end of one session.
type session struct {
	c       *transport.Conn
	pid     uint64
	seq     uint64
	storage uint64 // the last id that was used
}

func connect(socket string) (*transport.Conn, error) {
	nc, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return transport.New(nc), nc.SetDeadline(time.Now().Add(time.Hour))
}

func dial(socket string) (*session, error) {
	c, err := connect(socket)
	if err != nil {
		return nil, err
	}
	hello := &proto.Hello{
		Protocol: transport.Version, Build: transport.Build, Abi: proto.ABIVersion, Pid: uint64(os.Getpid()),
	}
	if err := c.Send(transport.Hello, 0, hello, nil); err != nil {
		return nil, err
	}
	var answer proto.Hello
	if _, err := expect(c, transport.Hello, &answer); err != nil {
		return nil, err
	}
	if answer.Error != "" {
		return nil, errors.New(answer.Error)
	}
	return &session{c: c, pid: answer.Pid}, nil
}

func expect(c *transport.Conn, typ transport.Type, m protobuf.Message) (transport.Header, error) {
	h, err := c.Next()
	if err != nil {
		return h, err
	}
	if h.Type != typ {
		return h, fmt.Errorf("a %v frame instead of %v", h.Type, typ)
	}
	return h, c.Meta(m)
}

func (s *session) next() uint64 {
	s.seq++
	return s.seq
}

func (s *session) upload(data []byte) (id uint64, err error) {
	s.storage++
	m := &proto.Upload{Storage: s.storage, Bytes: uint64(len(data))}
	return s.storage, s.c.Send(transport.Upload, s.next(), m, data)
}

// run uploads the contents, runs a program on them, and frees all of its storages.
func (s *session) run(p *proto.Program, contents [][]byte) (*proto.Done, uint64, error) {
	call := &proto.Call{Key: p.Key}
	free := &proto.FreeStorages{}
	for _, data := range contents {
		id, err := s.upload(data)
		if err != nil {
			return nil, 0, err
		}
		call.Inputs, free.Storages = append(call.Inputs, id), append(free.Storages, id)
	}
	for range p.Outputs {
		s.storage++
		call.Outputs, free.Storages = append(call.Outputs, s.storage), append(free.Storages, s.storage)
	}
	if err := s.c.Send(transport.Program, s.next(), p, nil); err != nil {
		return nil, 0, err
	}
	seq := s.next()
	if err := s.c.Send(transport.Call, seq, call, nil); err != nil {
		return nil, seq, err
	}
	var done proto.Done
	if _, err := expect(s.c, transport.Done, &done); err != nil {
		return nil, seq, err
	}
	return &done, seq, s.c.Send(transport.Free, s.next(), free, nil)
}

// int32s is the dtype MYC_I32 of csrc/abi/words.h.
const int32s = 4

var negKey = bytes.Repeat([]byte{7}, proto.KeyBytes)

// prepare sends the program y = neg(x) of an int32 vector.
func (s *session) prepare() error {
	window := func(b uint32) *proto.Tensor {
		dim := &proto.Dim{Kind: &proto.Dim_Const{Const: 256}}
		return &proto.Tensor{Buffer: b, Dtype: int32s, Contiguous: true, Sizes: []*proto.Dim{dim}}
	}
	return s.c.Send(transport.Program, s.next(), &proto.Program{
		Key: negKey, Buffers: 2, Tensors: []*proto.Tensor{window(0), window(1)}, Inputs: []uint32{0}, Outputs: []uint32{1},
		Steps: []*proto.Step{{Kind: &proto.Step_Call{Call: &proto.CallOp{
			Op: "aten::neg", Args: []*proto.Arg{{Kind: &proto.Arg_Tensor{Tensor: 0}}}, Results: []uint32{2},
		}}}},
	}, nil)
}

// check computes with values that depend on n.
func (s *session) check(n uint32) error {
	var in, want []byte
	for i := range uint32(256) {
		in = binary.LittleEndian.AppendUint32(in, n*256+i)
		want = binary.LittleEndian.AppendUint32(want, -(n*256 + i))
	}
	id, err := s.upload(in)
	if err != nil {
		return err
	}
	s.storage++
	call := &proto.Call{Key: negKey, Inputs: []uint64{id}, Outputs: []uint64{s.storage}}
	if err := s.c.Send(transport.Call, s.next(), call, nil); err != nil {
		return err
	}
	var done proto.Done
	if _, err := expect(s.c, transport.Done, &done); err != nil {
		return err
	}
	if done.Failed != 0 {
		return fmt.Errorf("its call has failed: %s", done.Errors[0].Text)
	}
	read := &proto.Read{Storage: s.storage, Dtype: int32s, Sizes: []int64{256}, Strides: []int64{1}}
	if err := s.c.Send(transport.Read, s.next(), read, nil); err != nil {
		return err
	}
	var reply proto.ReadReply
	h, err := expect(s.c, transport.ReadReply, &reply)
	if err != nil {
		return err
	}
	got := make([]byte, h.Payload)
	if err := s.c.ReadBody(got); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !bytes.Equal(got, want) {
		return errors.New("a wrong value")
	}
	return s.c.Send(transport.Free, s.next(), &proto.FreeStorages{Storages: []uint64{id, s.storage}}, nil)
}
