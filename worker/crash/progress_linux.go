// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package crash

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile makes a file in memory that no other process can open.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("progress", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "progress"), nil
}

// sealMemory fixes the size of such a file for good.
func sealMemory(f *os.File) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	return os.NewSyscallError("fcntl", err)
}
