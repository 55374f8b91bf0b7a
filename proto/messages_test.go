// Copyright (C) 2026 The Mycelya Authors
// SPDX-License-Identifier: AGPL-3.0-or-later

package proto

import (
	"bytes"
	"flag"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	protobuf "google.golang.org/protobuf/proto"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", "v2", name)
	if *update {
		require.NoError(t, os.WriteFile(path, got, 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, got, "a changed encoding is a new version of the wire")
}

// TestGoldenBytes compares the bytes of each message with those of the wire's version.
func TestGoldenBytes(t *testing.T) {
	key := bytes.Repeat([]byte{0xab, 0x01}, KeyBytes/2)
	status := &Status{Kind: ErrIndex, Text: "index 5 is out of range", Call: 9, Step: 2}
	for name, m := range map[string]protobuf.Message{
		"program": &Program{Key: key, Words: []byte{1, 2, 3}},
		"hello": &Hello{Protocol: 1, Build: "0.1.0", Abi: 1, Device: "cpu", DeviceName: "x", Torch: "2.15.0",
			Pid: 77, Error: "No."},
		"call": &Call{Key: key, Params: []uint64{1, math.MaxUint64}, Inputs: []uint64{1},
			Outputs: []uint64{0, 300}, Frees: []uint64{4}},
		"upload":      &Upload{Storage: 300, Bytes: 1 << 33},
		"free":        &FreeStorages{Storages: []uint64{1, 2, 300}},
		"read":        &Read{Storage: 1, Dtype: 7, Sizes: []int64{2, 3}, Strides: []int64{3, 1}, Offset: 5},
		"readreply":   &ReadReply{Bytes: 24, Status: status},
		"sync":        &Sync{},
		"syncreply":   &SyncReply{Status: status, Storages: 3, Bytes: 4096},
		"done":        &Done{Errors: []*Status{status}, Failed: 40, UnknownProgram: true},
		"share":       &Share{Block: 3, Bytes: 4 << 20},
		"unshare":     &Unshare{Block: 3},
		"uploadfrom":  &UploadFrom{Storage: 9, Block: 3, Offset: 64 << 10, Bytes: 1 << 16},
		"uploaded":    &Uploaded{},
		"helloblocks": &Hello{Protocol: 1, Build: "0.1.0", Abi: 2, Device: "cpu", Blocks: 256},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := protobuf.MarshalOptions{Deterministic: true}.Marshal(m)
			require.NoError(t, err)
			golden(t, name+".binpb", b)
			back := m.ProtoReflect().New().Interface()
			require.NoError(t, protobuf.Unmarshal(b, back))
			require.True(t, protobuf.Equal(m, back))
		})
	}
}
