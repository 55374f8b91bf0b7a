// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

//go:build !linux

package supervisor

import (
	"errors"
	"os/exec"
)

// Elsewhere a session's process ends when its control socket ends: Channel.Wait.
func dieWithParent(*exec.Cmd) {}

// CloseInherited has no meaning here.
func CloseInherited() {}

func oomKills() uint64 { return 0 }

// LockDown needs Linux.
func LockDown() error { return errors.New("this system has no filter of system calls") }

// LockDownPeer needs Linux.
func LockDownPeer() error { return LockDown() }

// LockDownHelper needs Linux.
func LockDownHelper() error { return LockDown() }
