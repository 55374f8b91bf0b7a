// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package local

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/runtime/provider"
	"github.com/mycelya/mycelya/runtime/provider/process"
	"github.com/mycelya/mycelya/runtime/provider/providertest"
)

var workerPath string // the real worker, built by TestMain

// The test program is also the client that some tests kill.
const clientEnv = "CLIENT_OF_WORKER"

func TestMain(m *testing.M) {
	if path := os.Getenv(clientEnv); path != "" {
		client(path)
		return
	}
	providertest.Main(m, &workerPath)
}

// client starts a worker, prints its process number, and waits to be killed.
func client(path string) {
	// The worker logs when the connection breaks, but its stderr has no reader then.
	in, err := Start(context.Background(), Spec{Worker: path, Backend: "ref", LogLevel: "debug"})
	if err == nil {
		_, err = in.Dial(context.Background())
	}
	if err != nil {
		fmt.Println("error", err)
		os.Exit(1)
	}
	fmt.Println(in.Handle().ID, in.(*instance).dir)
	select {}
}

func refSpec() Spec { return Spec{Worker: workerPath, Backend: "ref"} }

// alive reports whether a process runs. A zombie does not: an orphan's new parent may reap it late.
func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, rest, _ := strings.Cut(string(stat), ") ")
		return !strings.HasPrefix(rest, "Z")
	}
	return syscall.Kill(pid, 0) == nil
}

func gone(t *testing.T, pid int, dir string) {
	t.Helper()
	require.Eventually(t, func() bool {
		_, err := os.Stat(dir)
		return !alive(pid) && os.IsNotExist(err)
	}, time.Minute, 5*time.Millisecond, "process %d or folder %s is left", pid, dir)
}

func TestConformance(t *testing.T) {
	t.Run("unix socket", func(t *testing.T) { conform(t, nil) })
	t.Run("TCP", func(t *testing.T) { conform(t, map[string]string{"transport": "tcp"}) })
	t.Run("a far machine", func(t *testing.T) { conform(t, map[string]string{"rtt": "4ms", "rate": "1Gbit"}) })
}

func conform(t *testing.T, options map[string]string) {
	tmp, err := os.MkdirTemp("", "ml") // t.TempDir's path is too long for a socket
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(tmp) })
	t.Setenv("XDG_STATE_HOME", t.TempDir())
	t.Setenv("TMPDIR", tmp)
	providertest.Suite{
		Options:  options,
		Detaches: options["rtt"] == "",
		Make:     func(*testing.T) provider.Provider { return Provider{Paths: refSpec()} },
		Kill: func(h provider.Handle) {
			pid, _ := strconv.Atoi(h.ID)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		},
		Left: func(t *testing.T) (out []string) {
			entries, err := os.ReadDir(tmp)
			require.NoError(t, err)
			for _, e := range entries {
				out = append(out, e.Name())
			}
			return append(out, providertest.Processes(t, workerPath)...)
		},
	}.Run(t)
}

func started(t *testing.T, s Spec) *instance {
	t.Helper()
	in, err := Start(t.Context(), s)
	require.NoError(t, err)
	t.Cleanup(func() { _ = in.Stop(context.Background(), 0) })
	return in.(*instance)
}

func TestFolderIsPrivate(t *testing.T) {
	in := started(t, refSpec())
	info, err := os.Stat(in.dir)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o700, info.Mode())
}

func TestOwnSession(t *testing.T) {
	in := started(t, refSpec())
	pgid, err := syscall.Getpgid(in.cmd.Process.Pid)
	require.NoError(t, err)
	require.Equal(t, in.cmd.Process.Pid, pgid, "Ctrl-C in the client's terminal does not reach it")
}

func TestKilledClientTakesItsWorkerAlong(t *testing.T) {
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		c := exec.Command(os.Args[0])
		c.Env = append(os.Environ(), clientEnv+"="+workerPath)
		c.Stderr = os.Stderr
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		var pid int
		var dir string
		line, err := bufio.NewReader(out).ReadString('\n')
		require.NoError(t, err)
		_, err = fmt.Sscan(line, &pid, &dir)
		require.NoError(t, err, line)
		require.True(t, alive(pid))
		require.DirExists(t, dir)
		require.NoError(t, c.Process.Signal(sig))
		gone(t, pid, dir)
		require.Error(t, c.Wait())
	}
}

func TestStdinEOFEndsTheWorker(t *testing.T) {
	in := started(t, refSpec())
	require.NoError(t, in.pipes.In.Close())
	e, err := in.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, provider.Exit{Reason: provider.Done}, e)
	gone(t, in.cmd.Process.Pid, in.dir)
}

func TestKilledWorkerIsACrash(t *testing.T) {
	s := refSpec()
	s.LogLevel = "info"
	in := started(t, s)
	c, err := in.Dial(t.Context())
	require.NoError(t, err)
	defer c.Close()
	require.Eventually(
		t,
		func() bool { return strings.Contains(in.log.String(), "backend loaded") },
		time.Minute,
		time.Millisecond,
	)
	require.NoError(t, in.cmd.Process.Kill())
	e, err := in.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, provider.Crashed, e.Reason)
	require.Equal(t, -1, e.Code)
	require.Equal(t, "killed", e.Signal)
	require.Equal(t, "was ended by signal killed", e.String())
	require.Contains(t, e.Detail, "backend loaded", "the end of its log")
	_, err = c.Read(make([]byte, 1))
	require.Error(t, err)
	require.NoDirExists(t, in.dir, "the client removes the folder of a killed worker")
	_, err = in.Dial(t.Context())
	require.ErrorContains(t, err, "The worker was ended by signal killed.")
}

// deaf is a worker that ignores the end of stdin and SIGTERM.
const deaf = `trap "" TERM
echo "MYCELYA|%d|unix|$2|$$|%s"
while :; do sleep 0.05 </dev/null; done`

func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "worker.sh")
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700))
	return path
}

func TestDeafWorkerIsKilled(t *testing.T) {
	in := started(t, Spec{Worker: script(t, fmt.Sprintf(deaf, transport.Version, transport.Build)), Backend: "ref"})
	start := time.Now()
	require.NoError(t, in.Stop(t.Context(), 100*time.Millisecond))
	require.Less(t, time.Since(start), 30*time.Second)
	e, err := in.Wait(t.Context())
	require.NoError(t, err)
	require.Equal(t, provider.Done, e.Reason, "it was asked to")
	require.Equal(t, "killed", e.Signal)
	gone(t, in.cmd.Process.Pid, in.dir)
}

func TestWorkersThatCantBeUsed(t *testing.T) {
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("x"), 0o600))
	says := func(line string) string { return script(t, fmt.Sprintf("echo %q; exec sleep 90", line)) }
	for _, c := range []struct {
		name  string
		spec  Spec
		kind  error
		wants []string
	}{
		{"no path", Spec{Backend: "ref"}, provider.ErrNotFound,
			[]string{"The path of the worker program is not known", "pip install"}},
		{"missing", Spec{Worker: "/no/such/worker", Backend: "ref"}, provider.ErrNotFound,
			[]string{`The worker program "/no/such/worker" cannot be used: no such file or directory.`, "pip install"}},
		{"folder", Spec{Worker: "/tmp", Backend: "ref"}, provider.ErrInvalidSpec,
			[]string{`"/tmp" is not executable`, "pip install"}},
		{"not executable", Spec{Worker: plain, Backend: "ref"}, provider.ErrInvalidSpec,
			[]string{"is not executable", plain, "pip install"}},
		{"no executor", Spec{Worker: workerPath, Exec: "/no/exec.so", TorchLib: "/tmp"}, provider.ErrNotFound,
			[]string{`The executor library "/no/exec.so" cannot be used`, "pip install"}},
		{"no torch", Spec{Worker: workerPath, Exec: workerPath, TorchLib: "/no/torch"}, provider.ErrNotFound,
			[]string{`PyTorch's library folder "/no/torch" cannot be read`, "Is torch installed"}},
		{"backend", Spec{Worker: workerPath, Backend: "x"}, provider.ErrInvalidSpec,
			[]string{`The backend "x" does not exist`}},
		{"not a program", Spec{Worker: exeOf(t, "\x7fELF nonsense"), Backend: "ref"}, provider.ErrUnavailable,
			[]string{"does not start", "pip install"}},
		{"ends at once", Spec{Worker: script(t, "echo no library >&2; exit 3"), Backend: "ref"}, provider.ErrUnavailable,
			[]string{"ended with code 3 before it could be used", "no library"}},
		{"another program", Spec{Worker: says("hello"), Backend: "ref"}, provider.ErrVersion,
			[]string{`is not a mycelya worker: it began with "hello\n"`, "pip install"}},
		{"another build", Spec{Worker: says("MYCELYA|1|unix|$2|$$|0.0.7"), Backend: "ref"},
			provider.ErrVersion,
			[]string{"is build 0.0.7 (wire version 1)", "this package is build " + transport.Build, "pip install"}},
		{"another wire",
			Spec{Worker: says("MYCELYA|9|unix|$2|$$|" + transport.Build), Backend: "ref"},
			provider.ErrVersion, []string{"(wire version 9)", "pip install"}},
		{"another socket",
			Spec{Worker: says(fmt.Sprintf("MYCELYA|%d|unix|/tmp/x|$$|%s", transport.Version, transport.Build)), Backend: "ref"},
			provider.ErrVersion, []string{`listens on "/tmp/x"`}},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Now()
			_, err := Start(t.Context(), c.spec)
			require.ErrorIs(t, err, c.kind)
			for _, w := range c.wants {
				require.ErrorContains(t, err, w)
			}
			require.Less(t, time.Since(start), 30*time.Second)
		})
	}
}

func exeOf(t *testing.T, content string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "exe")
	require.NoError(t, os.WriteFile(path, []byte(content), 0o700))
	return path
}

func TestLongTempDirFallsBack(t *testing.T) {
	long := filepath.Join(t.TempDir(), strings.Repeat("x", 90))
	require.NoError(t, os.Mkdir(long, 0o700))
	t.Setenv("TMPDIR", long)
	in := started(t, refSpec())
	require.LessOrEqual(t, len(process.SocketIn(in.dir)), process.MaxSocketPath)
	left, err := os.ReadDir(long)
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestEnvironment(t *testing.T) {
	got := process.Environment(
		[]string{"PATH=/bin", "HOME=/h", "SECRET_TOKEN=x", "OMP_NUM_THREADS=2", "MKL_DEBUG=1", "AWS_SECRET_ACCESS_KEY=x",
			"CUDA_VISIBLE_DEVICES=1", "TORCH_SHOW_CPP_STACKTRACES=1",
			"LC_ALL=C", "LANG=C", "LANGX=1", "MYCELYA_DUMP=-", "LD_LIBRARY_PATH=/l", "LD_PRELOAD=/x.so"},
	)
	require.Equal(t, []string{"PATH=/bin", "HOME=/h", "OMP_NUM_THREADS=2", "MKL_DEBUG=1", "CUDA_VISIBLE_DEVICES=1",
		"TORCH_SHOW_CPP_STACKTRACES=1", "LC_ALL=C", "LANG=C", "LD_LIBRARY_PATH=/l"}, got)

	ranks := []string{"LOCAL_RANK=1", "WORLD_SIZE=2"}
	require.Equal(t, []string{"LOCAL_RANK=1", "MYCELYA_PEERS=127.0.0.1"}, environment(ranks))
	require.Equal(t, []string{"MYCELYA_PEERS=10.0.0.1", "LOCAL_RANK=1"},
		environment(append(ranks, "MYCELYA_PEERS=10.0.0.1")))
	require.Empty(t, environment([]string{"LOCAL_RANK=0", "WORLD_SIZE=1"}))

	t.Setenv("SECRET_TOKEN", "hush")
	in := started(t, refSpec())
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", in.cmd.Process.Pid)); err == nil {
		require.NotContains(t, string(env), "hush")
		require.Contains(t, string(env), "PATH=")
	}
}

func TestFDs(t *testing.T) {
	in := started(t, refSpec())
	fds := in.FDs()
	require.Len(t, fds, 3)
	for _, fd := range fds {
		var st syscall.Stat_t
		require.NoError(t, syscall.Fstat(fd, &st))
		require.EqualValues(t, syscall.S_IFIFO, st.Mode&syscall.S_IFMT)
	}
	// A forked child closes its copies of the descriptors; the worker of the parent keeps running.
	dup, err := syscall.Dup(fds[0])
	require.NoError(t, err)
	require.NoError(t, in.pipes.In.Close())
	time.Sleep(50 * time.Millisecond)
	require.True(t, alive(in.cmd.Process.Pid), "the worker lives as long as any write end does")
	require.NoError(t, syscall.Close(dup))
	gone(t, in.cmd.Process.Pid, in.dir)
	<-in.Ended()
	require.Empty(t, in.FDs(), "the numbers may be those of other files by now")
}
