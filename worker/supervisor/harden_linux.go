// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// dieWithParent makes the system kill a process when the thread that starts it has ended.
func dieWithParent(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// CloseInherited keeps descriptors that this process has inherited from its parent away from the processes that it
// starts.
func CloseInherited() {
	const all = ^uint(0) >> 1
	_ = unix.CloseRange(3, min(all, 1<<31-1), unix.CLOSE_RANGE_CLOEXEC)
}

// oomKills returns how many processes of this process's control group the system has killed for lack of memory; 0 if it
// is not known.
func oomKills() uint64 {
	group, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	_, path, _ := strings.Cut(string(group), "0::")
	path, _, _ = strings.Cut(path, "\n")
	events, err := os.ReadFile(filepath.Join("/sys/fs/cgroup", path, "memory.events"))
	if err != nil {
		return 0
	}
	for line := range bytes.Lines(events) {
		if text, ok := strings.CutPrefix(string(line), "oom_kill "); ok {
			n, _ := strconv.ParseUint(strings.TrimSpace(text), 10, 64)
			return n
		}
	}
	return 0
}
