// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/tests/remote"
)

// process is the process of a client.
type process struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	want  map[int]string
	log   bytes.Buffer
	done  chan struct{} // closed when the process has ended

	mu         sync.Mutex
	values     int
	pid        int // of the session's process
	killed     bool
	ended      bool // it has said so
	reconnects uint64
	sent       uint64
	err        error
}

func startClient(addr string, seed uint64, w *remote.Worker, want map[int]string) (*process, error) {
	secret, err := w.Client.Encode()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{want: want, done: make(chan struct{})}
	p.cmd = exec.Command(self, "-client", addr, "-client-seed", fmt.Sprint(seed))
	p.cmd.Stderr = &p.log
	if p.stdin, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, err
	}
	go p.read(out)
	_, err = p.stdin.Write(secret)
	return p, err
}

// read takes the lines of the process until its end.
func (p *process) read(out io.Reader) {
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if err := p.line(lines.Text()); err != nil {
			p.fail(err)
		}
	}
	err := p.cmd.Wait()
	p.mu.Lock()
	if err == nil && !p.ended {
		err = errors.New("it ended without a last line")
	}
	if p.err == nil && !p.killed && err != nil {
		p.err = fmt.Errorf("%w: %s", err, p.log.String())
	}
	p.mu.Unlock()
	close(p.done)
}

// line takes a line: see runClient. A value must be that of the undisturbed run.
func (p *process) line(text string) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var step int
	var value string
	if n, _ := fmt.Sscanf(text, "value %d %s", &step, &value); n == 2 {
		p.values++
		if p.want[step] != value {
			return fmt.Errorf("a wrong value after step %d: %s, not %s", step, value, p.want[step])
		}
		return nil
	}
	if n, _ := fmt.Sscanf(text, "pid %d", &p.pid); n == 1 {
		return nil
	}
	if n, _ := fmt.Sscanf(text, "end %d %d", &p.reconnects, &p.sent); n == 2 {
		p.ended = true
		return nil
	}
	return fmt.Errorf("an unknown line: %q", text)
}

func (p *process) fail(err error) {
	p.mu.Lock()
	p.err = err
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
}

func (p *process) over() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

func (p *process) error() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *process) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.values
}

func (p *process) sessionPID() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pid
}

func (p *process) wasKilled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.killed
}

func (p *process) kill() {
	p.mu.Lock()
	p.killed = true
	p.mu.Unlock()
	_ = p.cmd.Process.Kill()
	<-p.done
}

func (p *process) stop() { _ = p.cmd.Process.Signal(syscall.SIGSTOP) }
func (p *process) goOn() { _ = p.cmd.Process.Signal(syscall.SIGCONT) }

// askToEnd lets the process end after its round.
func (p *process) askToEnd() { _ = p.stdin.Close() }

// end waits for the end.
func (p *process) end(within time.Duration) (reconnects, sent uint64, err error) {
	select {
	case <-p.done:
	case <-time.After(within):
		return 0, 0, fmt.Errorf("it does not end within %v", within)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reconnects, p.sent, p.err
}
