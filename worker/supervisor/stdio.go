// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/crash"
	"github.com/mycelya/mycelya/worker/session"
)

// ServeStream serves the only client, whose stream comes in by one file and goes out by another one: the stdin and the
// stdout of this process. The session's process gets both, so that no byte goes through this one. ServeStream returns
// when the stream or the session has ended. Nobody can ask it how the process has ended, so it says so in the stream.
func (s *Supervisor) ServeStream(in, out *os.File) error {
	s.Begin()
	defer s.Close()
	stream, err := dupPipes(in, out)
	if err != nil {
		return err
	}
	defer stream.restore()
	go s.watch()
	p, err := s.process(true)
	if err == nil {
		err = p.giveBoth(stream)
	}
	if err != nil {
		hello := session.OwnHello()
		hello.Error = cannotStart(err)
		stream.say(transport.Hello, hello)
		return err
	}
	over, ends, err := os.Pipe()
	if err != nil {
		return err
	}
	watched := make(chan struct{})
	go func() { s.closeWithReader(out, over); close(watched) }()
	defer func() { _ = ends.Close(); <-watched }() // the caller may close out
	<-p.done
	if p.end.Code == 0 && p.end.Signal == "" {
		return nil
	}
	s.mu.Lock()
	closed := s.closed || s.draining
	s.mu.Unlock()
	switch {
	case p.cut: // a frame would be taken for the rest of another one
	case closed:
		hello := session.OwnHello()
		hello.Error = stopText
		stream.say(transport.Hello, hello)
	default:
		stream.say(transport.EndedReply, p.end)
	}
	if closed {
		return nil
	}
	return fmt.Errorf("the session's process has ended with code %d, signal %q", p.end.Code, p.end.Signal)
}

// cannotStart is what a client is told that gets no process.
func cannotStart(err error) string {
	return "The worker cannot start a process for the session: " + err.Error() + "."
}

// say sends the last frame of a session whose process cannot send one.
func (p *pipes) say(t transport.Type, m protobuf.Message) {
	_ = p.SetWriteDeadline(time.Now().Add(session.LastWait))
	_ = transport.New(p).Send(t, 0, m, nil)
}

// closeWithReader ends everything when nobody can read what is written to out any more: a session that computes would
// not notice. It returns when the other end of the pipe over closes.
func (s *Supervisor) closeWithReader(out, over *os.File) {
	defer over.Close()
	fds := []unix.PollFd{{Fd: int32(out.Fd())}, {Fd: int32(over.Fd())}}
	_, err := unix.Poll(fds, -1)
	for err == unix.EINTR {
		_, err = unix.Poll(fds, -1)
	}
	if err == nil && fds[0].Revents&(unix.POLLERR|unix.POLLHUP) != 0 {
		s.Close()
	}
}

// giveBoth passes a stream of two descriptors to the process.
func (p *process) giveBoth(stream *pipes) error {
	_, _, err := p.control.WriteMsgUnix([]byte{messageConn}, unix.UnixRights(stream.fds[0], stream.fds[1]), nil)
	return err
}

// pipes is a stream that comes in by one descriptor and goes out by another one, as a net.Conn.
type pipes struct {
	in, out *os.File
	fds     [2]int
	blocks  [2]bool // whether reads and writes of other owners of the descriptors waited before
	// progress is told whether a frame is written in part; nil: nobody is.
	progress *crash.Progress

	mu      sync.Mutex // guards what follows
	written transport.Boundary
}

// newPipes makes a stream, which owns the descriptors.
func newPipes(in, out int, progress *crash.Progress) (*pipes, error) {
	p := &pipes{fds: [2]int{in, out}, progress: progress}
	var errs [2]error
	for i, fd := range p.fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		p.blocks[i] = err == nil && flags&unix.O_NONBLOCK == 0
		errs[i] = errors.Join(os.NewSyscallError("fcntl", err), syscall.SetNonblock(fd, true))
	}
	p.in, p.out = os.NewFile(uintptr(in), "in"), os.NewFile(uintptr(out), "out")
	if err := errors.Join(errs[:]...); err != nil {
		_ = p.Close()
		return nil, err
	}
	return p, nil
}

// dupPipes makes a stream of two files, which stay open.
func dupPipes(in, out *os.File) (*pipes, error) {
	var fds [2]int
	for i, f := range []*os.File{in, out} {
		fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 3)
		if err != nil {
			if i > 0 {
				_ = unix.Close(fds[0])
			}
			return nil, os.NewSyscallError("fcntl", err)
		}
		fds[i] = fd
	}
	return newPipes(fds[0], fds[1], nil)
}

// restore closes the stream, and makes the descriptors of other owners wait again.
func (p *pipes) restore() {
	for i, fd := range p.fds {
		if p.blocks[i] {
			_ = syscall.SetNonblock(fd, false)
		}
	}
	_ = p.Close()
}

func (p *pipes) Read(b []byte) (int, error) { return p.in.Read(b) }

// wholeBytes is how many bytes a pipe takes at once or not at all: the least PIPE_BUF of POSIX. A process that is
// killed while it writes a short frame has written all of it or nothing.
const wholeBytes = 512

func (p *pipes) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	next := p.written
	next.Pass(b)
	if len(b) > wholeBytes || !p.written.Whole() || !next.Whole() {
		p.progress.Cut(true)
	}
	n, err := p.out.Write(b)
	p.written.Pass(b[:n])
	p.progress.Cut(!p.written.Whole())
	return n, err
}

// CloseWrite lets go of the descriptor for writing. The client's stream ends when the worker does.
func (p *pipes) CloseWrite() error { return p.out.Close() }

func (p *pipes) Close() error { return errors.Join(p.in.Close(), p.out.Close()) }

func (p *pipes) SetDeadline(t time.Time) error {
	return errors.Join(p.SetReadDeadline(t), p.SetWriteDeadline(t))
}

func (p *pipes) SetReadDeadline(t time.Time) error  { return p.in.SetReadDeadline(t) }
func (p *pipes) SetWriteDeadline(t time.Time) error { return p.out.SetWriteDeadline(t) }

// SyscallConn is that of the descriptor for reading.
func (p *pipes) SyscallConn() (syscall.RawConn, error) { return p.in.SyscallConn() }

func (p *pipes) LocalAddr() net.Addr  { return pipeAddr{} }
func (p *pipes) RemoteAddr() net.Addr { return pipeAddr{} }

type pipeAddr struct{}

func (pipeAddr) Network() string { return "stdio" }
func (pipeAddr) String() string  { return "-" }
