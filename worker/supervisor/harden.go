// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// Limits bound what a session's process may take. 0 is no limit.
type Limits struct {
	Memory     uint64 // bytes of private memory, without what is only reserved
	CPUSeconds uint64 // of all its threads together; then the system ends it with SIGXCPU
}

// Apply limits this process. A crash writes no core file: it would hold the tensors.
func (l Limits) Apply() error {
	if err := limit("core files", unix.RLIMIT_CORE, 0); err != nil {
		return err
	}
	if l.Memory > 0 {
		if err := limit("memory", unix.RLIMIT_DATA, l.Memory); err != nil {
			return err
		}
	}
	if l.CPUSeconds > 0 {
		return limit("processor time", unix.RLIMIT_CPU, l.CPUSeconds)
	}
	return nil
}

// limit lowers a limit of this process.
func limit(what string, resource int, most uint64) error {
	var now unix.Rlimit
	err := unix.Getrlimit(resource, &now)
	if err == nil {
		least := min(most, now.Max)
		err = unix.Setrlimit(resource, &unix.Rlimit{Cur: least, Max: least})
	}
	if err != nil {
		return fmt.Errorf("the limit of %s cannot be set to %d: %w", what, most, err)
	}
	return nil
}
