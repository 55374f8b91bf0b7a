// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package supervisor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// newMemory makes a file without a name, which ends with its last descriptor. The system keeps it in memory while it
// can.
func newMemory(bytes uint64) (*os.File, error) {
	f, err := os.CreateTemp("", "mycelya-pass-*")
	if err != nil {
		return nil, err
	}
	if err = errors.Join(os.Remove(f.Name()), f.Truncate(int64(bytes))); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// mapLoan maps the first bytes of a file of newMemory.
func mapLoan(f *os.File, bytes uint64, write bool) ([]byte, error) {
	if bytes == 0 {
		return nil, nil
	}
	protection := unix.PROT_READ
	if write {
		protection |= unix.PROT_WRITE
	}
	b, err := unix.Mmap(int(f.Fd()), 0, int(bytes), protection, unix.MAP_SHARED)
	return b, os.NewSyscallError("mmap", err)
}

func unmapLoan(b []byte) {
	if b != nil {
		_ = unix.Munmap(b)
	}
}
