// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"os"
	"os/exec"
	goruntime "runtime"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func init() { goruntime.LockOSThread() } // so that no test runs on the process's first thread

// coresOf is the set of cores that a thread may run on; thread 0 is the calling thread.
func coresOf(t *testing.T, thread int) unix.CPUSet {
	var out unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(thread, &out))
	return out
}

func TestAThreadLeavesTheCoreOfTheRecordingThread(t *testing.T) {
	goruntime.LockOSThread() // never unlocked: the thread, whose cores are changed, ends here
	process := os.Getpid()
	all := coresOf(t, process)
	if all.Count() < 2 {
		t.Skip("owner: runtime. The process has one core: no other core to move to")
	}
	require.NoError(t, unix.SchedSetaffinity(0, &all))
	var core atomic.Int64
	stepAside(&core)
	require.Equal(t, all, coresOf(t, 0), "no thread has recorded yet")

	for range 2 { // in the second round the recording thread has moved to this thread's core
		want := all
		for i := 0; i < 1000 && coresOf(t, 0) != want || want == all; i++ { // until the thread hasn't moved in between
			at := here()
			core.Store(at)
			stepAside(&core)
			want = all
			want.Clear(int(at - 1))
		}
		require.Equal(t, want, coresOf(t, 0))
	}

	var one unix.CPUSet
	one.Set(int(here() - 1))
	require.NoError(t, unix.SchedSetaffinity(process, &one))
	defer func() { require.NoError(t, unix.SchedSetaffinity(process, &all)) }()
	before := coresOf(t, 0)
	core.Store(here())
	stepAside(&core)
	require.Equal(t, before, coresOf(t, 0), "a process with one core stays on it")
}

func TestWhatIsStartedHasAllCoresOfTheProcess(t *testing.T) {
	goruntime.LockOSThread() // never unlocked: the thread, whose cores are changed, ends here
	all := coresOf(t, os.Getpid())
	var one unix.CPUSet
	one.Set(int(here() - 1))
	require.NoError(t, unix.SchedSetaffinity(0, &one))
	c := exec.Command("sleep", "60")
	onAllCores(func() { require.NoError(t, c.Start()) })
	defer func() { _ = c.Wait() }()
	defer func() { require.NoError(t, c.Process.Kill()) }()
	require.Equal(t, all, coresOf(t, c.Process.Pid))
}
