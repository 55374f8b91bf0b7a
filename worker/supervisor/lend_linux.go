// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// newMemory makes a file in memory, which ends with its last descriptor. Its size cannot change, so a process that
// writes more than it has asked for gets an error.
func newMemory(bytes uint64) (*os.File, error) {
	fd, err := unix.MemfdCreate("mycelya-pass", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "memory")
	if err = f.Truncate(int64(bytes)); err == nil {
		_, err = unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_GROW|unix.F_SEAL_SHRINK|unix.F_SEAL_SEAL)
	}
	if err != nil {
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
