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

// stepAside takes the thread off the core of the thread that records, if it finds itself there. It is for who has just
// slept. Where a thread has run last Linux puts it first, and with few cores it looks for no other: a sender that wakes
// on the recording thread's core waits there until that sleeps, for milliseconds, while the next core sleeps.
func stepAside(core *atomic.Int64) {
	at := here()
	if at == 0 || at != core.Load() {
		return
	}
	process := os.Getpid() // and its first thread, whose cores are the user's to choose
	var cores unix.CPUSet
	if unix.Gettid() == process || unix.SchedGetaffinity(process, &cores) != nil {
		return
	}
	cores.Clear(int(at - 1))
	if cores.Count() > 0 {
		_ = unix.SchedSetaffinity(0, &cores) // if it fails all stays as it is
	}
}

// onAllCores calls f on a thread that has stepped aside of nothing, for what f starts keeps to the cores of its thread.
func onAllCores(f func()) {
	goruntime.LockOSThread()
	defer goruntime.UnlockOSThread()
	var cores unix.CPUSet
	if unix.SchedGetaffinity(os.Getpid(), &cores) == nil {
		_ = unix.SchedSetaffinity(0, &cores)
	}
	f()
}

// here is the core that the thread runs on, from 1 on; 0: not known.
func here() int64 {
	var core uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0); errno != 0 {
		return 0
	}
	return int64(core) + 1
}
