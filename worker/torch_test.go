// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/conformance"
	"github.com/mycelya/mycelya/worker/executor"
	"github.com/mycelya/mycelya/worker/session"
)

func TestTorchSession(t *testing.T) {
	s := serve(t, conformance.Torch(t).Load, 0)
	c := s.dial(t)
	c.send(transport.Hello, goodHello(), nil)
	var h proto.Hello
	c.expect(transport.Hello, 0, &h)
	require.Empty(t, h.Error)
	require.Equal(t, "cpu", h.Device)
	require.NotEmpty(t, h.DeviceName)
	require.True(t, strings.HasPrefix(h.Torch, "2."), h.Torch)

	big := make([]byte, 32<<20)
	for i := range big {
		big[i] = byte(i >> 3)
	}
	c.upload(1, big)
	got, st := c.read(1, len(big))
	require.Nil(t, st)
	require.Equal(t, big, got)
	c.upload(2, f32(1, -2, 3))
	c.send(transport.Program, sent(1, unary("aten::neg")), nil)
	c.send(transport.Program, sent(2, unary("aten::no_such_operator")), nil)
	require.Empty(t, c.call(callOf(1, 3, 2, 3)).Errors)
	got, st = c.read(3, 12)
	require.Nil(t, st)
	require.Equal(t, f32(-1, 2, -3), got)
	d := c.call(callOf(2, 3, 2, 4))
	require.EqualValues(t, 1, d.Failed)
	require.Contains(t, d.Errors[0].Text, "aten::no_such_operator")
	_, st = c.read(4, 12)
	require.Equal(t, d.Errors[0].Text, st.Text)
	r := c.sync()
	require.Nil(t, r.Status)
	require.EqualValues(t, 4, r.Storages, "a poisoned one counts")
}

// resident returns the resident memory of this process.
func resident(t *testing.T) int {
	statm, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		t.Skip("this system does not report a process's memory")
	}
	var total, pages int
	_, err = fmt.Sscan(string(statm), &total, &pages)
	require.NoError(t, err)
	return pages * os.Getpagesize()
}

func TestTorchFreesMemoryWhenIdle(t *testing.T) {
	const n, size, idle = 16, 16 << 20, 2 * time.Second
	c := start(t, &session.Server{Load: conformance.Torch(t).Load, Idle: idle}).connect(t)
	c.sync()
	before := resident(t)
	part := make([]byte, size)
	for i := range uint64(n) {
		c.upload(i+1, part)
	}
	for i := range uint64(n) {
		c.send(transport.Free, &proto.FreeStorages{Storages: []uint64{i + 1}}, nil)
	}
	require.Zero(t, c.sync().Storages)
	require.Greater(t, resident(t)-before, n*size/2)
	require.Eventually(t, func() bool { return resident(t)-before < n*size/4 }, patience, idle/10)
}

// library compiles a shared library of C source.
func library(t *testing.T, dir, name, source string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	c := exec.Command("cc", "-shared", "-fPIC", "-x", "c", "-o", path, "-")
	c.Stdin = strings.NewReader(source)
	out, err := c.CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

var functions = []string{
	"abi_version",
	"new",
	"delete",
	"info",
	"prepare",
	"drop",
	"run",
	"set_flags", "upload_begin",
	"upload_end",
	"read",
	"read_done",
	"free",
	"poison",
	"sync",
	"usage",
	"trim",
	"load",
	"entry",
	"unload",
	"leave",
	"watch", "contents", "state", "set_state",
}

func TestIncompatibleLibraries(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip("no C compiler")
	}
	dir := t.TempDir()
	torch, empty := filepath.Join(dir, "torch"), filepath.Join(dir, "empty")
	require.NoError(t, os.Mkdir(torch, 0o755))
	require.NoError(t, os.Mkdir(empty, 0o755))
	library(t, torch, "libc10.so", "int c10;")
	library(t, torch, "libtorch_cpu.so", "int torch_cpu;")
	stub := func(abi int, names []string) string {
		s := ""
		for _, n := range names {
			s += fmt.Sprintf("long myc_exec_%s(void) { return %d; }\n", n, abi)
		}
		return s
	}
	text := filepath.Join(dir, "text.so")
	require.NoError(t, os.WriteFile(text, []byte("no library"), 0o644))
	few := library(t, dir, "few.so", stub(proto.ABIVersion, functions[:5]))
	old := library(t, dir, "old.so", stub(99, functions))
	for _, c := range []struct {
		name  string
		torch executor.Torch
		wants []string
	}{
		{"no torch", executor.Torch{Lib: empty, Exec: text}, []string{"PyTorch could not be loaded", "libc10.so", empty}},
		{"no executor", executor.Torch{Lib: torch, Exec: "/no/exec.so", Device: "cpu"},
			[]string{"The executor library could not be loaded", "/no/exec.so", "pip install"}},
		{"not a library", executor.Torch{Lib: torch, Exec: text, Device: "cpu"},
			[]string{"The executor library could not be loaded", text}},
		{"no CUDA", executor.Torch{Lib: torch, Exec: text, Device: "cuda:0"},
			[]string{`The device "cuda:0" needs a PyTorch with CUDA`, "no libc10_cuda.so"}},
		{"function missing", executor.Torch{Lib: torch, Exec: few, Device: "cpu"},
			[]string{"has no function myc_exec_drop", "few.so", "pip install"}},
		{"other ABI", executor.Torch{Lib: torch, Exec: old, Device: "cpu"},
			[]string{"has version 99 of the ABI, the worker version " + fmt.Sprint(proto.ABIVersion), "old.so", "pip install"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := c.torch.Load()
			for _, w := range c.wants {
				require.ErrorContains(t, err, w)
			}
			// The client gets the same text.
			cl := serve(t, c.torch.Load, 0).dial(t)
			cl.send(transport.Hello, goodHello(), nil)
			require.Equal(t, err.Error(), cl.fault())
		})
	}
	// A library with all functions, whose myc_exec_new fails without a text.
	dead := stub(proto.ABIVersion, functions[:1]) + strings.ReplaceAll(stub(0, functions[1:]), "long", "void*")
	b, err := executor.Torch{Lib: torch, Exec: library(t, dir, "dead.so", dead), Device: "cpu"}.Load()
	require.NoError(t, err)
	_, err = b.New("")
	require.ErrorContains(t, err, "The executor failed without a reason")
}
