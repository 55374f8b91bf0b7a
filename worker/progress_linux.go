// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker

import (
	"os"

	"golang.org/x/sys/unix"
)

// memoryFile makes a file in memory that no other process can open.
func memoryFile() (*os.File, error) {
	fd, err := unix.MemfdCreate("progress", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	return os.NewFile(uintptr(fd), "progress"), nil
}
