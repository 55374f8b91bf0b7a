// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package transport

import (
	"errors"
	"net"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxFiles bounds the descriptors that have arrived and that File has not returned. A read ends after a descriptor,
// so a correct peer has at most one of them here, however many frames the read buffer holds.
const maxFiles = 2

// fileReader reads a unix socket and queues the descriptors that come with the bytes.
type fileReader struct {
	c       *net.UnixConn
	control []byte // buffer for the descriptors of one read

	mu     sync.Mutex
	files  []*os.File
	closed bool
}

func newFileReader(c net.Conn) *fileReader {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil
	}
	return &fileReader{c: u, control: make([]byte, unix.CmsgSpace(4*maxFiles))}
}

func (f *fileReader) Read(p []byte) (int, error) {
	n, controls, flags, _, err := f.c.ReadMsgUnix(p, f.control)
	if err != nil {
		return 0, err
	}
	if controls > 0 || flags&unix.MSG_CTRUNC != 0 {
		if err := f.keep(f.control[:controls], flags); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// keep queues the descriptors of one read. If there are too many, it closes them and fails.
func (f *fileReader) keep(control []byte, flags int) error {
	var fds []int
	messages, err := unix.ParseSocketControlMessage(control)
	for i := range messages {
		more, rerr := unix.ParseUnixRights(&messages[i])
		err = errors.Join(err, rerr)
		fds = append(fds, more...)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed || flags&unix.MSG_CTRUNC != 0 || len(f.files)+len(fds) > maxFiles {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return ErrFrameFile
	}
	for _, fd := range fds {
		f.files = append(f.files, os.NewFile(uintptr(fd), "from the peer"))
	}
	return err
}

func (f *fileReader) take() *os.File {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.files) == 0 {
		return nil
	}
	file := f.files[0]
	f.files = f.files[1:]
	return file
}

func (f *fileReader) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for _, file := range f.files {
		_ = file.Close()
	}
	f.files = nil
}

// writeFile writes bytes, with a descriptor on the first one. It may write fewer bytes; if it writes none, the
// descriptor was not sent.
func writeFile(c net.Conn, p []byte, fd int) (int, error) {
	u, ok := c.(*net.UnixConn)
	if !ok {
		return 0, errors.New("not a unix socket")
	}
	n, _, err := u.WriteMsgUnix(p, unix.UnixRights(fd), nil)
	return max(n, 0), err
}
