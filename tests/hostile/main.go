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
	"encoding/binary"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/tests/hostile/peer"
	"github.com/mycelya/mycelya/tests/hostile/words"
	"github.com/mycelya/mycelya/tests/remote"
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
	bad      *peer.Session
	good     *peer.Session
	text     string // the call of the current program

	programs, refused, failed, ran, ends, checks int
}

func (h *hostile) close() {
	for _, s := range []*peer.Session{h.bad, h.good} {
		if s != nil {
			_ = s.C.Close()
		}
	}
}

// every is how many programs there are between two looks at the other session.
const every = 500

func (h *hostile) attack(count int, ended chan error) (err error) {
	if h.good, err = dial(h.socket); err != nil {
		return err
	}
	if err := h.good.Prepare(); err != nil {
		return err
	}
	if h.contents, err = words.Contents(h.in); err != nil {
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
			if err := h.good.Check(uint32(h.programs)); err != nil {
				return fmt.Errorf("the other session: %w", err)
			}
			h.checks++
		}
	}
	return nil
}

// next sends one program and handles its outcome.
func (h *hostile) next() (err error) {
	p, text, err := words.Program(h.in)
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
	if p.Validate() != nil {
		h.refused++
		return nil
	}
	if h.bad == nil {
		if h.bad, err = dial(h.socket); err != nil {
			return fmt.Errorf("no new session: %w", err)
		}
	}
	key := binary.BigEndian.AppendUint32(make([]byte, proto.KeyBytes-4), uint32(h.programs))
	done, seq, err := runProgram(h.bad, peer.Message(key, p), len(p.Outputs), h.contents)
	switch {
	case err != nil:
		return h.reported(seq, err)
	case done.Failed == 0:
		h.ran++
	default:
		h.failed++
		return h.bad.C.Send(transport.Resume, h.bad.Next(), &proto.Resume{}, nil)
	}
	return nil
}

// reported asks how the session's process has ended: the answer must name this call.
func (h *hostile) reported(seq uint64, why error) error {
	pid := h.bad.PID
	_ = h.bad.C.Close()
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
	if _, err := remote.Expect(c, transport.EndedReply, &r); err != nil {
		return err
	}
	if !r.Ended || r.Signal == "" && r.Code == 0 || r.Call != seq || r.Step != 1 {
		return fmt.Errorf("the session has ended (%w), and the report does not tell how in call %d: %v", why, seq, &r)
	}
	h.ends++
	fmt.Printf("program %d: %s: %s in call %d, step %d\n", h.programs, h.text, r.Signal, r.Call, r.Step-1)
	return nil
}

// runProgram uploads the contents, runs a program on them, and frees all of its storages.
func runProgram(s *peer.Session, p *proto.Program, outputs int, contents [][]byte) (*proto.Done, uint64, error) {
	call := &proto.Call{Key: p.Key}
	free := &proto.FreeStorages{}
	for _, data := range contents {
		id, err := s.Upload(data)
		if err != nil {
			return nil, 0, err
		}
		call.Inputs, free.Storages = append(call.Inputs, id), append(free.Storages, id)
	}
	for range outputs {
		id := s.Storage()
		call.Outputs, free.Storages = append(call.Outputs, id), append(free.Storages, id)
	}
	if err := s.C.Send(transport.Program, s.Next(), p, nil); err != nil {
		return nil, 0, err
	}
	seq := s.Next()
	if err := s.C.Send(transport.Call, seq, call, nil); err != nil {
		return nil, seq, err
	}
	var done proto.Done
	if _, err := remote.Expect(s.C, transport.Done, &done); err != nil {
		return nil, seq, err
	}
	return &done, seq, s.C.Send(transport.Free, s.Next(), free, nil)
}

func connect(socket string) (*transport.Conn, error) {
	nc, err := net.Dial("unix", socket)
	if err != nil {
		return nil, err
	}
	return transport.New(nc), nc.SetDeadline(time.Now().Add(time.Hour))
}

func dial(socket string) (*peer.Session, error) {
	c, err := connect(socket)
	if err != nil {
		return nil, err
	}
	return peer.Greet(c)
}
