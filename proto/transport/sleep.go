// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"crypto/tls"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// sleeper waits for bytes of a socket in the kernel, on the caller's thread.
type sleeper struct {
	raw syscall.RawConn
	fds [1]unix.PollFd
}

func newSleeper(c net.Conn) *sleeper {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	return sleeperOf(u)
}

func sleeperOf(c syscall.Conn) *sleeper {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil
	}
	return &sleeper{raw: raw}
}

// sleep returns when a read would not block.
func (s *sleeper) sleep() error {
	return s.raw.Read(func(fd uintptr) bool {
		s.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		for {
			if _, err := unix.Poll(s.fds[:], -1); err != unix.EINTR {
				return true
			}
		}
	})
}

// ready reports whether sleep would return within a time. A nil sleeper is never ready.
func (s *sleeper) ready(within time.Duration) bool {
	if s == nil {
		return false
	}
	ready := false
	_ = s.raw.Control(func(fd uintptr) {
		s.fds[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		ready = readyWithin(s.fds[:], within)
	})
	return ready
}

// wake ends a sleep by shutting down the socket for reading.
func (s *sleeper) wake() {
	_ = s.raw.Control(func(fd uintptr) { _ = unix.Shutdown(int(fd), unix.SHUT_RD) })
}

// sleepingSocket is a socket whose reads can wait in the kernel, for use below TLS.
type sleepingSocket struct {
	Socket
	sleeper atomic.Pointer[sleeper]
	closed  atomic.Bool
	// patience is how long a read waits in the kernel, and limited whether it has a limit. Only the reader uses them.
	patience time.Duration
	limited  bool

	mu     sync.Mutex // guards what follows
	corked bool
	held   []byte // written while corked
}

// Sleep makes reads wait in the kernel, or in Go's poller again. It must not be called during a read.
func (s *sleepingSocket) Sleep(yes bool) {
	if !yes {
		s.sleeper.Store(nil)
		return
	}
	z := sleeperOf(s.Socket)
	if s.sleeper.Store(z); z != nil && s.closed.Load() {
		z.wake() // Close did not see the sleeper
	}
}

// ReadWithin calls a function that reads, through TLS or not. A read for which no byte comes for a time fails with
// os.ErrDeadlineExceeded, if reads wait in the kernel; TLS goes on after such an error. Only TLS knows whether it needs
// bytes of the socket: it keeps bytes that it has read ahead.
func (s *sleepingSocket) ReadWithin(d time.Duration, read func() (int, error)) (int, error) {
	s.patience, s.limited = d, true
	defer func() { s.limited = false }()
	return read()
}

func (s *sleepingSocket) Read(p []byte) (int, error) {
	if z := s.sleeper.Load(); z != nil {
		if s.limited && !z.ready(s.patience) {
			return 0, os.ErrDeadlineExceeded
		}
		if err := z.sleep(); err != nil {
			return 0, err
		}
		if s.closed.Load() {
			return 0, net.ErrClosed
		}
	}
	return s.Socket.Read(p)
}

// Cork holds what is written until Uncork, which writes it at once: TLS makes records of 16 KiB, and would pass each of
// them to the system alone.
func (s *sleepingSocket) Cork() {
	s.mu.Lock()
	s.corked = true
	s.mu.Unlock()
}

// Uncork writes what was held.
func (s *sleepingSocket) Uncork() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.corked = false
	_, err := s.Socket.Write(s.held)
	s.held = s.held[:0]
	return err
}

func (s *sleepingSocket) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.corked {
		return s.Socket.Write(p)
	}
	s.held = append(s.held, p...)
	return len(p), nil
}

func (s *sleepingSocket) Close() error {
	s.closed.Store(true)
	if z := s.sleeper.Load(); z != nil {
		z.wake()
	}
	return s.Socket.Close()
}

// sleeping is a connection whose reads can wait in the kernel.
type sleeping interface {
	Sleep(yes bool)
}

// sleepingOf returns the part of a connection whose reads can wait in the kernel; nil if it has none.
func sleepingOf(c net.Conn) sleeping {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	s, _ := c.(sleeping)
	return s
}

// below is a connection as it is used below TLS.
func below(c net.Conn) net.Conn {
	if s, ok := c.(Socket); ok {
		return &sleepingSocket{Socket: s}
	}
	return c
}
