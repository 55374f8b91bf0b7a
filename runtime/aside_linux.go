// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	goruntime "runtime"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// aside keeps a thread off the core of the thread that records. Where a thread has run last Linux puts it first, and with few cores it
// looks for no other: a sender that wakes on the recording thread's core waits there until that sleeps, for milliseconds, while the next
// core sleeps.
type aside struct {
	core *atomic.Int64 // of Credits
	left int64         // the core that the thread may not use, from 1 on; 0: none
}

// newAside locks the goroutine to its thread, which ends with it.
func newAside(core *atomic.Int64) *aside {
	goruntime.LockOSThread()
	return &aside{core: core}
}

// step is for a thread that has just slept. If it is on the recording thread's core it leaves that, and keeps off it.
func (a *aside) step() {
	core := a.core.Load()
	if core == 0 || core == a.left || core != here() {
		return
	}
	var cores unix.CPUSet
	if unix.SchedGetaffinity(0, &cores) != nil {
		return
	}
	if a.left != 0 {
		cores.Set(int(a.left - 1))
	}
	cores.Clear(int(core - 1))
	if cores.Count() > 0 && unix.SchedSetaffinity(0, &cores) == nil {
		a.left = core
	}
}

// here is the core that the thread runs on, from 1 on; 0: not known.
func here() int64 {
	var core uint32
	if _, _, errno := unix.RawSyscall(unix.SYS_GETCPU, uintptr(unsafe.Pointer(&core)), 0, 0); errno != 0 {
		return 0
	}
	return int64(core) + 1
}
