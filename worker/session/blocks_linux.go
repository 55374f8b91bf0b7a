// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package session

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// checkMemory requires that a descriptor is a memory file that is sealed against shrinking. Files of hugetlbfs can be
// sealed too, but are refused: the system may run out of their pages at any read.
func checkMemory(file *os.File, bytes uint64) error {
	if err := checkSize(file, bytes); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Fstatfs(int(file.Fd()), &fs); err != nil {
		return err
	}
	if fs.Type != unix.TMPFS_MAGIC {
		return errors.New("it is a file, not memory")
	}
	seals, err := unix.FcntlInt(file.Fd(), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("its seals cannot be read: %w", err)
	}
	if seals&unix.F_SEAL_SHRINK == 0 {
		return errors.New("it is not sealed against shrinking")
	}
	return nil
}

func mapMemory(file *os.File, bytes uint64) ([]byte, error) {
	return unix.Mmap(int(file.Fd()), 0, int(bytes), unix.PROT_READ, unix.MAP_SHARED)
}

func unmapMemory(b []byte) { _ = unix.Munmap(b) }

// mapPages maps pages before they are used, which takes a third of the time of faults. Systems before Linux 5.14 do
// not know it, and then there are faults.
func mapPages(b []byte, write bool) {
	advice := unix.MADV_POPULATE_READ
	if write {
		advice = unix.MADV_POPULATE_WRITE
	}
	if len(b) > 0 {
		_ = unix.Madvise(b, advice)
	}
}
