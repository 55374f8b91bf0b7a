// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package crash

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// Progress is memory that a session's process shares with the supervisor. The process notes there what it runs, and the
// supervisor reads it after the process has ended, however it ended.
type Progress struct {
	// The last call; 1 + the step that runs, 0 between calls; whether a frame is written in part; the number of calls;
	// when the last one began, in nanoseconds since 1970.
	Words *[5]uint64
	bytes []byte
}

const progressBytes = 4096

// NewProgress makes the memory, and the file that a process maps it from. journal: there is room for a Journal behind
// it.
func NewProgress(journal bool) (*Progress, *os.File, error) {
	f, err := memoryFile()
	if err != nil {
		return nil, nil, err
	}
	n := int64(progressBytes)
	if journal {
		n += journalBytes
	}
	err = f.Truncate(n)
	if journal && errors.Is(err, syscall.EFBIG) { // the client's limit of file sizes is the worker's, too
		err = f.Truncate(progressBytes)
	}
	if err == nil {
		err = sealMemory(f) // what this process has mapped must not go away
	}
	var p *Progress
	if err == nil {
		p, err = mapProgress(f, progressBytes)
	}
	if err != nil {
		_ = f.Close()
	}
	return p, f, err
}

// mapProgress maps the first bytes of a file. The file may be closed then.
func mapProgress(f *os.File, bytes int64) (*Progress, error) {
	b, err := syscall.Mmap(int(f.Fd()), 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, os.NewSyscallError("mmap", err)
	}
	return &Progress{Words: (*[5]uint64)(unsafe.Pointer(unsafe.SliceData(b))), bytes: b}, nil
}

// OpenProgress maps all of the memory that the supervisor has made.
func OpenProgress(f *os.File) (*Progress, *Journal, error) {
	info, err := f.Stat()
	if err != nil {
		return nil, nil, err
	}
	p, err := mapProgress(f, info.Size())
	if err != nil {
		return nil, nil, err
	}
	return p, journalIn(p.bytes), nil
}

// Note notes the call and the step that begin; Idle notes the end of the call's steps. A nil Progress takes notes, too.
func (p *Progress) Note(call uint64, step uint32) {
	if p != nil {
		atomic.StoreUint64(&p.Words[0], call)
		atomic.StoreUint64(&p.Words[1], 1+uint64(step))
	}
}

// Idle notes that no step runs.
func (p *Progress) Idle() {
	if p != nil {
		atomic.StoreUint64(&p.Words[1], 0)
	}
}

// Cut notes whether the end of what was written to the client is inside a frame.
func (p *Progress) Cut(yes bool) {
	if p == nil {
		return
	}
	v := uint64(0)
	if yes {
		v = 1
	}
	atomic.StoreUint64(&p.Words[2], v)
}

// Called notes a call that begins.
func (p *Progress) Called(at time.Time) {
	if p != nil {
		atomic.AddUint64(&p.Words[3], 1)
		atomic.StoreUint64(&p.Words[4], uint64(at.UnixNano()))
	}
}

// CalledIn reads, in the file of a Progress, what Called has noted; zeros if the file is closed: the process has ended.
func CalledIn(memory io.ReaderAt) (calls uint64, last time.Time) {
	var b [16]byte
	if _, err := memory.ReadAt(b[:], 3*8); err != nil {
		return 0, time.Time{}
	}
	if at := binary.NativeEndian.Uint64(b[8:]); at > 0 {
		last = time.Unix(0, int64(at))
	}
	return binary.NativeEndian.Uint64(b[:]), last
}

func (p *Progress) IsCut() bool { return atomic.LoadUint64(&p.Words[2]) != 0 }

// Last returns the last call, and 1 + the step that runs, 0 if none does.
func (p *Progress) Last() (call, step uint64) {
	return atomic.LoadUint64(&p.Words[0]), atomic.LoadUint64(&p.Words[1])
}

func (p *Progress) Unmap() { _ = syscall.Munmap(p.bytes) }
