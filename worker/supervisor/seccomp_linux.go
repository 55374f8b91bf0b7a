// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package supervisor

import (
	"fmt"
	"os"
	goruntime "runtime"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"
)

// denied are the system calls that a session never needs once its backend is loaded: those that start programs, change
// the system, read other processes, or have a record of faults in the kernel.
var denied = append([]uint32{
	unix.SYS_EXECVE, unix.SYS_EXECVEAT,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP,
	unix.SYS_PIDFD_OPEN, unix.SYS_PIDFD_GETFD, unix.SYS_PIDFD_SEND_SIGNAL,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_MOVE_MOUNT, unix.SYS_OPEN_TREE,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG, unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR,
	unix.SYS_SETNS, unix.SYS_UNSHARE,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE,
	unix.SYS_KEXEC_LOAD, unix.SYS_KEXEC_FILE_LOAD, unix.SYS_REBOOT, unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
	unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY, unix.SYS_KEYCTL,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME,
	unix.SYS_SETHOSTNAME, unix.SYS_SETDOMAINNAME, unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_VHANGUP,
	unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_NAME_TO_HANDLE_AT,
}, deniedHere...)

// toServe are those with which a process takes connections. Only a session that computes with other workers does.
var toServe = []uint32{unix.SYS_LISTEN, unix.SYS_ACCEPT, unix.SYS_ACCEPT4}

// toItself are the system calls whose first argument is a process, and that may name this process only.
var toItself = []uint32{unix.SYS_KILL, unix.SYS_TGKILL, unix.SYS_RT_SIGQUEUEINFO, unix.SYS_RT_TGSIGQUEUEINFO}

// Families of sockets that a session may open, and those that a helper may, or a session with peers.
var (
	hostSockets    = []uint32{unix.AF_UNIX, unix.AF_NETLINK}
	networkSockets = []uint32{unix.AF_UNIX, unix.AF_NETLINK, unix.AF_INET, unix.AF_INET6}
)

// filter returns the program that decides about each system call. CUDA's driver needs files, ioctl, mmap, threads, and
// sockets of this host, which are all left alone. serves: the process takes connections.
func filter(pid uint32, sockets []uint32, serves bool) []unix.SockFilter {
	const (
		number, arch, arg0 = 0, 4, 16 // offsets in seccomp_data
		load               = unix.BPF_LD | unix.BPF_W | unix.BPF_ABS
		equal              = unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K
		any                = unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K
		least              = unix.BPF_JMP | unix.BPF_JGE | unix.BPF_K
		answer             = unix.BPF_RET | unix.BPF_K
		foreign            = 0x40000000 // from this number on: another ABI of x86-64
	)
	allow := unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ALLOW}
	refuse := unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.EPERM)}
	p := []unix.SockFilter{
		{Code: load, K: arch}, {Code: equal, K: auditArch, Jt: 1}, refuse,
		{Code: load, K: number}, {Code: least, K: foreign, Jf: 1}, refuse,
	}
	refused := denied
	if !serves {
		refused = slices.Concat(denied, toServe)
	}
	for _, n := range refused {
		p = append(p, unix.SockFilter{Code: equal, K: n, Jf: 1}, refuse)
	}
	for _, n := range toItself {
		p = append(p, unix.SockFilter{Code: equal, K: n, Jf: 4},
			unix.SockFilter{Code: load, K: arg0}, unix.SockFilter{Code: equal, K: pid, Jf: 1}, allow, refuse)
	}
	n := uint8(len(sockets))
	p = append(p, unix.SockFilter{Code: equal, K: unix.SYS_SOCKET, Jf: n + 3}, unix.SockFilter{Code: load, K: arg0})
	for i, family := range sockets {
		jump := unix.SockFilter{Code: equal, K: family, Jt: n - 1 - uint8(i)}
		if i == len(sockets)-1 {
			jump.Jf = 1
		}
		p = append(p, jump)
	}
	p = append(p, allow, refuse)
	// A new thread, but no new process. The C library uses clone if clone3, whose flags are in memory, does not exist.
	p = append(p, unix.SockFilter{Code: equal, K: unix.SYS_CLONE, Jf: 4},
		unix.SockFilter{Code: load, K: arg0}, unix.SockFilter{Code: any, K: unix.CLONE_THREAD, Jf: 1}, allow, refuse)
	p = append(p, unix.SockFilter{Code: equal, K: unix.SYS_CLONE3, Jf: 1},
		unix.SockFilter{Code: answer, K: unix.SECCOMP_RET_ERRNO | uint32(unix.ENOSYS)})
	return append(p, allow)
}

// LockDown takes from all threads of this process the system calls that a session does not need, for good. It must be
// called when the backend is loaded, because CUDA's driver may start a program while it loads. An error means that this
// system cannot do it; nothing has changed then.
func LockDown() error { return lockDown(hostSockets, false) }

// LockDownPeer does the same for a session that computes with other workers: they connect to each other.
func LockDownPeer() error { return lockDown(networkSockets, true) }

// LockDownHelper does the same for a process that fetches weights, which may connect to servers.
func LockDownHelper() error { return lockDown(networkSockets, false) }

func lockDown(sockets []uint32, serves bool) error {
	if auditArch == 0 {
		return fmt.Errorf("the system calls of this processor are not known")
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl", err)
	}
	return install(filter(uint32(os.Getpid()), sockets, serves))
}

// install gives all threads of the process a filter of their system calls.
func install(program []unix.SockFilter) error {
	fprog := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	var pin goruntime.Pinner
	pin.Pin(&program[0])
	defer pin.Unpin()
	r, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, unix.SECCOMP_FILTER_FLAG_TSYNC,
		uintptr(unsafe.Pointer(&fprog)))
	switch {
	case errno != 0:
		return os.NewSyscallError("seccomp", errno)
	case r != 0:
		return fmt.Errorf("seccomp: thread %d has another filter", r)
	}
	return nil
}
