// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"io"
	"net"
	"os"
	"path/filepath"
	goruntime "runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/mycelya/mycelya/proto/transport"
)

const nobody = 65534

// dialAs connects as another user.
func dialAs(uid int, addr string) (c net.Conn, err error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		goruntime.LockOSThread() // never unlocked, so this thread, the only one with the other user, ends here
		const keep = ^uintptr(0)
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); e != 0 {
			err = e
			return
		}
		c, err = net.Dial("unix", addr)
	}()
	<-done
	return c, err
}

func TestOtherUsersAreRefused(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become another user")
	}
	s := serve(t, refBackend, 0)
	require.NoError(t, os.Chmod(filepath.Dir(s.addr), 0o711)) // so that the worker, not the folder's mode, must refuse
	require.NoError(t, os.Chmod(s.addr, 0o777))
	c, err := dialAs(nobody, s.addr)
	require.NoError(t, err)
	defer c.Close()
	require.NoError(t, c.SetDeadline(time.Now().Add(patience)))
	b, err := io.ReadAll(c)
	require.NoError(t, err)
	require.Empty(t, b, "the worker closes without sending a byte")
	require.Eventually(
		t,
		func() bool { return strings.Contains(s.log.String(), transport.ErrPeer.Error()) },
		patience,
		time.Millisecond,
	)
	s.connect(t)
}
