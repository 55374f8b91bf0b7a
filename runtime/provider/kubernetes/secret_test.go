// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package kubernetes

import (
	"bufio"
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

// TestWhoReadsTheCredentials: a node gives the file of a Secret to root and to the group of the pod, with mode 0440,
// and the worker runs as another user. It takes such a file, and no file that others can read.
func TestWhoReadsTheCredentials(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can start a worker as another user")
	}
	dir, err := os.MkdirTemp("", "mks")
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	program, err := os.ReadFile(workerPath)
	require.NoError(t, err)
	worker := filepath.Join(dir, "worker")
	require.NoError(t, os.WriteFile(worker, program, 0o755))
	_, credentials, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	text, err := credentials.Encode()
	require.NoError(t, err)
	file := filepath.Join(dir, "worker.pem")
	for _, c := range []struct {
		name              string
		owner, group      int
		mode              os.FileMode
		user              uint32
		works, mayNotRead bool
	}{
		{"a volume's", 0, defaultUser, 0o440, defaultUser, true, false},
		{"its own", defaultUser, defaultUser, 0o400, defaultUser, true, false},
		{"its own, and its group's", defaultUser, defaultUser, 0o440, defaultUser, false, false},
		{"everybody's", 0, defaultUser, 0o444, defaultUser, false, false},
		{"writable by the group", 0, defaultUser, 0o460, defaultUser, false, false},
		{"root's, and a group's", 0, defaultUser, 0o440, 0, false, false},
		{"root's alone", 0, 0, 0o400, defaultUser, false, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			_ = os.Remove(file)
			require.NoError(t, os.WriteFile(file, text, 0o600))
			require.NoError(t, os.Chown(file, c.owner, c.group))
			require.NoError(t, os.Chmod(file, c.mode))
			cmd := exec.Command(worker, "--backend", "ref", "--listen", "127.0.0.1:0", "--credentials", file, "--alone", "60s")
			cmd.Env, cmd.Dir = []string{"HOME=/nonexistent"}, "/"
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true,
				Credential: &syscall.Credential{Uid: c.user, Gid: c.user}}
			var log bytes.Buffer
			cmd.Stderr = &log
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, _ := bufio.NewReader(out).ReadString('\n')
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			require.Equal(t, c.works, strings.HasPrefix(line, "MYCELYA|"), log.String())
			if !c.works {
				require.Equal(t, !c.mayNotRead, strings.Contains(log.String(), "other users may read"), log.String())
			}
			require.NotContains(t, log.String(), "PRIVATE KEY")
		})
	}
}
