// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package main

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/mycelya/mycelya/proto/transport"
)

var names = []string{rawTCP, plainTLS, ourLink, gRPC, gRPCTLS, gRPCUnary}

// TestPeers checks that each peer moves the bytes that it is given.
func TestPeers(t *testing.T) {
	near, far, err := transport.Mint(time.Hour)
	require.NoError(t, err)
	var server memory
	addresses, err := listen(far, &server)
	require.NoError(t, err)
	for i, name := range names {
		p, err := open(name, addresses, near)
		require.NoError(t, err, name)
		src := make([]byte, 3<<20+i)
		for j := range src {
			src[j] = byte(j * (i + 3) >> 3)
		}
		require.NoError(t, p.up(src), name)
		require.True(t, bytes.Equal(src, server.bytes[:len(src)]), name)
		dst := make([]byte, len(src))
		require.NoError(t, p.down(dst), name)
		require.True(t, bytes.Equal(src, dst), name)
		for range 3 {
			require.NoError(t, p.trip(), name)
		}
	}
	_, err = open("carrier pigeon", addresses, near)
	assert.ErrorContains(t, err, "carrier pigeon")
}

// program is this program, built once.
func program(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "transport")
	build := exec.Command("go", "build", "-o", path, ".")
	build.Stderr = os.Stderr
	require.NoError(t, build.Run())
	return path
}

// TestDrive does all tasks through a network, and checks that the processes end with stdin.
func TestDrive(t *testing.T) {
	const delay = 2 * time.Millisecond
	cmd := exec.Command(program(t), "drive", "--delay", delay.String(), "--rate", "1000000000")
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	answers := json.NewDecoder(out)
	var first started
	require.NoError(t, answers.Decode(&first))
	assert.Equal(t, cmd.Process.Pid, first.PIDs[0])
	assert.Len(t, first.PIDs, 2)
	ask := func(what task) (r result) {
		require.NoError(t, json.NewEncoder(in).Encode(what))
		require.NoError(t, answers.Decode(&r))
		return r
	}
	for _, name := range names {
		for _, do := range []string{"up", "down"} {
			r := ask(task{Do: do, Peer: name, Bytes: 1 << 20})
			assert.Empty(t, r.Error, name)
			assert.GreaterOrEqual(t, r.Seconds, (2*delay).Seconds()+8.0*(1<<20)/1e9, "%s %s", do, name)
		}
		r := ask(task{Do: "trips", Peer: name, Count: 3})
		assert.Empty(t, r.Error, name)
		assert.Len(t, r.Micros, 3, name)
		r = ask(task{Do: "busy", Peer: name, Bytes: 4 << 20})
		assert.Empty(t, r.Error, name)
		require.NotEmpty(t, r.Micros, name)
		assert.GreaterOrEqual(t, r.Micros[0], float64((2 * delay).Microseconds()), name)
	}
	assert.Contains(t, ask(task{Do: "nothing", Peer: rawTCP}).Error, "nothing raw")
	require.NoError(t, in.Close())
	_, err = io.Copy(io.Discard, out)
	require.NoError(t, err)
	require.NoError(t, cmd.Wait())
}

func TestWrongArguments(t *testing.T) {
	for _, args := range [][]string{
		{}, {"fly"}, {"worker"}, {"drive", "--rate", "-1"}, {"drive", "--delay", "-1ms"},
	} {
		status, err := run(args)
		assert.Equal(t, 2, status, "%v", args)
		assert.Error(t, err, "%v", args)
	}
}
