// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package worker_test

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/mycelya/mycelya/program"
	"github.com/mycelya/mycelya/proto"
	"github.com/mycelya/mycelya/proto/transport"
	"github.com/mycelya/mycelya/worker/session"
)

// slowProgram is the program of slowCall, whose steps take minutes.
func slowProgram() *proto.Program { return sent(9, chain(20_000)) }

// slowCall sends a call that takes minutes, and waits until it runs. It uses the storages from 90 on.
func slowCall(t testing.TB, c *client, pid int) (seq uint64) {
	t.Helper()
	const n = 100_000
	c.upload(90, bytes.Repeat(secret, n))
	c.send(transport.Program, slowProgram(), nil)
	c.sync()
	before := ticks(t, pid)
	seq = c.send(transport.Call, callOf(9, n, 90, 91), nil)
	require.Eventually(t, func() bool { return ticks(t, pid) > before+20 }, patience, 10*time.Millisecond)
	return seq
}

// secret is what a tensor holds, 4 bytes.
var secret = []byte("\x17\x2a\xc3\x91")

// ticks is the processor time of a process, in hundredths of a second.
func ticks(t testing.TB, pid int) int {
	t.Helper()
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if os.IsNotExist(err) {
		t.Skip("this system does not report a process's time")
	}
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, err := strconv.Atoi(fields[11])
	require.NoError(t, err)
	system, err := strconv.Atoi(fields[12])
	require.NoError(t, err)
	return user + system
}

// keptCrash is what the folder of a crash has.
type keptCrash struct {
	Build, Torch, Device, Signal string
	DeviceName                   string `json:"device_name"`
	Pid, Call                    uint64
	Code                         int
	Step                         *uint64
	Programs                     []struct {
		Key, File string
		Bytes     int
	}

	calls []keptCall
	log   string
	names []string
}

type keptCall struct {
	Call                   uint64
	Program                string
	Known                  bool
	Params                 []string
	Inputs, Outputs, Frees []uint64
}

func readCrash(t testing.TB, dir string) *keptCrash {
	t.Helper()
	file := func(name string) []byte {
		b, err := os.ReadFile(filepath.Join(dir, name))
		require.NoError(t, err)
		return b
	}
	k := new(keptCrash)
	require.NoError(t, json.Unmarshal(file("crash.json"), k))
	for line := range bytes.Lines(file("calls.jsonl")) {
		var c keptCall
		require.NoError(t, json.Unmarshal(line, &c))
		k.calls = append(k.calls, c)
	}
	k.log = string(file("log.txt"))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		info, err := e.Info()
		require.NoError(t, err)
		require.EqualValues(t, 0o600, info.Mode())
		k.names = append(k.names, e.Name())
		require.False(t, bytes.Contains(file(e.Name()), bytes.Repeat(secret, 2)), "%s has values of a tensor", e.Name())
	}
	return k
}

// program is the message of a program of a crash, which must obey the rules for programs.
func (k *keptCrash) program(t testing.TB, dir string, i int) *proto.Program {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, k.Programs[i].File))
	require.NoError(t, err)
	require.Len(t, b, k.Programs[i].Bytes)
	key, words, err := session.Decode(b)
	require.NoError(t, err)
	require.Equal(t, k.Programs[i].Key, hex.EncodeToString(key[:]))
	_, err = program.Parse(words)
	require.NoError(t, err)
	return &proto.Program{Key: key[:], Words: program.Pack(words)}
}

// call is a call of a crash as a message.
func (c keptCall) call(t testing.TB) *proto.Call {
	t.Helper()
	require.True(t, c.Known)
	out := &proto.Call{Inputs: c.Inputs, Outputs: c.Outputs, Frees: c.Frees}
	var err error
	out.Key, err = hex.DecodeString(c.Program)
	require.NoError(t, err)
	for _, p := range c.Params {
		word, err := strconv.ParseUint(p, 0, 64)
		require.NoError(t, err)
		out.Params = append(out.Params, word)
	}
	return out
}

// TestACrashIsKept ends a process in a call, and reads what its folder has.
func TestACrashIsKept(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "crashes")
	r, s := runUnix(t, "--crashes", folder)
	c, pid := s.session(t)
	c.upload(1, bytes.Repeat(secret, 3))
	for k := range byte(8) { // with the slow one there are more programs than are keptCrash
		c.send(transport.Program, sent(1+k, unary("aten::relu")), nil)
	}
	first := callOf(1, 3, 1, 2)
	require.Zero(t, c.call(first).Failed)
	last, base := first, c.seq
	for i := range uint64(100) { // as a loop sends them
		next := callOf(1, 3, 1, 3+i)
		next.Frees = []uint64{2 + i}
		delta, ok := proto.AppendDelta(nil, last, next)
		require.True(t, ok)
		require.Zero(t, c.call(&proto.Call{Key: next.Key, Base: base, Delta: delta}).Failed)
		last, base = next, c.seq
	}
	for k := range byte(7) {
		require.Zero(t, c.call(callOf(2+k, 3, 1, 200+uint64(k))).Failed)
	}
	seq := slowCall(t, c, pid)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
	_, err := c.c.Next()
	require.Error(t, err)

	end := s.end(t, pid)
	require.Equal(t, "segmentation fault", end.Signal)
	require.Equal(t, seq, end.Call)
	require.Equal(t, folder, filepath.Dir(end.Dump))
	k := readCrash(t, end.Dump)
	require.Equal(t, transport.Build, k.Build)
	require.Equal(t, "cpu", k.Device)
	require.Equal(t, "reference worker, without PyTorch", k.DeviceName)
	require.Equal(t, end.Signal, k.Signal)
	require.Equal(t, -1, k.Code)
	require.EqualValues(t, pid, k.Pid)
	require.Equal(t, end.Call, k.Call)
	require.Equal(t, end.Step-1, *k.Step)
	require.Contains(t, k.log, "msg=session")

	require.Len(t, k.Programs, 8)
	require.True(t, protobuf.Equal(slowProgram(), k.program(t, end.Dump, 0)))
	for i := 1; i < 8; i++ {
		require.True(t, protobuf.Equal(sent(byte(9-i), unary("aten::relu")), k.program(t, end.Dump, i)), i)
	}
	require.Len(t, k.calls, 64)
	require.Equal(t, seq, k.calls[63].Call)
	require.True(t, protobuf.Equal(callOf(9, 100_000, 90, 91), k.calls[63].call(t)))
	require.True(t, protobuf.Equal(last, k.calls[63-8].call(t)), "whole, although a difference was sent")
	for i, call := range k.calls {
		c := call.call(t)
		require.Equal(t, []int{1, 1, 1}, []int{len(c.Params), len(c.Inputs), len(c.Outputs)}, "call %d", i)
	}
	require.Len(t, k.names, 8+3)
	r.logs(t, "kept="+end.Dump)

	// The worker goes on, and the next crash has a folder of its own.
	c, pid = s.session(t)
	works(t, c)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	_, err = c.c.Next()
	require.Error(t, err)
	again := s.end(t, pid)
	require.NotEqual(t, end.Dump, again.Dump)
	k = readCrash(t, again.Dump)
	require.Equal(t, "killed", k.Signal)
	require.Nil(t, k.Step)
	require.Len(t, k.calls, 1)
}

// TestACrashOfTorchIsKept: also with PyTorch, after the process has lost most system calls.
func TestACrashOfTorchIsKept(t *testing.T) {
	_, s := runUnix(t, append(withTorch(t), "--crashes", t.TempDir())...)
	c, pid := s.session(t)
	works(t, c)
	seq := c.seq
	require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
	_, err := c.c.Next()
	require.Error(t, err)
	end := s.end(t, pid)
	require.Equal(t, "segmentation fault", end.Signal)
	require.Less(t, end.Call, seq)
	k := readCrash(t, end.Dump)
	require.True(t, strings.HasPrefix(k.Torch, "2."), k.Torch)
	require.Equal(t, "cpu", k.Device)
	require.True(t, protobuf.Equal(sent(1, unary("aten::relu")), k.program(t, end.Dump, 0)))
	text, err := session.Show(filepath.Join(end.Dump, k.Programs[0].File))
	require.NoError(t, err)
	require.Contains(t, text, "b1:f32[p0] = aten::relu(b0:f32[p0])")
	require.True(t, protobuf.Equal(callOf(1, 2, 1, 2), k.calls[0].call(t)))
}

// TestEndsThatAreNoCrashes: a client that leaves, a worker that ends, and a folder that is switched off.
func TestEndsThatAreNoCrashes(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "crashes")
	t.Run("client leaves", func(t *testing.T) {
		_, s := runUnix(t, "--crashes", folder)
		c, pid := s.session(t)
		works(t, c)
		require.NoError(t, c.c.Close())
		end := s.end(t, pid)
		require.True(t, end.Ended)
		require.Empty(t, end.Dump)
	})
	t.Run("worker ends", func(t *testing.T) {
		r, s := runUnix(t, "--crashes", folder, "--drain", "0")
		c, _ := s.session(t)
		works(t, c)
		r.signal(t, syscall.SIGTERM)
		r.ends(t)
	})
	t.Run("off", func(t *testing.T) {
		_, s := runUnix(t, "--crashes", "")
		c, pid := s.session(t)
		works(t, c)
		require.NoError(t, syscall.Kill(pid, syscall.SIGSEGV))
		_, err := c.c.Next()
		require.Error(t, err)
		end := s.end(t, pid)
		require.Equal(t, "segmentation fault", end.Signal)
		require.Empty(t, end.Dump)
	})
	require.NoDirExists(t, folder)
}

// TestACrashThatCannotBeKept: the end is reported all the same.
func TestACrashThatCannotBeKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	r, at := runRemote(t, "--crashes", file)
	name := transport.NewSessionName()
	c, pid := at.session(t, name)
	works(t, c)
	require.NoError(t, syscall.Kill(pid, syscall.SIGABRT))
	end := at.end(t, name)
	require.Equal(t, "aborted", end.Signal)
	require.Empty(t, end.Dump)
	r.logs(t, "a crash cannot be kept")
}
