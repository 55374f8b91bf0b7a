// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package runtime

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/local"
	"github.com/mycelya/mycelya/trace"
)

// built is the folder of the worker program, "" if no test has needed it.
var built string

var buildWorker = sync.OnceValue(func() (err error) {
	if built, err = os.MkdirTemp("", "mrt"); err != nil {
		return err
	}
	build := exec.Command("go", "build", "-o", built, "github.com/mycelya/mycelya/worker/cmd/mycelya-worker")
	if out, err := build.CombinedOutput(); err != nil {
		return errors.Join(err, errors.New(string(out)))
	}
	return nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if built != "" {
		_ = os.RemoveAll(built)
	}
	os.Exit(code)
}

// startReal opens device 0 on a real worker with the reference backend, and runs a program there. It returns the number
// of the session's process, and how the worker is named.
func startReal(t *testing.T, p func(path string) provider.Provider) (r *Runtime, pid int, worker string) {
	t.Helper()
	require.NoError(t, buildWorker())
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	r = New(reluFrontend{}, func(Paths) (provider.Provider, error) {
		return p(filepath.Join(built, "mycelya-worker")), nil
	}, func(int32) Mailbox { return NewMailbox() })
	require.NoError(t, r.Open(0, Paths{}, nil))
	t.Cleanup(func() { r.Close(0) })
	require.NoError(t, upload0(r, 1, make([]byte, 16)))
	require.NoError(t, r.Flush(0, relu(1, 2), func() {}))
	require.NoError(t, synced(t, r))
	s, err := r.session(0)
	require.NoError(t, err)
	s.mu.Lock()
	defer s.mu.Unlock()
	return r, int(s.hello.Pid), s.instance.Handle().String()
}

func localRef(path string) provider.Provider {
	return local.Provider{Paths: local.Spec{Worker: path, Backend: "ref"}}
}

// synced waits for all that was sent.
func synced(t *testing.T, r *Runtime) error {
	t.Helper()
	ticket, err := r.Sync(0, trace.Place{})
	if err != nil && err != ErrPending {
		return err
	}
	return wait(t, r, ticket)
}

const restartText = " All tensors on it are gone. Call torch.mycelya.restart(0) to use the device again."

// crashText matches the text of an error about a session's process that a signal has ended.
func crashText(pid int, worker, signal string) string {
	return regexp.QuoteMeta(fmt.Sprintf("mycelya:0 is lost: the process of its session (%d, of worker %s) was ended by "+
		"signal %s, ", pid, worker, signal)) + `(?:after the steps of|in) call \d+.*\. ` +
		`Its last programs and calls are in (/\S+)\.` + regexp.QuoteMeta(restartText)
}

func TestACrashNamesItsFolder(t *testing.T) {
	r, pid, worker := startReal(t, localRef)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
	err := synced(t, r)
	require.Regexp(t, "^"+crashText(pid, worker, "segmentation fault")+"$", err.Error())
	dir := regexp.MustCompile(crashText(pid, worker, "segmentation fault")).FindStringSubmatch(err.Error())[1]
	text, err := os.ReadFile(filepath.Join(dir, "crash.json"))
	require.NoError(t, err)
	require.Contains(t, string(text), `"signal": "segmentation fault"`)
}

func TestAStoppedWorkerSaysSo(t *testing.T) {
	r, _, worker := startReal(t, localRef)
	s, err := r.session(0)
	require.NoError(t, err)
	pid, err := strconv.Atoi(s.instance.Handle().ID)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	for err = nil; err == nil; err = synced(t, r) { // as a program that does not stop
	}
	require.EqualError(t, err, fmt.Sprintf("mycelya:0 is lost: its worker (%s) ended the session. It said: The worker is "+
		"being stopped.%s", worker, restartText))
}
