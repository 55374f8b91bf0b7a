// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package exec

import (
	"bufio"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// stream is a command's stdin and stdout as a net.Conn.
type stream struct {
	in   *os.File // the command's stdout
	out  *os.File // the command's stdin
	read *bufio.Reader
	open atomic.Bool // a client uses it
	once sync.Once
	gone chan struct{} // closed by Close
}

func newStream(in, out *os.File) *stream {
	return &stream{in: in, out: out, read: bufio.NewReaderSize(in, maxLine), gone: make(chan struct{})}
}

// line reads the first line, of at most so many bytes. What follows stays for Read.
func (s *stream) line(most int) (string, error) {
	var line strings.Builder
	for line.Len() < most {
		b, err := s.read.ReadByte()
		if err != nil {
			return line.String(), err
		}
		line.WriteByte(b)
		if b == '\n' {
			break
		}
	}
	return line.String(), nil
}

// use notes that a client has the stream, and alone says whether none has.
func (s *stream) use()        { s.open.Store(true) }
func (s *stream) alone() bool { return !s.open.Load() }

// Read implements net.Conn. Large reads pass the buffer by.
func (s *stream) Read(p []byte) (int, error) { return s.read.Read(p) }

// Write implements net.Conn.
func (s *stream) Write(p []byte) (int, error) { return s.out.Write(p) }

// Close implements net.Conn.
func (s *stream) Close() error {
	err := net.ErrClosed
	s.once.Do(func() {
		close(s.gone)
		err = errors.Join(s.out.Close(), s.in.Close())
	})
	return err
}

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error {
	return errors.Join(s.SetReadDeadline(t), s.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error { return s.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.out.SetWriteDeadline(t) }

// LocalAddr and RemoteAddr implement net.Conn.
func (s *stream) LocalAddr() net.Addr  { return addr{} }
func (s *stream) RemoteAddr() net.Addr { return addr{} }

type addr struct{}

func (addr) Network() string { return "stdio" }
func (addr) String() string  { return "-" }
