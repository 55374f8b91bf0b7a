// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package ssh

import (
	"context"
	"errors"
	"net"
	"os"
	osexec "os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
)

const (
	// How long the ssh process of a closed stream may take to end: the other end may still read.
	lingerWait = 10 * time.Second
	// What shells print before a stream begins is at most this long.
	maxNoise = 64 << 10
)

// stream is a stream to a worker: a socket, whose other end is the stdin and the stdout of an ssh process that runs
// mycelya-worker --relay on the host.
type stream struct {
	*net.UnixConn
	of    options
	cmd   *osexec.Cmd
	log   process.Log
	begun bool // the relay's first line was read; the reader's
	once  sync.Once
	ended chan struct{} // closed when the ssh process has ended
}

// dial opens a stream, over the connection of the front if it is there and otherwise over one of its own. It waits for
// nothing: the client's first bytes follow what the relay gets, and a failure is an error of the first read.
func (o options) dial(ctx context.Context, dir string, w facts) (*stream, error) {
	ours, theirs, err := pair()
	if err != nil {
		return nil, provider.Errorf(provider.ErrUnavailable, "The socket of a stream cannot be made: %v. %s", err,
			process.Advice(err, ""))
	}
	if err := ctx.Err(); err != nil {
		_, _ = ours.Close(), theirs.Close()
		return nil, err
	}
	s := &stream{UnixConn: ours, of: o, cmd: o.ssh(dir, false, connectWait, relayCommand), ended: make(chan struct{})}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = theirs, theirs, &s.log
	err = s.cmd.Start()
	_ = theirs.Close()
	if err != nil {
		_ = ours.Close()
		return nil, o.cannotStart(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.ended)
	}()
	_, _ = s.Write([]byte(w.Program + "\n" + w.Socket + "\n")) // the reader learns of an end
	return s, nil
}

// Read implements net.Conn. The first read takes what comes before the worker's bytes.
func (s *stream) Read(p []byte) (int, error) {
	if !s.begun {
		if err := s.begin(); err != nil {
			return 0, s.failure(err)
		}
		s.begun = true
	}
	return s.UnixConn.Read(p)
}

// failure returns the error of a stream that has not begun, with the text of ssh unless this end has closed the stream.
func (s *stream) failure(err error) error {
	if errors.Is(err, net.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
		return err
	}
	s.end(time.After(time.Second))
	if errors.Is(err, errNoise) {
		return provider.Errorf(provider.ErrInvalidSpec, "%s prints more than %d KiB before each command. Its shell's start "+
			"files, as ~/.bashrc, must print nothing in a shell that is not interactive.", s.of.host, maxNoise>>10)
	}
	return s.of.failure(s.cmd.ProcessState.ExitCode(), s.log.String())
}

var errNoise = errors.New("the host has written too much before the stream")

// begin reads the relay's first line, and what shells print before it. It reads no byte of the worker.
func (s *stream) begin() error {
	var line strings.Builder
	b := make([]byte, 1)
	for range maxNoise {
		if _, err := s.UnixConn.Read(b); err != nil {
			return err
		}
		line.WriteByte(b[0])
		if b[0] != '\n' {
			continue
		}
		if line.String() == transport.RelayMark {
			return nil
		}
		_, _ = s.log.Write([]byte(line.String()))
		line.Reset()
	}
	return errNoise
}

// Close implements net.Conn. The relay gets what was written before.
func (s *stream) Close() error {
	err := s.UnixConn.Close()
	s.once.Do(func() { go s.end(time.After(lingerWait)) })
	return err
}

// end waits for the end of the ssh process, and kills it when it is late.
func (s *stream) end(late <-chan time.Time) {
	select {
	case <-s.ended:
		return
	case <-late:
	}
	_ = s.cmd.Process.Kill()
	<-s.ended
}

// pair makes two sockets that are connected: one for this process, and one for another.
func pair() (*net.UnixConn, *os.File, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	mine, theirs := os.NewFile(uintptr(fds[0]), "stream"), os.NewFile(uintptr(fds[1]), "ssh")
	defer mine.Close() // FileConn duplicates it
	c, err := net.FileConn(mine)
	if err != nil {
		_ = theirs.Close()
		return nil, nil, err
	}
	return c.(*net.UnixConn), theirs, nil
}
