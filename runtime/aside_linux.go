// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"os"
	goruntime "runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// stepAside moves the thread off the CPU core of the recording thread, if it runs there. Threads that have just woken
// call it. Linux wakes a thread on the core where it ran last, and with few cores does not look for another one: a
// sender that wakes on the recording thread's core waits there for milliseconds, while the next core is idle.
func stepAside(core *atomic.Int64) {
	at := here()
	if at == 0 || at != core.Load() {
		return
	}
	process := os.Getpid() // also its first thread, whose cores the user chooses
	var cores unix.CPUSet
	if unix.Gettid() == process || unix.SchedGetaffinity(process, &cores) != nil {
		return
	}
	cores.Clear(int(at - 1))
	if cores.Count() > 0 {
		_ = unix.SchedSetaffinity(0, &cores) // if it fails, the thread stays where it is
	}
}

// onAllCores calls f on a thread that may use all cores of the process: what f starts inherits the cores of its
// thread.
func onAllCores(f func()) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var cores unix.CPUSet
	if unix.SchedGetaffinity(os.Getpid(), &cores) == nil {
		_ = unix.SchedSetaffinity(0, &cores)
	}
	f()
}

// here is the core that the thread runs on, from 1 on; 0 if it is not known.
func here() int64 {
	var core uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0); errno != 0 {
		return 0
	}
	return int64(core) + 1
}
