// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import "golang.org/x/sys/unix"

const auditArch = unix.AUDIT_ARCH_X86_64

// deniedHere are system calls of this processor only.
var deniedHere = []uint32{unix.SYS_FORK, unix.SYS_VFORK, unix.SYS_IOPERM, unix.SYS_IOPL, unix.SYS_MODIFY_LDT,
	unix.SYS_USELIB}
