// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"fmt"
	"os"
	"os/exec"
	goruntime "runtime"
	"testing"

	"github.com/mycelya/mycelya/worker/supervisor"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// hardenedProcess prints the outcome of system calls after a function has locked the process down.
func hardenedProcess(lockDown func() error) {
	limits := supervisor.Limits{Memory: 8 << 30, CPUSeconds: 3600}
	fmt.Println("limits", limits.Apply())
	started := make(chan error)
	thread := make(chan struct{})
	go func() { // a thread that exists before
		goruntime.LockOSThread()
		<-thread
		started <- exec.Command("/bin/true").Run()
	}()
	fmt.Println("lock down", lockDown())
	close(thread)
	fmt.Println("exec in another thread", <-started)
	for name, family := range map[string]int{
		"unix": unix.AF_UNIX, "inet": unix.AF_INET, "inet6": unix.AF_INET6, "packet": unix.AF_PACKET,
	} {
		_, err := unix.Socket(family, unix.SOCK_STREAM, 0)
		fmt.Println("socket", name, err)
	}
	fmt.Println("signal to itself", unix.Kill(os.Getpid(), 0))
	fmt.Println("signal to the parent", unix.Kill(os.Getppid(), 0))
	_, _, fork := unix.RawSyscall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0)
	fmt.Println("fork", fork)
	fmt.Println("ptrace", unix.PtraceAttach(os.Getppid()))
	fmt.Println("mount", unix.Mount("none", "/tmp", "tmpfs", 0, ""))
	done := make(chan bool)
	for range 20 { // new threads
		go func() { goruntime.LockOSThread(); done <- true }()
		<-done
	}
	var core unix.Rlimit
	fmt.Println("core", unix.Getrlimit(unix.RLIMIT_CORE, &core), core.Max)
}

func TestAHardenedProcess(t *testing.T) {
	testHardened(t, hardenedArgument, "socket inet operation not permitted\n", "socket inet6 operation not permitted\n")
}

// TestAHardenedHelper: it may connect, and nothing else that a session may not.
func TestAHardenedHelper(t *testing.T) {
	testHardened(t, hardenedHelperArgument, "socket inet <nil>\n")
}

func testHardened(t *testing.T, argument string, sockets ...string) {
	t.Helper()
	out, err := exec.Command(os.Args[0], argument).CombinedOutput()
	require.NoError(t, err, string(out))
	text := string(out)
	for _, want := range append(sockets,
		"limits <nil>\n", "lock down <nil>\n",
		"exec in another thread fork/exec /bin/true: operation not permitted\n",
		"socket unix <nil>\n",
		"socket packet operation not permitted\n", "signal to itself <nil>\n",
		"signal to the parent operation not permitted\n", "fork operation not permitted\n",
		"ptrace operation not permitted\n", "mount operation not permitted\n", "core <nil> 0\n",
	) {
		require.Contains(t, text, want)
	}
}
